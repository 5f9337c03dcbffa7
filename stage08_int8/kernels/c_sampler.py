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
from .c_kernel import address, load_kernel, struct

Row = struct(
    "Row",  # SampledRow of kernels.h
    **dict.fromkeys(("logits", "raw", "used"), c_void_p),
    **dict.fromkeys(("num_used", "num_output", "top_k"), c_int64),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition", "frequency", "presence"), c_double),
    **dict.fromkeys(("seed", "position", "index"), c_uint64),
    **dict.fromkeys(("num_logprobs", "token_id"), c_int64),
    **dict.fromkeys(("top_ids", "ranks", "logprobs"), c_void_p),
)


class CSampler:
    """Samples rows of logits as sampler.py's `sample` does. It keeps the memory that C works in."""

    def __init__(self):
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._used: weakref.WeakKeyDictionary[Any, array] = weakref.WeakKeyDictionary()  # each request's tokens

    def __call__(
        self, logits: Tensor, requests: Sequence[Any]
    ) -> list[tuple[int, dict[int, Logprob] | None] | Exception]:
        """The next token of each request, with its log-probabilities if requested, or its error.

        logits: [n_rows, vocab_size] float32, a row per request
        """
        logits, vocab_size = logits.contiguous(), logits.shape[-1]
        rows, kept, errors = (Row * len(requests))(), [], {}
        base = address(logits, torch.float32)
        for i, request in enumerate(requests):
            params, raw = request.params, base + 4 * i * vocab_size
            processed, at = None, raw
            if is_processed(request):
                processed = logits[i].clone()
                try:
                    apply_logits_processors(processed[None], [request])
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
                *(request.seed, len(request.output_token_ids), request.index, num_logprobs, -1),
                *(top.buffer_info()[0] for top in tops),
            )
        library, threads = load_kernel(), torch.get_num_threads()
        if len(self._memory) < (num_bytes := threads * library.sampler_bytes(vocab_size)):
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        library.sample_rows(addressof(rows), len(rows), vocab_size, address(self._memory, torch.uint8), threads)
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

    def _tokens(self, request: Any) -> array:
        """The tokens of a request's prompt and output, as C reads them; a request only grows."""
        tokens = self._used.setdefault(request, array("q"))
        tokens.extend(request.token_ids[len(tokens) :])
        return tokens
