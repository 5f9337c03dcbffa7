"""The engine: the loop that turns prompts into completions; requests join and leave it at every step."""

import logging

import torch
from torch import Tensor

from .batch import Batch
from .block_manager import BlockManager
from .config import EngineConfig, pick_max_model_len
from .request import Request, RequestState, finished_groups
from .runner import Runner
from .sampler import sample
from .scheduler import Row, Scheduler
from .stats import Recorder
from .tokenizer import Tokenizer
from .weights import find_model, read_config, tokenizer_directory


class Engine:
    """Completes requests, each from when it was added until it ends or is aborted.

    What may be cut short in the middle (by an error, or by a Ctrl-C between any two lines), and who is told what, is
    the router's business.

    Attributes:
        unfinished: the requests that wait or run, in the order in which they came.
        committed: what the last step has given to whom, until all are told.
        aborted: who is being aborted, until all are told.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        directory = find_model(config.model, config.load_format)
        self.config, self.model_config = config, read_config(config.model, directory, config.load_format)
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens must be at least max_model_len {self.max_model_len}, "
                f"got {config.max_num_batched_tokens}"
            )
        self.tokenizer = Tokenizer(tokenizer_directory(directory))
        self.runner = Runner(config, self.model_config, directory, self.max_model_len)
        self.block_manager = BlockManager(
            self.runner.num_blocks, config.block_size, config.enable_prefix_caching, config.watermark
        )
        self.scheduler = Scheduler(
            self.block_manager,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.policy,
            config.enable_chunked_prefill,
        )
        self.recorder = Recorder(keep=config.trace)
        self.unfinished: dict[Request, None] = {}
        self.committed: list[tuple[Request, dict]] = []
        self.aborted: list[Request] = []

    def fits(self, request: Request) -> None:
        """Raise ValueError if a request can't be completed here: for want of room, or because of its priority."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self.max_model_len:
            raise ValueError(
                f"{num_tokens} tokens leave no room for an output within max_model_len {self.max_model_len}"
            )
        total = num_tokens + request.max_tokens
        needed = self.block_manager.num_needed(total - 1)  # the last token is never computed
        if needed > self.runner.num_blocks:
            raise ValueError(
                f"{total} tokens of prompt and output need {needed} blocks of the KV cache, there are "
                f"{self.runner.num_blocks}"
            )
        if request.priority and self.config.policy != "priority":
            raise ValueError(
                f"priority {request.priority} needs the policy 'priority', this engine's is {self.config.policy!r}"
            )

    def add(self, request: Request) -> None:
        """Put a request into the queue; the next steps will take it up."""
        self.unfinished[request] = None
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request as it is, all of its completions; its blocks are free for the next step."""
        for completion in request.group:
            self.scheduler.remove(completion)
            if not completion.finished:
                completion.abort()
        self.unfinished.pop(request, None)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One forward pass, and one token more for each request that is up to date. Returns those that have news."""
        rows = self.scheduler.schedule()
        if not rows:
            return []
        batch = Batch.of(rows, self.block_manager)
        with self.recorder.step(batch, self.block_manager, self.kv_use(rows)), self.runner.thread_limit:
            logits = self.runner.forward(batch)  # [num_tokens] -> [n_ready, vocab_size]
            drafts, failed = self.sample(logits, batch.ready)
            return self.commit(rows, drafts, failed)

    def sample(self, logits: Tensor, ready: list[Request]) -> tuple[list[tuple[Request, dict]], list[Request]]:
        """As `sample_each`. The first logits of a request with n > 1 are the first of all its completions, which may be
        many: they are sampled in parts, so that the sampler's memory is bounded."""
        rows = []  # of logits: (which, for whom)
        for i, request in enumerate(ready):
            rows += [(i, completion) for completion in request.beginning]
        drafts, failed = [], {}
        for start in range(0, len(rows), self.config.max_num_seqs):
            numbers = [i for i, _ in rows[start : start + self.config.max_num_seqs]]
            requests = [completion for _, completion in rows[start : start + self.config.max_num_seqs]]
            part = logits if numbers == [*range(len(logits))] else logits[numbers]  # [n_part, vocab_size]
            some, errors = sample_each(part, requests)
            drafts, failed = drafts + some, failed | errors
        if failed and not drafts:
            raise next(iter(failed.values()))
        return drafts, list(failed)

    def commit(self, rows: list[Row], drafts: list[tuple[Request, dict]], failed: list[Request]) -> list[Request]:
        """The drafts become their requests, which are a token longer; who ended leaves.

        Until here no request has a token more: whatever failed before, the step can be taken again. With the second
        line the step has happened, whatever interrupts what follows: `start_over` completes it.
        """
        aborted = [c for request in failed for c in request.group[0].group if not c.finished]
        self.committed, self.aborted = drafts, aborted
        for request, num_tokens, _ in rows:
            request.num_computed_tokens += num_tokens
        for request, draft in drafts:
            request.become(draft)
        ended = [request for request, _ in drafts if request.finished]
        # Completions that begin with this token share the blocks of the first, which it therefore still has to hold.
        for completion in [request for request, _ in drafts if request.state is RequestState.WAITING]:
            self.scheduler.fork(completion.group[0], completion)
        for request in ended:
            self.scheduler.remove(request)
        for request in finished_groups(ended):
            self._finish(request)
        for request in dict.fromkeys(completion.group[0] for completion in failed):
            self.abort(request)
        self.recorder.stats.num_output_tokens += len(drafts)
        self.recorder.stats.num_preemptions += self.scheduler.take_preemptions()
        return [request for request, _ in drafts] + self.aborted

    def start_over(self) -> list[Request]:
        """After a change that was cut short: complete a commit or an abort that had begun, and go on from what is
        certain, the requests and their tokens: all wait again, to be computed anew. Returns those with news."""
        for request, draft in self.committed:
            request.become(draft)
        self.block_manager.start_over()
        self.scheduler.start_over(self.unfinished)
        for request in dict.fromkeys(completion.group[0] for completion in self.aborted):
            self.abort(request)
        for request in finished_groups(self.unfinished):
            self._finish(request)
        return [request for request, _ in self.committed] + self.aborted

    def kv_use(self, rows: list[Row]) -> tuple[int, int]:
        """In tokens, what of the KV cache is reserved, and what live requests use of it after a step."""
        manager = self.block_manager
        filled = sum([r.num_computed_tokens for r in manager.holders]) + sum([row.num_tokens for row in rows])
        # Room that is not filled is only behind a sequence's last token, in blocks that nobody shares.
        unused = manager.num_held * manager.block_size - filled
        reserved = (manager.num_blocks - manager.num_free) * manager.block_size
        return reserved, reserved - unused

    def _finish(self, request: Request) -> None:
        """Let go of a request that has ended by itself, all of its completions."""
        for completion in request.group:
            self.scheduler.remove(completion)
        self.unfinished.pop(request, None)
        self.recorder.finished(request)


def sample_each(logits: Tensor, requests: list[Request]) -> tuple[list[tuple[Request, dict]], dict[Request, Exception]]:
    """What each request will be with one token more (`Request.after`), and the errors of those for which it fails: the
    others go on."""
    drafts, errors = [], {}
    try:
        results = sample(logits, requests)
    except Exception:
        results = [None] * len(requests)  # each by itself
    for i, (request, result) in enumerate(zip(requests, results, strict=True)):
        try:
            if result is None:
                (result,) = sample(logits[i : i + 1], [request])
            drafts.append((request, request.after(*result)))
        except Exception as error:
            errors[request] = error
            logging.getLogger(__name__).warning("request %s is aborted: %s", request.request_id, error)
    return drafts, errors
