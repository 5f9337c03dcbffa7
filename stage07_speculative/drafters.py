"""Who guesses the next tokens of requests: their own text, where it repeats itself, or a smaller model.

Whatever is guessed, the output stays the same: the model verifies every token. So a drafter may be wrong, but it should
be quick.
"""

import itertools
import time
import weakref
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .batch import Batch
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .sampler import choose_rows
from .support.weights import Checkpoint


class Drafter(Protocol):
    """Guesses what follows.

    Attributes:
        seconds: what a further token takes, for all requests together.
    """

    seconds: float

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        """For each request so many tokens at most, those that would follow its last one; for some there may be none."""
        ...


class PromptLookup:
    """Guesses that what followed the last tokens when they came before, in the prompt or the output, follows again
    (Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023, "LLMA"). The longest match counts, of these the latest.

    Attributes:
        longest, shortest: how many last tokens are looked up.
    """

    longest, shortest = 4, 2
    seconds = 0.0  # too few to count

    def __init__(self):
        # Of each request: how many of its tokens are in its index, and behind which place each n-gram came last.
        self._indexes: weakref.WeakKeyDictionary[Request, tuple[int, dict[tuple[int, ...], int]]] = (
            weakref.WeakKeyDictionary()
        )

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        return {request: draft for request, count in counts.items() if (draft := self._look_up(request, count))}

    def _look_up(self, request: Request, count: int) -> list[int]:
        token_ids, (num_known, places) = request.token_ids, self._indexes.get(request, (0, {}))
        for end in range(max(num_known, 1), len(token_ids)):  # an n-gram is known when a token has followed it
            for n in range(self.shortest, min(self.longest, end) + 1):
                places[tuple(token_ids[end - n : end])] = end
        self._indexes[request] = len(token_ids), places
        for n in range(min(self.longest, len(token_ids)), self.shortest - 1, -1):
            if (place := places.get(tuple(token_ids[-n:]))) is not None:
                # What follows the place may run into the end, and goes on from there as if it came again.
                following = itertools.cycle(token_ids[place:])
                return list(itertools.islice(following, count))
        return []


class DraftModel:
    """Guesses what a smaller model of the same vocabulary would say, by the same sampler, with the request's parameters
    and its random numbers: where both models give nearly the same probabilities, the same number gives the same token.

    It has a KV cache of its own, with room for every request that may run. After a step the keys and values of guesses
    that were wrong are still in it; they are overwritten before they are read.

    Args:
        config: the engine's options; `speculate` names the model.
        model_config: the sizes of the large model.
        max_model_len: the longest sequence, in tokens.

    Raises:
        ValueError: the vocabulary is another one, or there is no room.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: Any, model_config: ModelConfig, max_model_len: int):
        try:
            checkpoint = Checkpoint(replace(config, model=config.speculate))
        except (ValueError, OSError) as error:
            raise type(error)(f"speculate: {error}") from None
        sizes = ModelConfig(**checkpoint.sizes)
        if sizes.vocab_size != model_config.vocab_size:
            raise ValueError(
                f"speculate: the vocabulary of {config.speculate!r} has {sizes.vocab_size} tokens, that of the model "
                f"{model_config.vocab_size}; both must have the same tokens"
            )
        self.longest, self.most_tokens = min(max_model_len, sizes.n_positions), config.max_num_batched_tokens
        self.block_size, self.width = config.block_size, -(-self.longest // config.block_size)
        room = replace(config, num_blocks=config.max_num_seqs * self.width, kv_cache_bytes=None)
        self.runner = Runner(room, sizes, checkpoint, self.longest)
        self.seconds = self.runner.time_rows((1,))[1]
        self._numbers = range(config.max_num_seqs)  # of places
        self._places: weakref.WeakKeyDictionary[Request, Place] = weakref.WeakKeyDictionary()

    def draft(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        new, drafts = self._catch_up(counts), {}
        while new:
            start, num_tokens = time.perf_counter(), sum(map(len, new.values()))
            chosen = self._next(new, drafts)
            if num_tokens <= 2 * len(new):  # after a step whose guesses were all right there are two
                self.seconds += 0.1 * (time.perf_counter() - start - self.seconds)
            new = {}
            for request, token_id in chosen.items():
                draft = drafts.setdefault(request, [])
                draft.append(token_id)
                if len(draft) < counts[request] and request.num_tokens + len(draft) <= self.longest:
                    new[request] = [token_id]
        return drafts

    def _catch_up(self, counts: dict[Request, int]) -> dict[Request, list[int]]:
        """The tokens that the draft model has not seen, of requests that are to have guesses; as many as a step has."""
        for request in [request for request in self._places if request not in counts]:
            del self._places[request]
        new, budget = {}, self.most_tokens
        for request in (request for request, count in counts.items() if count and request.num_tokens <= self.longest):
            if request not in self._places:
                taken = {place.number for place in self._places.values()}
                self._places[request] = Place(next(number for number in self._numbers if number not in taken))
            if tokens := self._places[request].missing(request.token_ids)[:budget]:
                new[request], budget = tokens, budget - len(tokens)
        return new

    def _next(self, new: dict[Request, list[int]], drafts: dict[Request, list[int]]) -> dict[Request, int]:
        """Put these tokens through the draft model; returns what it says next, of requests that are then complete."""
        logits = self._forward(new)
        rows = [
            (row, request.guessed(drafts.get(request, [])), request)
            for row, request in enumerate(new)
            if len(self._places[request].tokens) >= request.num_tokens
        ]
        if not rows:
            return {}
        places, guessed, requests = zip(*rows, strict=True)
        with self.runner.thread_limit:
            chosen = choose_rows(logits[list(places)], list(guessed), self.runner.argmax)
        return {r: token_id for r, token_id in zip(requests, chosen, strict=True) if isinstance(token_id, int)}

    def _forward(self, new: dict[Request, list[int]]) -> Tensor:
        """The logits behind the last of each request's new tokens. -> [len(new), vocab_size]"""
        token_ids, positions, slots, tables, ends, lengths = [], [], [], [], [0], []
        for request, tokens in new.items():
            place = self._places[request]
            start, first = len(place.tokens), place.number * self.width
            end = start + len(tokens)
            token_ids += tokens
            positions += range(start, end)
            slots += range(first * self.block_size + start, first * self.block_size + end)
            tables.append(list(range(first, first + self.width)))
            ends.append(len(token_ids))
            lengths.append(end)
        lists = token_ids, positions, slots, tables, ends, lengths, [end - 1 for end in ends[1:]]
        tensors = (torch.tensor(one, dtype=torch.int64, device="cpu") for one in lists)
        logits = self.runner.forward(Batch(*tensors))  # pyright: ignore[reportArgumentType]
        for request, tokens in new.items():  # not before they are there: a step may be interrupted anywhere
            self._places[request].tokens += tokens
        return logits


class Place:
    """A request's part of the draft model's cache: its number, and the tokens whose keys and values are in it."""

    def __init__(self, number: int):
        self.number, self.tokens, self._num_right = number, [], 0

    def missing(self, token_ids: list[int]) -> list[int]:
        """Forget what is not the sequence's; returns the tokens of the sequence that are not there, at least one."""
        most = min(len(self.tokens), len(token_ids) - 1)
        while self._num_right < most and self.tokens[self._num_right] == token_ids[self._num_right]:
            self._num_right += 1
        self._num_right = min(self._num_right, most)
        del self.tokens[self._num_right :]
        return token_ids[self._num_right :]
