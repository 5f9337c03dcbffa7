"""The engine: takes prompts, runs the model step by step, gives back completions."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor
from tqdm import tqdm

from .kv_cache import KVCache, bytes_per_token, check_cache_bytes, default_cache_bytes
from .model import GPT2, Step
from .outputs import RequestOutput, RowRecord, Stats, StepRecord, StreamEvent
from .request import Request
from .sampler import derive_seed, sample
from .sampling_params import SamplingParams, whole_number
from .scheduler import POLICIES, Scheduler
from .threads import ThreadLimit
from .tokenizer import Tokenizer
from .weights import find_model, load_weights, read_config, tokenizer_directory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LLM:
    """A GPT-2 that completes prompts.

    Args:
        model: "tinytales" (bundled), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", or a directory in Hugging Face
            layout.
        dtype: "float32", "bfloat16", "float16", or "auto": float32 on a CPU, bfloat16 on CUDA.
        device: "cpu", "cuda", "cuda:1", or "auto": CUDA if there is one.
        load_format: "auto" reads the checkpoint; "dummy" makes random weights of the model's sizes, without a download.
        max_model_len: the longest prompt and output together, in tokens; None is the model's context.
        max_num_seqs: how many requests run at once.
        max_num_batched_tokens: the most tokens of a step; a longer prompt is prefilled in several.
        policy: who joins first: "fcfs", "priority" (the lowest first) or "shortest" (prompt, with aging).
        enable_chunked_prefill: False prefills every prompt in a single step, which then takes as long as it takes.
        kv_cache_bytes: memory for the KV cache: as many slots of max_model_len tokens, up to max_num_seqs, as it holds.
            None is half of what is free.
        seed: requests without a seed of their own take one from it and from their number, so a whole run repeats.
        trace: keep a `StepRecord` of every forward pass in `llm.trace`.

    Attributes:
        stats: counters of everything the engine has done.
        trace: list of StepRecord, None unless asked for.

    Raises:
        ValueError: an argument or a file of the model is wrong; the message names it.
        OSError: the model can't be fetched or read.
    """

    def __init__(
        self,
        model: str = "tinytales",
        *,
        dtype: str = "auto",
        device: str = "auto",
        load_format: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        policy: str = "fcfs",
        enable_chunked_prefill: bool = True,
        kv_cache_bytes: int | None = None,
        seed: int = 0,
        trace: bool = False,
    ):
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be 'auto' or 'dummy', got {load_format!r}")
        max_num_seqs = whole_number("max_num_seqs", max_num_seqs, 1)
        if kv_cache_bytes is not None:
            kv_cache_bytes = whole_number("kv_cache_bytes", kv_cache_bytes, 1)
        max_num_batched_tokens = whole_number("max_num_batched_tokens", max_num_batched_tokens, 1)
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        self.seed = whole_number("seed", seed, 0, 2**64 - 1)
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        directory = find_model(str(model), load_format)
        config = read_config(str(model), directory, load_format)
        self.max_model_len = pick_max_model_len(max_model_len, config.n_positions)
        self.tokenizer = Tokenizer(tokenizer_directory(directory))
        with torch.device("meta"):  # no memory yet: load_weights brings the tensors
            self.model = GPT2(config).eval()
        load_weights(self.model, directory, load_format, self.dtype, self.device)
        if not enable_chunked_prefill and max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens must be at least max_model_len {self.max_model_len}, "
                f"got {max_num_batched_tokens}"
            )
        self.bytes_per_token = bytes_per_token(config.n_layer, config.n_embd, self.dtype)
        self.kv_cache_bytes = kv_cache_bytes or default_cache_bytes(self.device)
        check_cache_bytes(self.kv_cache_bytes, self.device)
        slot_bytes = self.max_model_len * self.bytes_per_token
        self.max_num_seqs = min(max_num_seqs, self.kv_cache_bytes // slot_bytes)
        if self.max_num_seqs < 1:
            raise ValueError(
                f"a slot of max_model_len {self.max_model_len} tokens needs {slot_bytes:,} bytes of KV cache, "
                f"kv_cache_bytes is {self.kv_cache_bytes:,}"
            )
        head_dim = config.n_embd // config.n_head
        self.cache = KVCache(
            config.n_layer, self.max_num_seqs, config.n_head, self.max_model_len, head_dim, self.dtype, self.device
        )
        self.scheduler = Scheduler(self.max_num_seqs, max_num_batched_tokens, policy, enable_chunked_prefill)
        self._unfinished: dict[Request, None] = {}  # in the order in which they came
        self._by_id: dict[str, Request] = {}  # those of `add_request`; those of `generate` have ids of their own
        self._news: list[Request] = []  # what steps did for requests of `add_request` and `step` has not told yet
        self.lock = threading.RLock()  # threads take turns
        self._changing = False  # true after a change that was cut short, too: see `_change`
        self._committed: list[tuple[Request, dict]] = []  # the tokens of the step that is being committed
        self.thread_limit = ThreadLimit()
        self.stats = Stats()
        self.trace: list[StepRecord] | None = [] if trace else None
        self._numbers = itertools.count()  # of requests; taking one needs no lock

    # --- What users call --------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done; results come in the order of the prompts.

        Args:
            prompts: texts or lists of token ids; a single text is one prompt.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar on stderr.
            priority: one per prompt, under the policy "priority"; lower is admitted earlier.

        Raises:
            ValueError: a prompt or parameter is wrong; raised before anything is computed, names the prompt's index.
        """
        requests = self._make_requests(prompts, sampling_params, priority)
        with tqdm(total=len(requests), unit="request", disable=not use_tqdm) as bar:
            for num_finished in self._run(requests, lambda news: sum(request.finished for request in news)):
                bar.update(num_finished)
        return [request.output() for request in requests]

    def as_completed(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there."""
        requests = self._make_requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def results(news: list[Request]) -> list[tuple[int, RequestOutput]]:
            return [(index.pop(request), request.output()) for request in news if request.finished]

        return (result for some in self._run(requests, results) for result in some)

    def stream(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: Sequence[int] | None = None,
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of an index, joined, are the text that `generate` returns for it.
        """
        requests = self._make_requests(prompts, sampling_params, priority)
        index = {request: i for i, request in enumerate(requests)}

        def events(news: list[Request]) -> list[StreamEvent]:
            return [StreamEvent(index[r], *r.take_new(), r.finish_reason) for r in news]

        return (event for some in self._run(requests, events) for event in some)

    def validate(self, prompt: str | list[int], sampling_params: SamplingParams, priority: int = 0) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self._make_request(prompt, sampling_params, 0, priority)

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _make_requests(self, prompts, sampling_params, priority=None) -> list[Request]:
        """One Request per prompt, all of them checked, or ValueError."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = SamplingParams() if sampling_params is None else sampling_params
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            raise ValueError(
                f"got {len(prompts)} prompts but {len(params)} sampling_params; give one, or one per prompt"
            )
        priority = [0] * len(prompts) if priority is None else list(priority)
        if len(priority) != len(prompts):
            raise ValueError(f"got {len(prompts)} prompts but {len(priority)} priorities; give one per prompt")
        requests = []
        for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
            try:
                requests.append(self.new_request(prompt, p, priority=priority[i]))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
        return requests

    def _make_request(self, prompt: str | list[int], params: SamplingParams, number: int, priority: int = 0) -> Request:
        """A checked Request; `number` counts the engine's requests."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        vocab_size = self.model.config.vocab_size
        if isinstance(prompt, str):
            token_ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, list | tuple) and all(
            isinstance(t, Integral) and not isinstance(t, bool) for t in prompt
        ):
            token_ids = [int(t) for t in prompt]
        else:
            raise ValueError(f"a prompt is a text or a list of token ids, got {prompt!r:.80}")
        if not token_ids:
            raise ValueError("an empty list of token ids; to start from nothing, give the empty text ''")
        for kind, ids in (("token", token_ids), ("stop_token_ids", params.stop_token_ids)):
            if bad := [t for t in ids if not 0 <= t < vocab_size]:
                raise ValueError(f"{kind} {bad[0]} is outside the model's vocabulary of {vocab_size} tokens")
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise ValueError(f"logprobs {params.logprobs} is over the model's vocabulary of {vocab_size} tokens")
        ending = {*params.stop_token_ids, *(() if params.ignore_eos else self.model.config.eos_token_ids)}
        if params.min_tokens and len(ending) == vocab_size:
            raise ValueError("min_tokens leaves nothing to choose: every token of the vocabulary is a stop token")
        if len(token_ids) >= self.max_model_len:
            raise ValueError(
                f"{len(token_ids)} tokens leave no room for an output within max_model_len {self.max_model_len}"
            )
        priority = whole_number("priority", priority, -(2**63), 2**63 - 1)
        if priority and self.scheduler.policy != "priority":
            raise ValueError(
                f"priority {priority} needs the policy 'priority', this engine's is {self.scheduler.policy!r}"
            )
        seed = derive_seed(self.seed, number) if params.seed is None else params.seed
        return Request(
            request_id=str(number),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=params,
            seed=seed,
            max_length=self.max_model_len,
            tokenizer=self.tokenizer,
            eos_token_ids=self.model.config.eos_token_ids,
            priority=priority,
        )

    # --- The engine -------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Put a request into the queue; the next steps will take it up.

        Raises:
            ValueError: the prompt or a parameter is wrong, or an unfinished request has this id.
        """
        request = self.new_request(prompt, sampling_params, priority=priority, request_id=request_id)
        request.advanced = self._news
        with self.lock:
            if request_id in self._by_id:
                raise ValueError(f"request_id {request_id!r} belongs to a request that is not finished")
            self._change(self._add, request)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the requests of `add_request` that got a token, as they are now (`finished` says if
        that was all): in this step, or in one that `generate` or `stream` has run since the last call."""
        news: list[Request] = []
        try:
            with self.lock:
                self.advance()
                news = list(dict.fromkeys(self._news))
                outputs = [request.output() for request in news]
                self._news.clear()
                return outputs
        except BaseException:  # it was not told: the next call tells it
            self._news[:0] = news
            raise

    def abort_request(self, request_id: str) -> None:
        """End an unfinished request as it is; its slot is free for the next step. An id that is not there is ignored:
        the request may have ended a moment ago."""
        with self.lock:
            request = self._by_id.get(request_id)
            if request is None:  # `generate` and streams call theirs by their numbers
                request = next((r for r in self._unfinished if r.request_id == request_id), None)
            if request is not None:
                self.abort(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self._unfinished or self._news)

    def new_request(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        request_id: str | None = None,
    ) -> Request:
        """A checked request that is not in the queue yet. Its id is its number unless one is given."""
        number = next(self._numbers)
        params = SamplingParams() if sampling_params is None else sampling_params
        request = self._make_request(prompt, params, number, priority)
        request.request_id = request.request_id if request_id is None else request_id
        return request

    def add(self, request: Request) -> None:
        """Put a request into the queue."""
        with self.lock:
            self._change(self._add, request)

    def _add(self, request: Request) -> None:
        self._unfinished[request] = None
        if request.advanced is self._news:
            self._by_id[request.request_id] = request
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request as it is; harmless if it has ended already. Whoever waits for it is told, but the caller of
        `abort_request`, who knows."""
        with self.lock:
            if request in self._unfinished:
                self._change(self._abort, request)

    def _abort(self, request: Request, asked: bool = True) -> None:
        self._leave(request)
        if not request.finished:
            request.abort()
            if request.advanced is not self._news or not asked:
                self._tell(request)

    def _leave(self, request: Request) -> None:
        """Take a request out of the queue or its slot."""
        self.scheduler.remove(request)
        self._unfinished.pop(request, None)
        if self._by_id.get(request.request_id) is request:
            del self._by_id[request.request_id]

    def _run(self, requests: Sequence[Request], tell: Callable[[list[Request]], object]) -> Iterator:
        """Advance the requests until all are finished; yields, after each step, what `tell` makes of those that got a
        token.

        Whoever else uses the engine meanwhile advances too, and may run the steps that advance these: each request has
        the list of its owner, into which a step puts it. What is unfinished when the caller leaves is aborted.
        """
        advanced: list[Request] = []
        for request in requests:
            request.advanced = advanced
        requests = dict.fromkeys(requests)  # those that are not finished: a result is its receiver's alone
        try:
            for request in requests:
                self.add(request)
            while requests:
                with self.lock:
                    if not advanced:
                        self.advance()
                    news = list(dict.fromkeys(advanced))
                    advanced.clear()
                    told = tell(news)
                    for request in news:
                        if request.finished:
                            del requests[request]
                yield told
        finally:
            for request in requests:
                self.abort(request)

    def advance(self) -> None:
        """One forward pass over what the scheduler picked, and one token more for each request that is up to date."""
        with self.lock:
            self._change(self._advance)

    def _change(self, action: Callable, *arguments) -> None:
        """Change the engine's state, as a whole: if the action is cut short, by an error or by a Ctrl-C between any two
        of its lines, `_recover` is called, and if that is cut short too, again before the next change."""
        if self._changing:
            self._recover()
        self._changing = True
        try:
            action(*arguments)
        except BaseException:
            self._recover()
            raise
        self._changing = False

    def _recover(self) -> None:
        """Start over with what is certain: the requests and their tokens. All wait again, and are computed anew; a step
        that was being committed is."""
        for request, draft in self._committed:
            request.become(draft)
            self._tell(request)
        self._committed = []
        self.scheduler.start_over(self._unfinished)
        self._by_id = {request.request_id: request for request in self._unfinished if request.advanced is self._news}
        for request in [request for request in self._unfinished if request.finished]:
            self._finish(request)
        self._changing = False

    @torch.inference_mode()
    def _advance(self) -> None:
        start = time.perf_counter()
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return
        scheduled.sort(key=lambda pair: pair[1] > 1)  # single tokens first
        used = sum(request.num_computed_tokens for request in self.scheduler.running)
        used += sum(num_tokens for _, num_tokens in scheduled)
        reserved = len(self.scheduler.running) * self.max_model_len
        records = [
            RowRecord(r.request_id, "decode" if r.output_token_ids else "prefill", num_tokens, num_padding=0)
            for r, num_tokens in scheduled
        ]
        rows = [request for request, num_tokens in scheduled if num_tokens == request.num_new_tokens]
        with self.thread_limit:
            logits = self.model(self._prepare(scheduled), self.cache)  # [n_rows, vocab_size]
            drafts, failed = sample_each(logits, rows)
        # Until here nothing has changed: whatever fails above, the step can be taken again. With the next line it has
        # happened, whatever comes between it and the last.
        self._committed = drafts
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
        for request, draft in drafts:
            request.become(draft)
            self._tell(request)
            if request.finished:
                self._finish(request)
        for request in failed:
            self._abort(request, asked=False)
        self._record(start, records, reserved, used)
        self.stats.num_output_tokens += len(drafts)
        self._committed = []

    def _tell(self, request: Request) -> None:
        """News for the owner of a request."""
        if request.advanced is not None:
            request.advanced.append(request)

    def _finish(self, request: Request) -> None:
        """Let go of a request that has ended by itself."""
        self._leave(request)
        self.stats.num_requests += 1
        self.stats.latencies.add(request.output().metrics)

    def _prepare(self, scheduled: list[tuple[Request, int]]) -> Step:
        """The step's tensors. `scheduled` has the requests with a single token first."""
        token_ids, positions, slots, last, runs, num_single, num_slots, n_seq = [], [], [], [], [], 0, 0, 0
        for request, num_tokens in scheduled:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            if num_tokens == 1:
                num_single, num_slots, n_seq = num_single + 1, max(num_slots, request.slot + 1), max(n_seq, end)
            else:
                runs.append((len(token_ids), len(token_ids) + num_tokens, request.slot, end))
            token_ids += request.new_token_ids(num_tokens)
            positions += range(start, end)
            slots += [request.slot] * num_tokens
            if num_tokens == request.num_new_tokens:
                last.append(len(token_ids) - 1)
        tensors = (torch.tensor(x, dtype=torch.int64, device=self.device) for x in (token_ids, positions, slots, last))
        return Step(*tensors, num_single, num_slots, n_seq, runs)

    def _record(self, start: float, rows: list[RowRecord], reserved: int, used: int) -> None:
        """Count a forward pass, and keep its record if there is a trace."""
        seconds = time.perf_counter() - start
        if self.trace is not None:
            self.trace.append(StepRecord(self.stats.num_forwards, start, seconds, rows, reserved, used))
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += sum(row.num_tokens for row in rows)
        self.stats.num_padding_tokens += sum(row.num_padding for row in rows)
        self.stats.kv_tokens_reserved += reserved
        self.stats.kv_tokens_used += used
        self.stats.seconds += seconds


