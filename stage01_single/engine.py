"""The engine: the loop that turns a prompt into a completion, a token at a time."""

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
    """Completes requests, one after the other.

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
        while requests:
            request = requests.popleft()
            while not request.finished:
                with self.stats.timing():
                    updated = self.step(request)
                yield updated

    @torch.inference_mode()
    def step(self, request: Request) -> list[Request]:
        """One forward pass over the request's whole sequence, and one more token."""
        batch = Batch.of(request, self.runner.device)
        logits = self.runner.forward(batch)  # [n_seq] -> [vocab_size]
        token = sample(logits, request)  # or the error that ends this request
        return self.commit(batch, token)

    def commit(self, batch: Batch, token: Token | Exception) -> list[Request]:
        """Append the token to its request, or end the request if it is an error. Count the step."""
        batch.request.add_or_fail(token)
        self.stats.count(batch, [batch.request])
        return [batch.request]

    def check_fits(self, request: Request) -> None:
        """Raise ValueError if the prompt leaves no room for output."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self.max_model_len:
            raise ValueError(
                f"{num_tokens} tokens leave no room for an output within max_model_len {self.max_model_len}"
            )
