"""The input of one step, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .kv_cache import KVCache
from .request import Request


@dataclass(frozen=True)
class Batch:
    """The new tokens of sequences of unequal lengths, as a rectangle: first the whole prompts, padded on the left, then
    the last token of each.

    A finished row is carried along until all are finished: it goes through the model, and its result is thrown away.

    Attributes:
        live, live_rows: the requests that are not finished, and the numbers of their rows.
        cache: keys and values of the columns before the new ones.
        token_ids: [batch, n_new]
        num_padding: [batch], how many columns of padding each row has on its left.
        num_tokens: how many of `token_ids` are tokens of live requests, not padding.
        is_prefill: whether `token_ids` are the prompts.
    """

    requests: list[Request]
    live: list[Request]
    live_rows: list[int]
    cache: KVCache
    token_ids: Tensor
    num_padding: Tensor
    num_tokens: int
    is_prefill: bool

    @classmethod
    def of(cls, requests: list[Request], cache: KVCache, device: torch.device) -> "Batch":
        prompts = [request.prompt_token_ids for request in requests]
        live_rows = [row for row, request in enumerate(requests) if not request.finished]
        longest = max(map(len, prompts))
        num_padding = [longest - len(prompt) for prompt in prompts]
        if cache.length == 0:
            new = [[0] * n + prompt for n, prompt in zip(num_padding, prompts, strict=True)]
        else:
            new = [request.output_token_ids[-1:] or [0] for request in requests]  # 0: it failed before its first token
        return cls(
            requests,
            [requests[row] for row in live_rows],
            live_rows,
            cache,
            token_ids=torch.tensor(new, dtype=torch.int64, device=device),
            num_padding=torch.tensor(num_padding, dtype=torch.int64, device=device),
            num_tokens=sum(map(len, prompts)) if cache.length == 0 else len(live_rows),
            is_prefill=cache.length == 0,
        )

    @property
    def num_padding_tokens(self) -> int:
        return self.token_ids.numel() - self.num_tokens
