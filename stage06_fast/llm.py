"""The engine: takes prompts, runs the model step by step, gives back completions."""

import contextlib
import functools
import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral

import torch
from torch import Tensor
from tqdm import tqdm

from .attention import pick_backend
from .beam_search import BeamSearch, run_searches
from .block_manager import BlockManager
from .cuda_graphs import GraphedGPT2
from .fast_model import FastGPT2, enabled, pick_model
from .kernels import c_kernel
from .kv_cache import KVCache, bytes_per_token, check_cache_bytes, default_cache_bytes
from .model import GPT2, Step
from .openmp import WAITS_BRIEFLY
from .outputs import RequestOutput, RowRecord, Stats, StepRecord, StreamEvent
from .request import Request
from .run_ahead import RunAhead
from .sampler import derive_seed, sample
from .sampling_params import SamplingParams, number, whole_number
from .scheduler import POLICIES, Scheduler
from .threads import ThreadLimit
from .tokenizer import Tokenizer
from .weights import find_model, load_weights, read_config, tokenizer_directory

CROWDED = 0.85  # cores: with fewer of them free, there is none for a thread alone
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
        block_size: tokens in a block of the KV cache.
        num_blocks: how many blocks there are; or
        kv_cache_bytes: memory for the KV cache. With neither: what max_num_seqs requests of max_model_len tokens fill,
            at most a share of what is free (half on a CPU; on CUDA 90%, less what a full step takes).
        enable_prefix_caching: do not compute again the beginning of a prompt that the cache still holds.
        watermark: the share of the blocks that is left free when a request is admitted, for the running ones to grow.
        attention_backend: "torch", "c", "triton", or "auto": Triton on CUDA, C on a CPU that has a compiler.
        disable: optimisations to turn off, by their names in fast_model.py. Those that are C kernels need the attention
            backend "c", and are all off with another one.
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
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_cache_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        watermark: float = 0.01,
        attention_backend: str = "auto",
        disable: Sequence[str] = (),
        seed: int = 0,
        trace: bool = False,
    ):
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be 'auto' or 'dummy', got {load_format!r}")
        max_num_seqs = whole_number("max_num_seqs", max_num_seqs, 1)
        if kv_cache_bytes is not None:
            kv_cache_bytes = whole_number("kv_cache_bytes", kv_cache_bytes, 1)
        if num_blocks is not None:
            num_blocks = whole_number("num_blocks", num_blocks, 1)
        if num_blocks is not None and kv_cache_bytes is not None:
            raise ValueError(f"give num_blocks or kv_cache_bytes, not both, got {num_blocks} and {kv_cache_bytes}")
        block_size = whole_number("block_size", block_size, 1, 1024)
        watermark = number("watermark", watermark, 0, 1)
        if watermark == 1:
            raise ValueError(f"watermark must be a number from 0 to less than 1, got {watermark!r}")
        max_num_batched_tokens = whole_number("max_num_batched_tokens", max_num_batched_tokens, 1)
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        on = enabled(disable)
        self.seed = whole_number("seed", seed, 0, 2**64 - 1)
        if "freeze" in on:
            freeze_garbage_collector()
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        directory = find_model(str(model), load_format)
        config = read_config(str(model), directory, load_format)
        head_dim = config.n_embd // config.n_head
        self.attention_backend, paged_attention = pick_backend(attention_backend, self.device, head_dim, on)
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
        self.max_num_seqs, block_bytes = max_num_seqs, block_size * self.bytes_per_token
        sizes = (block_size, config.n_head, head_dim, self.dtype, self.device, paged_attention)
        if num_blocks is None and kv_cache_bytes is None:
            profile = functools.partial(self._full_step, KVCache(config.n_layer, 1, *sizes), max_num_batched_tokens)
            num_blocks = default_cache_bytes(self.device, profile) // block_bytes
            num_blocks = min(num_blocks, max_num_seqs * -(-self.max_model_len // block_size))
        self.num_blocks = kv_cache_bytes // block_bytes if num_blocks is None else num_blocks
        if self.num_blocks < 1:
            raise ValueError(
                f"a block of {block_size} tokens needs {block_bytes:,} bytes, there are {kv_cache_bytes or 0:,}"
            )
        self.kv_cache_bytes = self.num_blocks * block_bytes
        check_cache_bytes(self.kv_cache_bytes, self.device)
        # Only Triton's attention can be recorded: torch's asks for lengths. Graphs fill up their batches with rows that
        # write to a block of their own, the one behind all others.
        graphs = self.device.type == "cuda" and "graphs" in on and self.attention_backend == "triton"
        how = {"pages": "pages" in on and self.device.type == "cpu", "prefault": "prefault" in on}
        self.cache = KVCache(config.n_layer, self.num_blocks + graphs, *sizes, **how)
        self.argmax = c_kernel.argmax if "argmax" in on and self.attention_backend == "c" else None
        if graphs:
            width = -(-self.max_model_len // block_size)
            self.model = GraphedGPT2(self.model, max_num_seqs, width, spare_block=self.num_blocks)
        elif self.attention_backend == "c":
            self.model = pick_model(self.model, on, max_num_seqs)
        # The kernels' threads bear company (kernels/team.h) if OpenMP's do; torch's own operations don't.
        self.waits_briefly = WAITS_BRIEFLY and isinstance(self.model, FastGPT2)
        self.block_manager = BlockManager(self.num_blocks, block_size, enable_prefix_caching, watermark)
        self.scheduler = Scheduler(
            self.block_manager, max_num_seqs, max_num_batched_tokens, policy, enable_chunked_prefill
        )
        overlap = self.device.type == "cuda" and "overlap" in on
        self.run_ahead = RunAhead(self.model, self.cache, self.scheduler) if overlap else None
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
            for num_finished in self._run(requests, lambda news: len(finished_groups(news))):
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
            return [(index.pop(request), request.output()) for request in finished_groups(news)]

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
            return [StreamEvent(index[r.group[0]], *r.take_new(), r.finish_reason, r.index) for r in news]

        return (event for some in self._run(requests, events) for event in some)

    def beam_search(
        self,
        prompts: str | Sequence[str | list[int]],
        beam_width: int = 4,
        max_tokens: int = 64,
        length_penalty: float = 1.0,
    ) -> list[RequestOutput]:
        """The `beam_width` best completions of every prompt that beam search finds, the best first.

        As Hugging Face's `generate(num_beams=beam_width, num_return_sequences=beam_width)`: a completion's score is its
        `cumulative_logprob` divided by its number of tokens to the power of `length_penalty`. Streams that are open
        meanwhile wait.

        Raises:
            ValueError: a prompt or an argument is wrong, or the beams of a prompt could outgrow the KV cache.
        """
        most = min(self.max_num_seqs, self.scheduler.max_num_batched_tokens)
        try:
            beam_width = whole_number("beam_width", beam_width, 1, most)
        except ValueError as error:
            raise ValueError(f"{error} (the most is by max_num_seqs and max_num_batched_tokens)") from None
        length_penalty = number("length_penalty", length_penalty, -100, 100)
        requests = self._make_requests(prompts, SamplingParams(temperature=0, max_tokens=max_tokens))
        searches = [BeamSearch(request, beam_width, length_penalty) for request in requests]
        for i, search in enumerate(searches):
            if search.num_blocks(self.block_manager.block_size) > self.num_blocks:
                raise ValueError(
                    f"prompt {i}: its {beam_width} beams may need {search.num_blocks(self.block_manager.block_size)} "
                    f"blocks of the KV cache, there are {self.num_blocks}"
                )
        with self.lock:
            self._change(run_searches, self, searches)
        return [search.output() for search in searches]

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
        total = len(token_ids) + min(params.max_tokens, self.max_model_len - len(token_ids))
        needed = self.block_manager.num_needed(total - 1)  # the last token is never computed
        if needed > self.num_blocks:
            raise ValueError(
                f"{total} tokens of prompt and output need {needed} blocks of the KV cache, there are {self.num_blocks}"
            )
        priority = whole_number("priority", priority, -(2**63), 2**63 - 1)
        if priority and self.scheduler.policy != "priority":
            raise ValueError(
                f"priority {priority} needs the policy 'priority', this engine's is {self.scheduler.policy!r}"
            )
        seed = derive_seed(self.seed, number) if params.seed is None else params.seed
        request = Request(
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
        request.group += [request.fork(index) for index in range(1, params.n)]
        return request

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
        for completion in request.group:
            completion.advanced = self._news
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
                news = list(dict.fromkeys(request.group[0] for request in self._news))
                outputs = [request.output() for request in news]
                self._news.clear()
                return outputs
        except BaseException:  # it was not told: the next call tells it
            self._news[:0] = news
            raise

    def abort_request(self, request_id: str) -> None:
        """End an unfinished request as it is; its blocks are free for the next step. An id that is not there is
        ignored: the request may have ended a moment ago."""
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
        for completion in request.group:
            completion.request_id = request.request_id if request_id is None else request_id
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
        for completion in request.group:
            if not completion.finished:
                completion.abort()
                if completion.advanced is not self._news or not asked:
                    self._tell(completion)

    def _leave(self, request: Request) -> None:
        """Take a request out of the queue or the batch, all of its completions."""
        for completion in request.group:
            self.scheduler.remove(completion)
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
            for completion in request.group:
                completion.advanced = advanced
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
                    for request in finished_groups(news):
                        requests.pop(request, None)
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
        if self.run_ahead is not None:
            self.run_ahead.clear()
        self.block_manager.start_over()
        self.scheduler.start_over(self._unfinished)
        self._by_id = {request.request_id: request for request in self._unfinished if request.advanced is self._news}
        for request in [request for request in self._unfinished if request.group_finished]:
            self._finish(request)
        self._changing = False

    @torch.inference_mode()
    def _advance(self) -> None:
        start = time.perf_counter()
        preemptions = self.scheduler.num_preemptions
        scheduled = self.scheduler.schedule()
        self.stats.num_preemptions += self.scheduler.num_preemptions - preemptions
        if not scheduled:
            return
        record = self.describe(scheduled)
        logits = self.forward(scheduled)  # [n_up_to_date, vocab_size]
        # The first logits of a request with n > 1 are the first of all its completions.
        up_to_date = [request for request, num_tokens in scheduled if num_tokens == request.num_new_tokens]
        parents = [request for request in up_to_date for _ in (request, *request.unforked)]
        rows = [completion for request in up_to_date for completion in (request, *request.unforked)]
        if len(rows) > len(up_to_date):
            logits = logits[[up_to_date.index(parent) for parent in parents]]  # [n_rows, vocab_size]
        parts = [(logits, rows)] if rows else []
        if len(rows) > self.max_num_seqs:
            parts = zip(logits.split(self.max_num_seqs), split(rows, self.max_num_seqs), strict=True)
        read = Tensor.tolist
        if self.run_ahead is not None and self.run_ahead.can_predict(scheduled):
            read = functools.partial(self.run_ahead.read, scheduled)
        with self.thread_limit:
            results = [sample_each(part, requests, self.argmax, read) for part, requests in parts]
        drafts = [pair for pairs, _ in results for pair in pairs]
        failed = [request for _, requests in results for request in requests]
        # Until here nothing has changed: whatever fails above, the step can be taken again. With the next line it has
        # happened, whatever comes between it and the last.
        self._committed = drafts
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
        scheduled_now = dict(scheduled)
        for request, draft in drafts:
            request.become(draft)
            self._tell(request)
            if request not in scheduled_now and not request.finished:
                self.scheduler.fork(request.group[0], request)
        for request, _ in drafts:
            if request.finished:
                self.scheduler.remove(request)
        for request in finished_groups([request for request, _ in drafts]):
            self._finish(request)
        for request in dict.fromkeys(completion.group[0] for completion in failed):
            self._abort(request, asked=False)
        self.record(start, **record)
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
        self.stats.num_prompt_tokens += len(request.prompt_token_ids)
        self.stats.num_cached_tokens += request.num_cached_tokens
        self.stats.latencies.add(request.output().metrics)

    def forward(self, scheduled: list[tuple[Request, int]]) -> Tensor:
        """The logits behind the last token of each request that a step brings up to date: [n_rows, vocab_size]."""
        copies = self.block_manager.take_copies()
        if self.run_ahead is not None:
            logits = self.run_ahead.take(scheduled)
            if logits is not None and not copies:
                return logits
        self.cache.copy_blocks(copies)
        # Beside others each thread shall have a core of its own; where not even one is free, all compete for theirs.
        crowded = self.waits_briefly and self.thread_limit.free < CROWDED
        with contextlib.nullcontext() if crowded else self.thread_limit:
            return self.model(self._prepare(scheduled), self.cache)

    def _prepare(self, scheduled: list[tuple[Request, int]]) -> Step:
        """The step's tensors."""
        token_ids, positions, slot_mapping, tables, query_start_loc, seq_lens, last = [], [], [], [], [0], [], []
        for request, num_tokens in scheduled:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            token_ids += request.new_token_ids(num_tokens)
            positions += range(start, end)
            slot_mapping += self.block_manager.slot_mapping(request, start, end)
            tables.append(self.block_manager.block_table(request))
            query_start_loc.append(len(token_ids))
            seq_lens.append(end)
            if num_tokens == request.num_new_tokens:
                last.append(len(token_ids) - 1)
        width = max(map(len, tables))
        tables = [table + [0] * (width - len(table)) for table in tables]
        lists = (token_ids, positions, slot_mapping, tables, query_start_loc, seq_lens, last)
        return Step(*(torch.tensor(x, dtype=torch.int64, device=self.device) for x in lists))

    def _full_step(self, cache: KVCache, num_tokens: int) -> None:
        """The largest step there is, on whatever the cache holds: for measuring what it takes."""
        tokens = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
        ends = torch.tensor([0, num_tokens], device=self.device)
        table = torch.zeros(1, -(-num_tokens // cache.block_size), dtype=torch.int64, device=self.device)
        rows = tokens[: min(self.max_num_seqs, num_tokens)]
        with torch.inference_mode():
            logits = self.model(Step(tokens, tokens, tokens, table, ends, ends[1:], rows), cache)
            logits.sort(dim=-1)
            logits.double().softmax(dim=-1).cumsum(dim=-1)  # with the sort, what takes the most in the sampler

    def describe(self, scheduled: list[tuple[Request, int]]) -> dict:
        """What a step does, and the KV cache after it: the fields of its StepRecord."""
        manager, num_tokens = self.block_manager, dict(scheduled)
        # Room that is not filled is only behind a sequence's last token, in blocks that nobody shares.
        room = sum(len(manager.block_table(request)) for request in manager.holders) * manager.block_size
        unused = room - sum(r.num_computed_tokens + num_tokens.get(r, 0) for r in manager.holders)
        reserved = (manager.num_blocks - manager.num_free) * manager.block_size
        rows = [RowRecord(r.request_id, "decode" if r.output_token_ids else "prefill", n, 0) for r, n in scheduled]
        record = dict(rows=rows, kv_tokens_reserved=reserved, kv_tokens_used=reserved - unused)
        if self.trace is not None:
            record["rows"] = [
                replace(row, index=r.index, blocks=tuple(manager.block_table(r)))
                for row, (r, _) in zip(rows, scheduled, strict=True)
            ]
            counts = [count for count in manager.ref_counts if count > 1]
            record |= dict(num_blocks_shared=len(counts), num_blocks_saved=sum(counts) - len(counts))
        return record

    def record(self, start: float, rows: list[RowRecord], **cache: int) -> None:
        """Count a forward pass, and keep its record if there is a trace."""
        seconds = time.perf_counter() - start
        if self.trace is not None:
            self.trace.append(StepRecord(self.stats.num_forwards, start, seconds, rows, **cache))
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += sum(row.num_tokens for row in rows)
        self.stats.num_padding_tokens += sum(row.num_padding for row in rows)
        self.stats.kv_tokens_reserved += cache["kv_tokens_reserved"]
        self.stats.kv_tokens_used += cache["kv_tokens_used"]
        self.stats.seconds += seconds


@functools.cache  # once
def freeze_garbage_collector() -> None:
    """Let the garbage collector leave alone what is there now: some 170,000 objects of torch and others, which it
    would look through again every few hundred steps, 40 ms each time."""
    gc.collect()
    gc.freeze()


def sample_each(logits: Tensor, requests: list[Request], *how) -> tuple[list[tuple[Request, dict]], list[Request]]:
    """What each request will be with one token more (`Request.after`), and those for which it fails: the others go on.

    Raises:
        Exception: if it fails for all of them.
    """
    try:
        sampled = sample(logits, requests, *how) if requests else []
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


def split(rows: list, size: int) -> list[list]:
    """Parts of at most this size, so that the sampler's memory is bounded, however many completions begin at once."""
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def finished_groups(completions: list[Request]) -> list[Request]:
    """The first completion of each request that is done, all n of it, with these."""
    return list(dict.fromkeys(c.group[0] for c in completions if c.group_finished))


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
