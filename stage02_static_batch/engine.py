"""The engine: the loop that turns prompts into completions, one token at a time for every row of a batch."""

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
    """Completes requests, one batch after another.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        self.directory = find_model(config.model, config.load_format)
        self.config, self.model_config = config, read_config(config.model, self.directory, config.load_format)
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        self.tokenizer = Tokenizer(tokenizer_directory(self.directory))
        self.turn = Turn()  # before anything is loaded: in a fork that would hang
        self.runner = Runner(config, self.model_config, self.directory)
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
        batches = self.batches(requests)[::-1]
        del requests  # what is done is its receiver's to keep: results may be larger than memory
        try:
            while batches:
                for request in batches[-1]:
                    self.tracer.tell("admitted", request)
                while not all(request.finished for request in batches[-1]):
                    yield self.turn.run(self.step, batches[-1])
                batches.pop()
        finally:
            self.tracer.abandoned([request for rows in batches for request in rows])

    def batches(self, requests: list[Request]) -> list[list[Request]]:
        """The requests in batches of `max_num_seqs`, the longest prompts first if sorted."""
        size = self.config.max_num_seqs
        if self.config.sort_by_length:
            requests = sorted(requests, key=lambda request: len(request.prompt_token_ids), reverse=True)
        return [requests[i : i + size] for i in range(0, len(requests), size)]

    @torch.inference_mode()
    def step(self, rows: list[Request]) -> list[Request]:
        """One forward pass over all sequences of the batch, and one more token for each that is not finished."""
        self.tracer.mark("build")
        batch = Batch.of(rows, self.runner.device)
        with self.recorder.step(batch), self.runner.thread_limit:
            logits = self.runner.forward(batch)  # [n_rows, n_seq] -> [n_live, vocab_size]
            self.tracer.mark("sample")
            live = [rows[i] for i in batch.live]
            tokens = sample(logits, live)
            self.tracer.mark("commit")
            return self.commit(live, tokens)

    def commit(self, requests: list[Request], tokens: list[tuple]) -> list[Request]:
        """Give the tokens to their requests, which may end with them."""
        for request, token in zip(requests, tokens, strict=True):
            request.progress.add(*token)
            self.recorder.add_token(request)
        return requests
