"""The engine: the loop that turns prompts into completions. A batch keeps its keys and values from step to step."""

from collections.abc import Iterator

import torch

from .batch import Batch
from .config import EngineConfig, pick_max_model_len
from .kv_cache import KVCache
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
        sizes = {"max_model_len": self.max_model_len, "bytes_per_token": self.runner.bytes_per_token}
        self.tracer = Tracer(vars(config), self.tokenizer, **sizes)
        self.recorder = Recorder(self.tracer)

    def fits(self, request: Request) -> None:
        """Raise ValueError if a request can't be completed here, for want of room."""
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

    def run(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Step until all requests are finished; yields, after each step, those that got a token."""
        for request in requests:
            self.tracer.queued(request)
        batches = self.batches(requests)[::-1]
        del requests  # what is done is its receiver's to keep: results may be larger than memory
        try:
            while batches:
                for slot, request in enumerate(batches[-1]):
                    self.tracer.tell("admitted", request, slot=slot)
                cache = self.runner.new_cache(len(batches[-1]), self.cache_len(batches[-1]))
                while not all(request.finished for request in batches[-1]):
                    yield self.turn.run(self.step, batches[-1], cache)
                del cache  # before the next one is made
                batches.pop()
        finally:
            self.tracer.abandoned([request for rows in batches for request in rows])

    def batches(self, requests: list[Request]) -> list[list[Request]]:
        """The requests in batches of `max_num_seqs` whose KV cache fits, the longest prompts first if sorted."""
        if self.config.sort_by_length:
            requests = sorted(requests, key=lambda request: len(request.prompt_token_ids), reverse=True)
        room = self.runner.kv_cache_bytes // self.runner.bytes_per_token  # in tokens
        batches: list[list[Request]] = []
        for request in requests:
            larger = [*batches[-1], request] if batches else []
            if larger and len(larger) <= self.config.max_num_seqs and len(larger) * self.cache_len(larger) <= room:
                batches[-1] = larger
            else:
                batches.append([request])
        return batches

    @staticmethod
    def cache_len(rows: list[Request]) -> int:
        """The columns that a batch's KV cache needs: the longest prompt, and every output token but the last, which
        never goes through the model."""
        return max(len(r.prompt_token_ids) for r in rows) + max(r.max_tokens for r in rows) - 1

    @torch.inference_mode()
    def step(self, rows: list[Request], cache: KVCache) -> list[Request]:
        """One forward pass over what is new in the batch, and one more token for each row that is not finished."""
        self.tracer.mark("build")
        batch = Batch.of(rows, cache, self.runner.device)
        with self.recorder.step(batch), self.runner.thread_limit:
            logits = self.runner.forward(batch)  # [n_rows, n_new] -> [n_live, vocab_size]; the cache is n_new longer
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
