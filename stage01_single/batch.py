"""The input of one step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .request import Request


@dataclass(frozen=True)
class Batch:
    """A request's whole sequence: [n_seq]."""

    request: Request
    token_ids: Tensor

    @classmethod
    def of(cls, request: Request, device: torch.device) -> "Batch":
        return cls(request, token_ids=torch.tensor(request.token_ids, dtype=torch.int64, device=device))

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)
