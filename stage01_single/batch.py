"""What goes through the model in a step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .request import Request


@dataclass(frozen=True)
class RowRecord:
    """What one forward pass did for one request. `phase` is "prefill" until its first token, then "decode"."""

    request_id: str
    phase: str
    num_tokens: int
    num_padding: int


@dataclass(frozen=True)
class Batch:
    """A request's whole sequence: [n_seq]."""

    request: Request
    token_ids: Tensor

    @classmethod
    def of(cls, request: Request, device: torch.device) -> "Batch":
        return cls(request, token_ids=torch.tensor(request.token_ids, device=device))

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def records(self) -> list[RowRecord]:
        """For the trace, before the step: what each row does in it."""
        phase = "decode" if self.request.output_token_ids else "prefill"
        return [RowRecord(self.request.request_id, phase, self.num_tokens, num_padding=0)]
