"""The input of one step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .request import Request
from .scheduler import Row


@dataclass(frozen=True)
class Batch:
    """The tokens of all requests of a step one after another, without padding.

    Rows with a single token (nearly all are decodes) come first; the others (prompts or pieces of one, or a sequence
    that is computed again) are runs of tokens.

    Attributes:
        ready: the requests that are up to date with this step: each gets a token.
        token_ids, positions, slots: [num_tokens], each token with its position in its sequence and its request's slot.
        last: [n_asked], the tokens whose logits are needed.
        sampled, scored: which of the logits that follow are for the sampler, one for each of `ready`, and which are for
            log-probabilities of whose prompt.
        num_single: how many rows have a single token.
        num_slots, n_seq: what has to be read of the cache for those: its first slots, so many tokens of each.
        runs: of each other row (its first token in the step, the end of its tokens there, slot, n_seq).
    """

    rows: list[Row]
    ready: list[Request]
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor
    num_single: int
    num_slots: int
    n_seq: int
    runs: list[tuple[int, int, int, int]]
    sampled: list[int]
    scored: list[tuple[Request, slice]]

    @classmethod
    def of(cls, rows: list[Row], device: torch.device) -> "Batch":
        # Single tokens first.
        rows = [row for row in rows if row.num_tokens == 1] + [row for row in rows if row.num_tokens > 1]
        token_ids, positions, slots, last, ready, singles, runs = [], [], [], [], [], [], []
        sampled, scored = [], []
        for request, num_tokens, is_ready in rows:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            if num_tokens == 1:
                singles.append((request.slot + 1, end))
            else:
                runs.append((len(token_ids), len(token_ids) + num_tokens, request.slot, end))
            if to_score := request.to_score(num_tokens):
                scored.append((request, slice(len(last), len(last) + len(to_score))))
                last += [len(token_ids) + position - start for position in to_score]
            token_ids += request.new_token_ids(num_tokens)
            positions += range(start, end)
            slots += [request.slot] * num_tokens
            if is_ready:
                ready.append(request)
                sampled.append(len(last))
                last.append(len(token_ids) - 1)
        return cls(
            rows,
            ready,
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            slots=torch.tensor(slots, dtype=torch.int64, device=device),
            last=torch.tensor(last, dtype=torch.int64, device=device),
            num_single=len(singles),
            num_slots=max((slot for slot, _ in singles), default=0),
            n_seq=max((end for _, end in singles), default=0),
            runs=runs,
            sampled=sampled,
            scored=scored,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def to_sample(self, logits: Tensor) -> Tensor:
        """Of the logits those that are for the sampler: [n_asked, vocab_size] -> [n_ready, vocab_size]"""
        return logits if self.sampled == [*range(len(logits))] else logits[self.sampled]
