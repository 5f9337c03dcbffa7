"""The engine: the loop that turns prompts into completions, one token at a time for every row of a batch."""

from collections import deque
from collections.abc import Iterator

import torch

from .batch import Batch
from .config import EngineConfig
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
            while not all(request.finished for request in rows):
                with self.stats.timing():
                    updated = self.step(rows)
                yield updated

    def next_batch(self, requests: deque[Request]) -> list[Request]:
        """The next `max_num_seqs` requests, taken from the left."""
        return [requests.popleft() for _ in range(min(self.config.max_num_seqs, len(requests)))]

    @torch.inference_mode()
    def step(self, rows: list[Request]) -> list[Request]:
        """One forward pass over all sequences of the batch, and one more token for each that is not finished."""
        batch = Batch.of(rows, self.runner.device)
        logits = self.runner.forward(batch)  # [batch, n_seq] -> [n_live, vocab_size]
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
