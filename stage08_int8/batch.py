"""The input of one step, as tensors."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from .block_manager import BlockManager
from .request import Request
from .scheduler import Row


@dataclass(frozen=True)
class Batch:
    """The tokens of all requests of a step one after another, without padding.

    Attributes:
        token_ids, positions, slot_mapping: [num_tokens], each token's position in its sequence, and its slot in the
            KV cache.
        block_tables, query_start_loc, seq_lens: which tokens are whose, and where their keys are; see attention.py.
        logits_indices: [n_logits], the tokens whose logits are needed.
        rows: the requests, each with the number of its tokens that the step computes.
        ready: the requests that get a token in this step.
        sample_indices: for each of `ready`, which of the logits to sample from.
        score_slices: the requests with a prompt to score, each with its rows of the logits.
        drafts: guesses for each request, to follow the token that it brings. They go through the model in the same
            step, and each gets a row of logits, too.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    logits_indices: Tensor
    rows: list[Row] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)
    sample_indices: Sequence[int] = ()
    score_slices: Sequence[tuple[Request, slice]] = ()
    drafts: Mapping[Request, list[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: list[Row],
        manager: BlockManager,
        device: torch.device,
        drafts: Mapping[Request, list[int]] = MappingProxyType({}),
    ) -> "Batch":
        token_ids, positions, slots, query_start_loc, seq_lens, logits_indices, ready = [], [], [], [0], [], [], []
        sample_indices, score_slices = [], []
        for request, num_tokens, is_ready in rows:
            draft = drafts.get(request, [])
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens + len(draft)
            if request.prompt_logprobs is not None and (needed := request.prompt_logprobs.positions(start, end)):
                score_slices.append((request, slice(len(logits_indices), len(logits_indices) + len(needed))))
                logits_indices += [len(token_ids) + position - start for position in needed]
            token_ids += request.new_token_ids(num_tokens) + draft
            positions += range(start, end)
            slots += manager.slot_mapping(request, start, end)
            query_start_loc.append(len(token_ids))
            seq_lens.append(end)
            if is_ready:
                ready.append(request)
                sample_indices.append(len(logits_indices))
                logits_indices += range(len(token_ids) - 1 - len(draft), len(token_ids))
        tensor = functools.partial(torch.tensor, dtype=torch.int64, device=device)
        return cls(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            slot_mapping=tensor(slots),
            block_tables=tensor(pad_tables([manager.tables[row.request] for row in rows])),
            query_start_loc=tensor(query_start_loc),
            seq_lens=tensor(seq_lens),
            logits_indices=tensor(logits_indices),
            rows=rows,
            ready=ready,
            sample_indices=sample_indices,
            score_slices=score_slices,
            drafts=drafts,
        )

    def verified(self) -> "Batch":
        """What comes next in the same step: the requests whose new token is the one that was guessed. The guess was the
        input of a row, so the logits that follow the token are there, and this batch has no tokens to compute."""
        right = [request for request in self.ready if self.was_right(request)]
        at = dict(zip(self.ready, self.sample_indices, strict=True))
        return replace(
            self,
            token_ids=self.token_ids[:0],
            rows=[Row(request, 1, ready=True) for request in right],
            ready=right,
            sample_indices=[at[request] + 1 for request in right],
            score_slices=(),
            drafts={request: self.drafts[request][1:] for request in right},
        )

    def was_right(self, request: Request) -> bool:
        """Whether a request's new token is the one that was guessed, and more may follow."""
        draft = self.drafts.get(request)
        return bool(draft) and not request.finished and request.output_token_ids[-1] == draft[0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def to_sample(self, logits: Tensor) -> list[Tensor]:
        """The rows of the logits to sample from, not copied: [n_logits, vocab_size] -> n_ready x [vocab_size]"""
        return [logits[i] for i in self.sample_indices]


def pad_tables(tables: list[list[int]]) -> list[list[int]]:
    """Block tables padded to the same length with zeros, which are never read."""
    width = max(map(len, tables))
    return [table + [0] * (width - len(table)) for table in tables]
