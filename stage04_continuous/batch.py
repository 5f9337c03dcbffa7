"""The input of one step, as tensors."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .request import Request
from .scheduler import Row


@dataclass(frozen=True)
class Batch:
    """The tokens of all requests of a step one after another, without padding: a prompt or a chunk of one, the single
    token of a decode, or a sequence that is computed again.

    Attributes:
        token_ids, positions, slots: [num_tokens], each token with its position in its sequence and its request's slot.
        spans: for each row, (start and end of its tokens in the step, its slot, its n_seq).
        logits_indices: [n_logits], the tokens whose logits are needed.
        rows: the requests, each with the number of its tokens that the step computes.
        ready: the requests that get a token in this step.
        sample_indices: for each of `ready`, which of the logits to sample from.
        score_slices: the requests with a prompt to score, each with its rows of the logits.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    spans: list[tuple[int, int, int, int]]
    logits_indices: Tensor
    rows: list[Row]
    ready: list[Request]
    sample_indices: list[int]
    score_slices: list[tuple[Request, slice]]

    @classmethod
    def of(cls, rows: list[Row], device: torch.device) -> "Batch":
        token_ids, positions, slots, spans, logits_indices, ready = [], [], [], [], [], []
        sample_indices, score_slices = [], []
        for request, num_tokens, is_ready in rows:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            spans.append((len(token_ids), len(token_ids) + num_tokens, request.slot, end))
            if request.prompt_logprobs is not None and (needed := request.prompt_logprobs.positions(start, end)):
                score_slices.append((request, slice(len(logits_indices), len(logits_indices) + len(needed))))
                logits_indices += [len(token_ids) + position - start for position in needed]
            token_ids += request.new_token_ids(num_tokens)
            positions += range(start, end)
            slots += [request.slot] * num_tokens
            if is_ready:
                ready.append(request)
                sample_indices.append(len(logits_indices))
                logits_indices.append(len(token_ids) - 1)
        tensor = functools.partial(torch.tensor, dtype=torch.int64, device=device)
        return cls(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            slots=tensor(slots),
            spans=spans,
            logits_indices=tensor(logits_indices),
            rows=rows,
            ready=ready,
            sample_indices=sample_indices,
            score_slices=score_slices,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def to_sample(self, logits: Tensor) -> list[Tensor]:
        """The rows of the logits to sample from, not copied: [n_logits, vocab_size] -> n_ready x [vocab_size]"""
        return [logits[i] for i in self.sample_indices]
