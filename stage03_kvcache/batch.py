"""What goes through the model in a step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .kv_cache import KVCache
from .request import Request
from .trace import RowRecord


@dataclass(frozen=True)
class Batch:
    """What is new in sequences of unequal lengths, as a rectangle: the whole prompts, padded on the left, and from then
    on the last token of each.

    A row that is finished is carried along until all are: it goes through the model with the others, for nothing.

    Attributes:
        live: the numbers of the rows that are not finished.
        cache: keys and values of the columns before the new ones.
        token_ids: [n_rows, n_new]
        num_padding: [n_rows], how many columns at the left of each row are not its own.
        num_tokens: how many of the new tokens are of use.
        kv_use: in tokens, what the cache has room for, and what live requests use of it.
    """

    requests: list[Request]
    live: list[int]
    cache: KVCache
    token_ids: Tensor
    num_padding: Tensor
    num_tokens: int
    kv_use: tuple[int, int]

    @classmethod
    def of(cls, requests: list[Request], cache: KVCache, device: torch.device) -> "Batch":
        prompts = [request.prompt_token_ids for request in requests]
        live = [row for row, request in enumerate(requests) if not request.finished]
        longest = max(map(len, prompts))
        num_padding = [longest - len(prompt) for prompt in prompts]
        if cache.length == 0:
            new = [[0] * n + prompt for n, prompt in zip(num_padding, prompts, strict=True)]
        else:
            new = [request.output_token_ids[-1:] for request in requests]
        return cls(
            requests,
            live,
            cache,
            token_ids=torch.tensor(new, dtype=torch.int64, device=device),
            num_padding=torch.tensor(num_padding, dtype=torch.int64, device=device),
            num_tokens=sum(map(len, prompts)) if cache.length == 0 else len(live),
            kv_use=(cache.num_tokens, sum(len(requests[row].token_ids) for row in live)),
        )

    @property
    def num_padding_tokens(self) -> int:
        return self.token_ids.numel() - self.num_tokens

    def records(self) -> list[RowRecord]:
        """For the trace, before the step: what each row does in it."""
        n_new, num_padding, records = self.token_ids.shape[1], self.num_padding.tolist(), []
        for slot, (request, num) in enumerate(zip(self.requests, num_padding, strict=True)):
            if self.cache.length == 0:
                records.append(RowRecord.of(request, 0, n_new - num, num_padding=num, slot=slot))
            else:
                live, start = not request.finished, len(request.token_ids) - 1
                records.append(RowRecord.of(request, start, int(live), num_padding=int(not live), slot=slot))
        return records
