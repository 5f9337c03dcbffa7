"""The input of one step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .request import Request


@dataclass(frozen=True)
class Batch:
    """Whole sequences of unequal lengths as a rectangle, padded on the left.

    A finished row is carried along until all are finished: it goes through the model, and its result is thrown away.

    Attributes:
        live, live_rows: the requests that are not finished, and the numbers of their rows.
        token_ids: [batch, n_seq]
        num_padding: [batch], how many columns of padding each row has on its left.
        num_tokens: how many of `token_ids` are tokens of live requests, not padding.
    """

    requests: list[Request]
    live: list[Request]
    live_rows: list[int]
    token_ids: Tensor
    num_padding: Tensor
    num_tokens: int

    @classmethod
    def of(cls, requests: list[Request], device: torch.device) -> "Batch":
        sequences = [request.token_ids for request in requests]
        live_rows = [row for row, request in enumerate(requests) if not request.finished]
        n_seq = max(map(len, sequences))
        num_padding = [n_seq - len(sequence) for sequence in sequences]
        padded = [[0] * n + sequence for n, sequence in zip(num_padding, sequences, strict=True)]
        return cls(
            requests,
            [requests[row] for row in live_rows],
            live_rows,
            token_ids=torch.tensor(padded, dtype=torch.int64, device=device),
            num_padding=torch.tensor(num_padding, dtype=torch.int64, device=device),
            num_tokens=sum(len(sequences[row]) for row in live_rows),
        )

    @property
    def num_padding_tokens(self) -> int:
        return self.token_ids.numel() - self.num_tokens
