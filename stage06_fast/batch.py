"""The input of one step, as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .block_manager import BlockManager
from .request import Request
from .scheduler import Row


@dataclass(frozen=True)
class Batch:
    """The tokens of all requests of a step one after another, without padding.

    Attributes:
        token_ids, positions, slot_mapping: [num_tokens], each token's position in its sequence, and its place in the
            KV cache.
        block_tables, query_start_loc, seq_lens: which tokens are whose, and where their keys are; see attention.py.
        logits_indices: [n_logits], the tokens whose logits are needed.
        rows: the requests, each with the number of its tokens that the step computes.
        ready: the requests that get a token in this step.
        sampled, scored: rows of the logits: one for each of `ready`, and the rows that score a prompt.
        tables: the blocks of each row.
        block_copies: (from, to) of the blocks to copy before the step.
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
    sampled: Sequence[int] = ()
    scored: Sequence[tuple[Request, slice]] = ()
    tables: Sequence[list[int]] = ()
    block_copies: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, rows: list[Row], manager: BlockManager, block_copies: Sequence[tuple[int, int]] = ()) -> "Batch":
        token_ids, positions, slots, query_start_loc, seq_lens, logits_indices, ready = [], [], [], [0], [], [], []
        sampled, scored = [], []
        for request, num_tokens, is_ready in rows:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            if to_score := request.to_score(num_tokens):
                scored.append((request, slice(len(logits_indices), len(logits_indices) + len(to_score))))
                logits_indices += [len(token_ids) + position - start for position in to_score]
            token_ids += request.new_token_ids(num_tokens)
            positions += range(start, end)
            slots += manager.slot_mapping(request, start, end)
            query_start_loc.append(len(token_ids))
            seq_lens.append(end)
            if is_ready:
                ready.append(request)
                sampled.append(len(logits_indices))
                logits_indices.append(len(token_ids) - 1)
        tables = [manager.block_table(row.request) for row in rows]
        return cls(
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device="cpu"),
            positions=torch.tensor(positions, dtype=torch.int64, device="cpu"),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device="cpu"),
            block_tables=torch.tensor(pad_tables(tables), dtype=torch.int64, device="cpu"),
            query_start_loc=torch.tensor(query_start_loc, dtype=torch.int64, device="cpu"),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int64, device="cpu"),
            logits_indices=torch.tensor(logits_indices, dtype=torch.int64, device="cpu"),
            rows=rows,
            ready=ready,
            sampled=sampled,
            scored=scored,
            tables=tables,
            block_copies=block_copies,
        )

    def to(self, device: torch.device) -> "Batch":
        """This batch with its tensors on a device."""
        if device.type == "cpu":
            return self
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def to_sample(self, logits: Tensor) -> Tensor:
        """The rows of the logits to sample from: [n_logits, vocab_size] -> [n_ready, vocab_size]"""
        return logits if self.sampled == [*range(len(logits))] else logits[self.sampled]


def pad_tables(tables: list[list[int]]) -> list[list[int]]:
    """Block tables padded to the same length with zeros, which are never read."""
    width = max(map(len, tables))
    return [table + [0] * (width - len(table)) for table in tables]
