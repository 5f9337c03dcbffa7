"""The engine: the loop that turns prompts into completions. A batch keeps its keys and values from step to step."""

from collections import deque
from collections.abc import Iterator

import torch

from .batch import Batch
from .config import EngineConfig
from .kv_cache import KVCache
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .sampler import Token, sample
from .support.options import pick_max_model_len
from .support.stats import Stats
from .support.weights import Checkpoint


class Engine:
    """Completes requests, one batch after another.

    It keeps nothing between steps but `stats`, so several threads may use it at once (counts may then be off).

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        self.config, self.checkpoint, self.stats = config, Checkpoint(config), Stats()
        self.model_config, self.tokenizer = ModelConfig(**self.checkpoint.sizes), self.checkpoint.tokenizer
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        self.runner = Runner(config, self.model_config, self.checkpoint)

    def run(self, requests: deque[Request]) -> Iterator[list[Request]]:
        """Step until all requests are finished; yields, after each step, the requests that got a token."""
        if self.config.sort_by_length:  # prompts of similar length together: less padding
            requests = deque(sorted(requests, key=lambda request: len(request.prompt_token_ids), reverse=True))
        while requests:
            rows = self.next_batch(requests)
            cache = self.runner.new_cache(len(rows), self.cache_len(rows))
            while not all(request.finished for request in rows):
                with self.stats.timing():
                    updated = self.step(rows, cache)
                yield updated
            del cache  # before the next one is made

    def next_batch(self, requests: deque[Request]) -> list[Request]:
        """The next requests, taken from the left: at most `max_num_seqs`, and no more than fit into the KV cache."""
        room = self.runner.kv_cache_bytes // self.runner.bytes_per_token  # in tokens
        rows = [requests.popleft()]
        while requests and len(rows) < self.config.max_num_seqs:
            larger = [*rows, requests[0]]
            if len(larger) * self.cache_len(larger) > room:
                break
            rows.append(requests.popleft())
        return rows

    @staticmethod
    def cache_len(rows: list[Request]) -> int:
        """The columns that a batch's KV cache needs: the longest prompt, and every output token but the last, which
        never goes through the model."""
        return max(len(r.prompt_token_ids) for r in rows) + max(1, *(r.max_tokens for r in rows)) - 1

    @torch.inference_mode()
    def step(self, rows: list[Request], cache: KVCache) -> list[Request]:
        """One forward pass over the batch's new tokens, and one more token for each row that is not finished."""
        batch = Batch.of(rows, cache, self.runner.device)
        logits = self.runner.forward(batch)  # [batch, n_new] -> [n_live, vocab_size]; the cache is n_new longer
        tokens = [sample(row, request) for row, request in zip(logits, batch.live, strict=True)]
        return self.commit(batch, tokens)

    def commit(self, batch: Batch, tokens: list[Token | Exception]) -> list[Request]:
        """Append each token to its request, or end the request if it is an error. Count the step."""
        for request, token in zip(batch.live, tokens, strict=True):
            request.add_or_fail(token)
        self.stats.count(batch, batch.live)
        return batch.live

    def check_fits(self, request: Request) -> None:
        """Raise ValueError if there is no room to complete a request."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self.max_model_len:
            raise ValueError(
                f"{num_tokens} tokens leave no room for an output within max_model_len {self.max_model_len}"
            )
        needed, room = self.cache_len([request]) * self.runner.bytes_per_token, self.runner.kv_cache_bytes
        if needed > room:
            raise ValueError(
                f"{num_tokens} prompt tokens and up to {request.max_tokens} output tokens need {needed:,} bytes of "
                f"KV cache, kv_cache_bytes is {room:,}"
            )
