"""The engine: what one step does. Sequences live in blocks."""

import torch

from .batch import Batch
from .block_manager import BlockManager
from .config import EngineConfig
from .model import ModelConfig
from .request import Request
from .runner import Runner
from .sampler import Token, sample
from .scheduler import Scheduler
from .support.options import pick_max_model_len
from .support.scoring import score_prompts
from .support.stats import Stats
from .support.weights import Checkpoint


class Engine:
    """Runs requests from `add` until they end or are aborted.

    It runs in its own thread (engine_loop.py), which calls `step` as long as there is work. No other thread adds or
    removes requests, so it has no locks.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        self.config, self.checkpoint, self.stats = config, Checkpoint(config), Stats()
        self.model_config, self.tokenizer = ModelConfig(**self.checkpoint.sizes), self.checkpoint.tokenizer
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        self.runner = Runner(config, self.model_config, self.checkpoint, self.max_model_len)
        self.block_manager = BlockManager(self.runner.num_blocks, config.block_size, config.enable_prefix_caching)
        self.scheduler = Scheduler(
            self.block_manager,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.policy,
            config.watermark,
        )

    def add(self, request: Request) -> None:
        """Queue a request; one of the next steps will admit it."""
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request now; its blocks are free for the next step."""
        if not request.finished:
            request.finish("abort")
        self.scheduler.remove(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One forward pass over the rows that the scheduler picks. Each request whose tokens are now all computed
        (it is ready) gets its next one."""
        rows = self.scheduler.schedule()  # gives them blocks; if there are too few, the last by rank are preempted
        batch = Batch.of(rows, self.block_manager, self.runner.device)
        logits = self.runner.forward(batch)  # [num_tokens] -> [n_logits, vocab_size]
        score_prompts(logits, batch.score_slices)
        tokens = [sample(row, request) for row, request in zip(batch.to_sample(logits), batch.ready, strict=True)]
        return self.commit(batch, tokens)

    def commit(self, batch: Batch, tokens: list[Token | Exception]) -> list[Request]:
        """Append each token to its request, or end the request if it is an error. A request that has ended leaves the
        scheduler. Count the step. Returns the requests that got a token or an error."""
        for request, num_tokens, _ in batch.rows:
            request.num_computed_tokens += num_tokens
        kv_use = self.kv_use()  # while they still hold their memory
        for request, token in zip(batch.ready, tokens, strict=True):
            request.add_or_fail(token)
            if request.finished:
                self.scheduler.remove(request)
        self.stats.count(batch, kv_use)
        return batch.ready

    def restart(self, requests: list[Request]) -> None:
        """After a failed step, start over with these requests alone. Each keeps its tokens, and its keys and values are
        computed again."""
        self.scheduler.clear()
        for request in requests:
            request.num_computed_tokens = 0
            if not request.output_token_ids:  # as if it had not been admitted yet
                request.first_scheduled_time, request.num_cached_tokens = None, 0
            if not request.finished:
                self.scheduler.add(request)

    def kv_use(self) -> tuple[int, int]:
        """KV cache use, in tokens: (reserved, used). Shared blocks are full, so each empty slot is counted once."""
        manager = self.block_manager
        used = sum(request.num_computed_tokens for request in manager.tables)  # a shared block's for each
        empty = manager.num_held * manager.block_size - used
        reserved = (manager.num_blocks - manager.num_free) * manager.block_size
        return reserved, reserved - empty

    def check_fits(self, request: Request) -> None:
        """Raise ValueError if this engine can't complete a request: no room, or a priority that it would ignore."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens + min(1, request.params.max_tokens) > self.max_model_len:
            what = "leave no room for an output within" if request.params.max_tokens else "are more than"
            raise ValueError(f"{num_tokens} tokens {what} max_model_len {self.max_model_len}")
        total = num_tokens + request.max_tokens
        needed = self.block_manager.num_needed(max(total - 1, num_tokens))  # the last output token is never computed
        if needed > self.runner.num_blocks:
            raise ValueError(
                f"{total} tokens of prompt and output need {needed} blocks of the KV cache, there are "
                f"{self.runner.num_blocks}"
            )
        if request.priority and self.config.policy != "priority":
            raise ValueError(
                f"priority {request.priority} needs the policy 'priority', this engine's is {self.config.policy!r}"
            )
