"""The engine: the loop that turns prompts into completions. The next step may begin before this one has ended."""

import functools
import gc

import torch
from torch import Tensor

from .batch import Batch
from .block_manager import BlockManager
from .config import EngineConfig, pick_max_model_len
from .drafts import Drafts, sample_each
from .fast_model import enabled
from .request import Request, finished_groups
from .runner import Runner
from .scheduler import MAX_SCORED, Row, Scheduler
from .scoring import score_prompts
from .stats import Recorder
from .tokenizer import Tokenizer
from .trace import Tracer
from .turn import Turn
from .weights import find_model, read_config, tokenizer_directory


class Engine:
    """Completes requests, each from when it was added until it ends or is aborted.

    There is no `run` any more: the router (router.py) adds and aborts requests, calls `step` again and again, tells
    everybody what is new, and has the engine `start_over` if a change was cut short, by an error or a Ctrl-C.

    Attributes:
        unfinished: the requests that wait or run, in the order in which they came (a set that keeps an order).
        committed: what the last step has given to whom; the router empties it when all are told.
        aborted: who is being aborted; the same.

    Raises:
        ValueError: an option or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(self, config: EngineConfig):
        if "freeze" in enabled(config.disable):
            freeze_garbage_collector()
        self.directory = find_model(config.model, config.load_format)
        self.config, self.model_config = config, read_config(config.model, self.directory, config.load_format)
        self.max_model_len = pick_max_model_len(config.max_model_len, self.model_config.n_positions)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens must be at least max_model_len {self.max_model_len}, "
                f"got {config.max_num_batched_tokens}"
            )
        self.tokenizer = Tokenizer(tokenizer_directory(self.directory))
        self.turn = Turn()  # before anything is loaded: in a fork that would hang
        self.runner = Runner(config, self.model_config, self.directory, self.max_model_len)
        sizes = {"max_model_len": self.max_model_len, "bytes_per_token": self.runner.bytes_per_token}
        self.tracer = Tracer(vars(config), self.tokenizer, **sizes, num_blocks=self.runner.num_blocks)
        self.block_manager = BlockManager(
            self.runner.num_blocks,
            config.block_size,
            config.enable_prefix_caching,
            config.watermark,
            self.tracer.tell,
        )
        self.scheduler = Scheduler(
            self.block_manager,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.policy,
            config.enable_chunked_prefill,
            self.tracer.tell,
        )
        if self.runner.device.type == "cuda" and "overlap" in enabled(config.disable):
            self.runner.run_ahead(self.scheduler)
        self.recorder = Recorder(self.tracer)
        self.unfinished: dict[Request, None] = {}
        self.committed: Drafts = []
        self.aborted: list[Request] = []

    def fits(self, request: Request) -> None:
        """Raise ValueError if a request can't be completed here: for want of room, or because of its priority."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens + min(1, request.params.max_tokens) > self.max_model_len:
            what = "leave no room for an output within" if request.params.max_tokens else "are more than"
            raise ValueError(f"{num_tokens} tokens {what} max_model_len {self.max_model_len}")
        if not self.config.enable_chunked_prefill and len(request.to_score(num_tokens)) > MAX_SCORED:
            raise ValueError(f"log-probabilities of more than {MAX_SCORED} prompt tokens need chunked prefill")
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

    def add(self, request: Request) -> None:
        """Put a request into the queue; the next steps will take it up."""
        self.unfinished[request] = None
        self.scheduler.add(request)
        self.tracer.queued(request)

    def abort(self, request: Request) -> None:
        """End a request as it is, all of its completions; its blocks are free for the next step."""
        for completion in request.group:
            if not completion.finished:
                completion.progress.finish("abort")
                self.tracer.finished(completion)
            self.scheduler.remove(completion)
        self.unfinished.pop(request, None)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One forward pass over the rows that the scheduler picks. A request gets a token if this computes the last of
        its sequence (it is ready). Returns those that got one, or were aborted."""
        self.tracer.mark("schedule")
        rows = self.scheduler.schedule()  # gives them blocks; if there are too few, the last in the queue wait again
        if not rows:
            return []
        self.tracer.mark("build")
        batch = Batch.of(rows, self.block_manager)
        with self.recorder.step(batch, self.block_manager, self.kv_use(rows)):
            logits = self.runner.forward(batch)  # [num_tokens] -> [n_asked, vocab_size]
            self.tracer.mark("sample")
            errors = score_prompts(logits, batch.scored)
            drafts, failed = self.sample(logits, batch)
            self.tracer.mark("commit")
            return self.commit(rows, drafts, errors | failed)

    def sample(self, logits: Tensor, batch: Batch) -> tuple[Drafts, dict[Request, Exception]]:
        """As `sample_each`. Behind a prompt as many of its completions begin as have a place, all with its logits."""
        rows, num_places = [], self.scheduler.num_places  # of logits: (which, for whom)
        for i, request in zip(batch.sampled, batch.ready, strict=True):
            beginning = request.beginning[: 1 + num_places]
            num_places -= len(beginning) - 1
            rows += [(i, completion) for completion in beginning]
        numbers = [i for i, _ in rows]
        if numbers != [*range(len(logits))]:
            logits = logits[numbers]  # [n_asked, vocab_size] -> [n_rows, vocab_size]
        return sample_each(logits, [completion for _, completion in rows], functools.partial(self.runner.sample, batch))

    def commit(self, rows: list[Row], drafts: Drafts, errors: dict[Request, Exception]) -> list[Request]:
        """Each draft becomes its request's progress, which is a token longer; finished requests leave.

        Until `committed` is set no request has its new token: what failed before that can be computed again, after
        `start_over`. Once it is set the step has happened, and `start_over` completes it.
        """
        drafts = [(request, draft) for request, draft in drafts if request not in errors]
        if errors and not drafts:
            raise next(iter(errors.values()))  # nobody's sampling succeeds: the engine fails, not a request
        failed = dict.fromkeys(c for request in errors for c in request.group if not c.finished)
        self.committed, self.aborted = drafts, [*failed]
        for request, num_tokens, _ in rows:
            request.num_computed_tokens += num_tokens
        for request, draft in drafts:
            request.progress = draft
            self.tracer.got_token(request)
        ended = [request for request, _ in drafts if request.finished]
        # Behind a prompt its other completions begin, in the blocks of the first: before it lets go of them.
        for request in [r for r, _ in drafts if not r.index and len(r.output_token_ids) <= 1]:
            for child in [c for c in request.group[1:] if not c.finished]:
                self.scheduler.fork(request, child)
        for request in ended:
            self.scheduler.remove(request)
        for request in finished_groups(ended):
            self._finish(request)
        for request in dict.fromkeys(completion.group[0] for completion in errors):
            self.abort(request)
        self.recorder.stats.num_output_tokens += sum(request.max_tokens > 0 for request, _ in drafts)
        self.recorder.stats.num_preemptions += self.scheduler.take_preemptions()
        return [request for request, _ in drafts] + self.aborted

    def start_over(self) -> list[Request]:
        """After a change that was cut short: complete a commit or an abort that had begun, and go on from what is
        certain, the requests and their tokens: all wait again, to be computed anew. Returns those with news."""
        for request, draft in self.committed:
            request.progress = draft
        if self.runner.ahead is not None:
            self.runner.ahead.clear()
        self.block_manager.start_over()
        self.scheduler.start_over(self.unfinished)
        self.tracer.restarted(self.unfinished)
        for request in dict.fromkeys(completion.group[0] for completion in self.aborted):
            self.abort(request)
        for request in finished_groups(self.unfinished):
            self._finish(request)
        return [request for request, _ in self.committed] + self.aborted

    def rest(self) -> None:
        """There is nothing to do; call this between two steps. Whoever looks on sees who was aborted."""
        self.recorder.rest(self.block_manager, self.kv_use([]))

    def kv_use(self, rows: list[Row]) -> tuple[int, int]:
        """In tokens, what of the KV cache is reserved, and what running requests will use of it after this step."""
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


@functools.cache  # once
def freeze_garbage_collector() -> None:
    """Let the garbage collector leave alone what is there now: some 170,000 objects of torch and others, which it
    would look through again every few hundred steps, 40 ms each time."""
    gc.collect()
    gc.freeze()
