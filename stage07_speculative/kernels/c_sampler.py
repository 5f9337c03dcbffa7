"""The sampler of sampler.py in C: all rows of a step in one call, each by its request's parameters (sampler.c)."""

import weakref
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_double, c_int64, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor

from ..support.logits_processors import apply_logits_processors, is_processed
from ..support.logprobs import NOT_FINITE
from ..support.outputs import Logprob
from ..support.scoring import next_token_ids
from .c_kernel import address, load_kernel, struct

Row = struct(
    "Row",  # SampledRow of kernels.h
    **dict.fromkeys(("logits", "raw", "used"), c_void_p),
    **dict.fromkeys(("num_used", "num_output", "top_k"), c_int64),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition", "frequency", "presence"), c_double),
    **dict.fromkeys(("seed", "position"), c_uint64),
    **dict.fromkeys(("num_logprobs", "token_id"), c_int64),
    **dict.fromkeys(("top_ids", "ranks", "logprobs"), c_void_p),
)


class CSampler:
    """Samples rows of logits as sampler.py's `sample` does. It keeps the memory that C works in."""

    def __init__(self):
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._used: weakref.WeakKeyDictionary[Any, array] = weakref.WeakKeyDictionary()  # each request's tokens

    def __call__(
        self, logits: Sequence[Tensor], requests: Sequence[Any]
    ) -> list[tuple[int, dict[int, Logprob] | None] | Exception]:
        """The next token of each request, with its log-probabilities if requested, or its error.

        logits: a row per request, [vocab_size] float32
        """
        if not requests:
            return []
        logits = [row.contiguous() for row in logits]
        rows, kept, errors, vocab_size = (Row * len(requests))(), [], {}, len(logits[0])
        for i, request in enumerate(requests):
            params, raw = request.params, address(logits[i], torch.float32)
            processed, at = None, raw
            if is_processed(request):
                processed = logits[i].clone()
                try:
                    apply_logits_processors(processed, request)
                except Exception as error:
                    errors[i] = error
                at = address(processed, torch.float32)
            used, num_output = (0, 0), 0
            if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
                used, num_output = self._tokens(request).buffer_info(), len(request.output_token_ids)
            num_logprobs = -1 if params.logprobs is None else min(params.logprobs, vocab_size)
            tops = [array(kind, bytes(8 * (1 + num_logprobs))) for kind in "qqd"]
            kept.append((processed, tops))  # C has their addresses
            rows[i] = Row(
                *(at, raw, *used, num_output, params.top_k),
                *(params.temperature, params.top_p, params.min_p),
                *(params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
                *(request.seed, len(request.output_token_ids), num_logprobs, -1),
                *(top.buffer_info()[0] for top in tops),
            )
        threads = torch.get_num_threads()
        load_kernel().sample_rows(addressof(rows), len(rows), vocab_size, self._room(vocab_size, threads), threads)
        results = []
        for i, (request, row, (_, tops)) in enumerate(zip(requests, rows, kept, strict=True)):
            if i in errors or row.token_id < 0:
                results.append(errors.get(i) or ValueError(NOT_FINITE))
                continue
            columns = zip(*tops, strict=True)
            text = request.tokenizer.token_text
            entries = {token: Logprob(logprob, rank, text(token)) for token, rank, logprob in columns}
            results.append((row.token_id, entries or None))
        return results

    def score(self, logits: Tensor, scored: Sequence[tuple[Any, slice]]) -> None:
        """As `score_prompts` of scoring.py, all rows in one call."""
        vocab_size, k = logits.shape[-1], max(request.params.prompt_logprobs for request, _ in scored)
        which = [i for _, rows in scored for i in range(rows.start, rows.stop)]
        token_ids = [token for request, rows in scored for token in next_token_ids(request, rows)]
        indices = torch.tensor([which, token_ids], dtype=torch.int64, device="cpu")  # [2, n]
        ids = torch.empty(len(which), 1 + k, dtype=torch.int64, device="cpu")
        logprobs, ranks = torch.empty_like(ids, dtype=torch.float64), torch.empty_like(ids)
        inputs = address(logits.contiguous(), torch.float32), address(indices, torch.int64), len(which), vocab_size, k
        outputs = address(ids, torch.int64), address(logprobs, torch.float64), address(ranks, torch.int64)
        threads = torch.get_num_threads()
        load_kernel().score_rows(*inputs, *outputs, self._room(vocab_size, threads), threads)
        start = 0
        for request, rows in scored:
            end = start + rows.stop - rows.start
            width = 1 + request.params.prompt_logprobs
            request.prompt_logprobs.extend(*(column[start:end, :width] for column in (ids, logprobs, ranks)))
            start = end

    def _room(self, vocab_size: int, threads: int) -> int:
        """The address of memory that C works in."""
        if len(self._memory) < (num_bytes := threads * load_kernel().sampler_bytes(vocab_size)):
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        return address(self._memory, torch.uint8)

    def _tokens(self, request: Any) -> array:
        """The tokens of a request's prompt and output, as C reads them; a request only grows."""
        tokens = self._used.setdefault(request, array("q"))
        tokens.extend(request.token_ids[len(tokens) :])
        return tokens
