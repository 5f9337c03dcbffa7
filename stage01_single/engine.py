"""The engine: the loop that turns a prompt into a completion, a token at a time."""

from collections.abc import Iterator

import torch

from .batch import Batch
from .config import EngineConfig, pick_max_model_len
from .request import Request
from .runner import Runner
from .sampler import sample
from .stats import Recorder
from .tokenizer import Tokenizer
from .trace import Tracer
from .turn import Turn
from .weights import find_model, read_config, tokenizer_directory


class Engine:
    """Completes requests, one after the other.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        directory = find_model(config.model, config.load_format)
        self.config, self.model_config = config, read_config(config.model, directory, config.load_format)
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        self.tokenizer = Tokenizer(tokenizer_directory(directory))
        self.turn = Turn()  # before anything is loaded: in a fork that would hang
        self.runner = Runner(config, self.model_config, directory)
        self.tracer = Tracer(vars(config), self.tokenizer, max_model_len=self.max_model_len)
        self.recorder = Recorder(self.tracer)

    def fits(self, request: Request) -> None:
        """Raise ValueError if a request can't be completed here, for want of room."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self.max_model_len:
            raise ValueError(
                f"{num_tokens} tokens leave no room for an output within max_model_len {self.max_model_len}"
            )

    def run(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Step until all requests are finished; yields, after each step, those that got a token."""
        for request in requests:
            self.tracer.queued(request)
        waiting = requests[::-1]
        del requests  # what is done is its receiver's to keep: results may be larger than memory
        try:
            while waiting:
                self.tracer.tell("admitted", waiting[-1])
                while not waiting[-1].finished:
                    yield self.turn.run(self.step, waiting[-1])
                waiting.pop()
        finally:
            self.tracer.abandoned(waiting)

    @torch.inference_mode()
    def step(self, request: Request) -> list[Request]:
        """One forward pass over the request's whole sequence, and one more token."""
        self.tracer.mark("build")
        batch = Batch.of(request, self.runner.device)
        with self.recorder.step(batch), self.runner.thread_limit:
            logits = self.runner.forward(batch)  # [n_seq] -> [vocab_size]
            self.tracer.mark("sample")
            token = sample(logits, request)
            self.tracer.mark("commit")
            return self.commit(request, token)

    def commit(self, request: Request, token: tuple) -> list[Request]:
        """Give the token to its request, which may end with it."""
        request.progress.add(*token)
        self.recorder.add_token(request)
        return [request]