def sample_each(logits: Tensor, requests: list[Request]) -> tuple[list[tuple[Request, dict]], list[Request]]:
    """What each request will be with one token more (`Request.after`), and those for which it fails: the others go on.

    Raises:
        Exception: if it fails for all of them.
    """
    try:
        sampled = sample(logits, requests) if requests else []
        return [(request, request.after(*result)) for request, result in zip(requests, sampled, strict=True)], []
    except Exception:
        drafts, failed = [], []
        for i, request in enumerate(requests):
            try:
                drafts.append((request, request.after(*sample(logits[i : i + 1], [request])[0])))
            except Exception as error:
                failed.append(request)
                logging.getLogger(__name__).warning("request %s is aborted: %s", request.request_id, error)
        if not drafts:
            raise
        return drafts, failed


def pick_device(device: str) -> torch.device:
    """The torch device of a name. Raises ValueError if it is unknown or not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError):
        picked = None
    if picked is None or picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return picked


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype of a name. Raises ValueError if it is unknown."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def pick_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    """The longest sequence, in tokens. Raises ValueError if the model has no positions for it."""
    if max_model_len is None:
        return n_positions
    try:
        return whole_number("max_model_len", max_model_len, 2, n_positions)
    except ValueError as error:
        raise ValueError(f"{error}; the model has {n_positions} positions") from None
