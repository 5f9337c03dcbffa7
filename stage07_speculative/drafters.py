"""Drafters propose the next tokens of requests: by n-gram lookup in the request's own text, or with a smaller model.

The model verifies each token, so the output does not depend on the drafter. It may be wrong, but it should be quick.
"""

import itertools
import time
import weakref
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .batch import Batch
from .kv_cache import PREFAULT
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .sampler import sample_rows
from .support.weights import Checkpoint


class Drafter(Protocol):
    """Proposes tokens.

    Attributes:
        draft_cost: seconds for one more token, for all requests together.
    """

    draft_cost: float

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        """Up to `count` tokens to follow each request's last one; a request may get none."""
        ...


def smoothed(average: float, seconds: float) -> float:
    """A running average of durations, updated by one more; an outlier is clamped."""
    return average * (1 + 0.1 * (min(max(seconds / average, 0.5), 2.0) - 1)) if average else seconds


def pick_drafter(config: Any, runner: Runner, model_config: ModelConfig, max_model_len: int) -> Drafter | None:
    """The drafter of the option `speculate`. By default, prompt lookup on a CPU and none on CUDA.

    Raises:
        ValueError, OSError: it is a draft model that can't be used, loaded or fetched.
    """
    name = config.speculate
    if name == "auto":
        name = "ngram" if runner.device.type == "cpu" else "off"
    if name == "off":
        return None
    if name == "ngram":
        return PromptLookup()
    try:
        return DraftModel(config, runner, model_config, max_model_len)
    except (ValueError, OSError) as error:
        raise type(error)(f"speculate: {error}") from None


class PromptLookup:
    """Proposes what followed the latest, longest earlier match of the last tokens, in the prompt or the output (Saxena
    2023, "Prompt Lookup Decoding"; Yang et al. 2023, "LLMA").

    Attributes:
        longest, shortest: tokens of a match.
    """

    longest, shortest = 4, 2
    draft_cost = 0.0  # microseconds

    def __init__(self):
        # Per request: how many of its tokens are indexed, and the position after each n-gram's latest occurrence.
        self._indexes: weakref.WeakKeyDictionary[Request, tuple[int, dict[tuple[int, ...], int]]] = (
            weakref.WeakKeyDictionary()
        )

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        return {request: draft for request, count in counts.items() if (draft := self._look_up(request, count))}

    def _look_up(self, request: Request, count: int) -> list[int]:
        token_ids, (num_indexed, ends) = request.token_ids, self._indexes.get(request, (0, {}))
        for end in range(num_indexed, len(token_ids)):  # an n-gram is indexed once a token has followed it
            for n in range(self.shortest, min(self.longest, end) + 1):
                ends[tuple(token_ids[end - n : end])] = end
        self._indexes[request] = len(token_ids), ends
        for n in range(self.longest, self.shortest - 1, -1):
            if (end := ends.get(tuple(token_ids[-n:]))) is not None:
                # Past the last token, the draft goes on as if the text repeated itself.
                following = itertools.cycle(token_ids[end:])
                return list(itertools.islice(following, count))
        return []


class DraftModel:
    """Proposes what a smaller model with the same vocabulary would say. It uses the same sampler, the request's
    parameters and its random numbers: where both models have similar probabilities, the same number mostly picks the
    same token.

    It has its own KV cache, with a slot for each request that may run, or as many as memory allows; a request without a
    slot gets no drafts. Keys and values of rejected drafts stay there until they are overwritten; they are never read.

    Args:
        config: the engine's options; `speculate` names the model.
        target: runs the large model; its cache needs memory, too.
        model_config: the sizes of the large model.
        max_model_len: the longest sequence, in tokens.

    Raises:
        ValueError: the vocabularies differ, or there is too little memory.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: Any, target: Runner, model_config: ModelConfig, max_model_len: int):
        checkpoint = Checkpoint(replace(config, model=config.speculate))
        sizes = ModelConfig(**checkpoint.sizes)
        if sizes.vocab_size != model_config.vocab_size:
            raise ValueError(
                f"the vocabulary of {config.speculate!r} has {sizes.vocab_size} tokens, that of the model "
                f"{model_config.vocab_size}; both must have the same tokens"
            )
        self.max_model_len = min(max_model_len, sizes.n_positions)
        self.max_num_batched_tokens, self.block_size = config.max_num_batched_tokens, config.block_size
        self.blocks_per_slot = -(-self.max_model_len // config.block_size)
        own_config = replace(config, num_blocks=None, kv_cache_bytes=None)
        promised = max(0, target.kv_cache_bytes - PREFAULT * target.dtype.itemsize)  # what is not touched yet
        self.runner = Runner(own_config, sizes, checkpoint, self.max_model_len, promised)
        self.draft_cost = self.runner.time_steps((1,))[1]
        self._numbers = range(self.runner.num_blocks // self.blocks_per_slot)
        if not self._numbers:
            raise ValueError(f"there is no memory for the cache of one sequence of {config.speculate!r}")
        self._slots: weakref.WeakKeyDictionary[Request, DraftSlot] = weakref.WeakKeyDictionary()

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        new, drafts = self._catch_up(counts), {}
        while new:
            start, num_tokens = time.perf_counter(), sum(map(len, new.values()))
            next_tokens = self._next(new, drafts)
            if num_tokens <= 2 * len(new):  # a request misses 2 tokens after a step that accepted its whole draft
                self.draft_cost = smoothed(self.draft_cost, time.perf_counter() - start)
            new = {}
            for request, token_id in next_tokens.items():
                draft = drafts.setdefault(request, [])
                draft.append(token_id)
                if len(draft) < counts[request] and request.num_tokens + len(draft) <= self.max_model_len:
                    new[request] = [token_id]
        return drafts

    def _catch_up(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        """The tokens that the draft model has not seen yet, of each request that gets a draft, within a step's limit.
        Requests that are not in `counts` lose their slots."""
        for request in [request for request in self._slots if request not in counts]:
            del self._slots[request]
        new, budget = {}, self.max_num_batched_tokens
        for request, count in counts.items():
            if not count or request.num_tokens > self.max_model_len:
                continue
            if request not in self._slots:
                free = set(self._numbers) - {slot.number for slot in self._slots.values()}
                if not free:
                    continue
                self._slots[request] = DraftSlot(min(free))
            if tokens := self._slots[request].missing(request.token_ids)[:budget]:
                new[request], budget = tokens, budget - len(tokens)
        return new

    def _next(self, new: dict[Request, list[int]], drafts: dict[Request, list[int]]) -> dict[Request, int]:
        """Run these tokens through the draft model. Returns the next token of each request that it has seen all of."""
        logits = self._forward(new)
        rows = [
            (row, request.guessed(drafts.get(request, [])), request)
            for row, request in enumerate(new)
            if len(self._slots[request].tokens) >= request.num_tokens
        ]
        if not rows:
            return {}
        indices, guessed, requests = zip(*rows, strict=True)
        with self.runner.thread_limit:
            tokens = sample_rows([logits[i] for i in indices], list(guessed), self.runner.sampler)
        return {r: token[0] for r, token in zip(requests, tokens, strict=True) if isinstance(token, tuple)}

    def _forward(self, new: dict[Request, list[int]]) -> Tensor:
        """The logits of the last of each request's new tokens. -> [len(new), vocab_size]"""
        token_ids, positions, slot_mapping, tables, query_start_loc, seq_lens = [], [], [], [], [0], []
        for request, tokens in new.items():
            slot = self._slots[request]
            start, first = len(slot.tokens), slot.number * self.blocks_per_slot
            end = start + len(tokens)
            token_ids += tokens
            positions += range(start, end)
            slot_mapping += range(first * self.block_size + start, first * self.block_size + end)
            tables.append(list(range(first, first + self.blocks_per_slot)))
            query_start_loc.append(len(token_ids))
            seq_lens.append(end)
        logits_indices = [end - 1 for end in query_start_loc[1:]]
        columns = token_ids, positions, slot_mapping, tables, query_start_loc, seq_lens, logits_indices
        tensors = (torch.tensor(column, dtype=torch.int64, device=self.runner.device) for column in columns)
        logits = self.runner.forward(Batch(*tensors))  # pyright: ignore[reportArgumentType]
        for request, tokens in new.items():  # only now are they in the cache: the step might have failed
            self._slots[request].tokens += tokens
        return logits


class DraftSlot:
    """A request's part of the draft model's cache: its number, and the tokens whose keys and values are in it."""

    def __init__(self, number: int):
        self.number, self.tokens, self._num_right = number, [], 0

    def missing(self, token_ids: list[int]) -> list[int]:
        """Forget the tokens from the first one that differs from the sequence's. Returns the sequence's tokens that are
        missing, at least one."""
        end = min(len(self.tokens), len(token_ids) - 1)
        while self._num_right < end and self.tokens[self._num_right] == token_ids[self._num_right]:
            self._num_right += 1
        self._num_right = min(self._num_right, end)
        del self.tokens[self._num_right :]
        return token_ids[self._num_right :]
