"""The engine: takes prompts, runs the model step by step, gives back completions."""

import time
from collections.abc import Iterator, Sequence
from numbers import Integral

import torch
from tqdm import tqdm

from .kv_cache import KVCache, bytes_per_token, check_cache_bytes, default_cache_bytes
from .model import GPT2
from .outputs import RequestOutput, RowRecord, Stats, StepRecord, StreamEvent
from .request import Request
from .sampler import derive_seed, sample
from .sampling_params import SamplingParams, whole_number
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
        max_num_seqs: how many requests share a batch.
        sort_by_length: batch prompts of similar length together (longest first), so that rows need little padding;
            results come back in the order of the prompts all the same.
        kv_cache_bytes: memory for the KV cache of a batch; a batch that would need more is split. None is half of what
            is free.
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
        sort_by_length: bool = True,
        kv_cache_bytes: int | None = None,
        seed: int = 0,
        trace: bool = False,
    ):
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be 'auto' or 'dummy', got {load_format!r}")
        self.max_num_seqs, self.sort_by_length = whole_number("max_num_seqs", max_num_seqs, 1), sort_by_length
        if kv_cache_bytes is not None:
            kv_cache_bytes = whole_number("kv_cache_bytes", kv_cache_bytes, 1)
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
        self.bytes_per_token = bytes_per_token(config.n_layer, config.n_embd, self.dtype)
        self.kv_cache_bytes = kv_cache_bytes or default_cache_bytes(self.device)
        check_cache_bytes(self.kv_cache_bytes, self.device)
        self.thread_limit = ThreadLimit()
        self.stats = Stats()
        self.trace: list[StepRecord] | None = [] if trace else None
        self._num_requests = 0

    # --- What users call --------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Complete every prompt. Blocks until all are done; results come in the order of the prompts.

        Args:
            prompts: texts or lists of token ids; a single text is one prompt.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar on stderr.

        Raises:
            ValueError: a prompt or parameter is wrong; raised before anything is computed, names the prompt's index.
        """
        requests = self._make_requests(prompts, sampling_params)
        with tqdm(total=len(requests), unit="request", disable=not use_tqdm) as bar:
            for batch in self._batches(requests):
                for advanced in self._run(batch):
                    bar.update(sum(request.finished for request in advanced))
        return [request.output() for request in requests]

    def as_completed(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there.

        That is when its batch ends; if the batch is interrupted, what is finished of it comes before KeyboardInterrupt.
        """
        requests = self._make_requests(prompts, sampling_params)
        index = {request: i for i, request in enumerate(requests)}
        batches = self._batches(requests)

        def results():
            while batches:
                batch, interrupt = batches.pop(0), None  # a result is its receiver's alone
                try:
                    for _ in self._run(batch):
                        pass
                except KeyboardInterrupt as error:
                    interrupt = error
                yield from ((index.pop(request), request.output()) for request in batch if request.finished)
                if interrupt:
                    raise interrupt

        return results()

    def stream(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields each token as it is made.

        The texts of an index, joined, are the text that `generate` returns for it.
        """
        requests = self._make_requests(prompts, sampling_params)
        index = {request: i for i, request in enumerate(requests)}
        steps = (advanced for batch in self._batches(requests) for advanced in self._run(batch))
        return (StreamEvent(index[r], *r.take_new(), r.finish_reason) for advanced in steps for r in advanced)

    def validate(self, prompt: str | list[int], sampling_params: SamplingParams) -> None:
        """Raise the ValueError that `generate` would raise for this prompt."""
        self._make_request(prompt, sampling_params, number=0)

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _make_requests(self, prompts, sampling_params) -> list[Request]:
        """One Request per prompt, all of them checked, or ValueError."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = SamplingParams() if sampling_params is None else sampling_params
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            raise ValueError(
                f"got {len(prompts)} prompts but {len(params)} sampling_params; give one, or one per prompt"
            )
        requests = []
        for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
            try:
                requests.append(self._make_request(prompt, p, number=self._num_requests + i))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
        self._num_requests += len(requests)
        return requests

    def _make_request(self, prompt: str | list[int], params: SamplingParams, number: int) -> Request:
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
        )
        needed = self._cache_len([request]) * self.bytes_per_token
        if needed > self.kv_cache_bytes:
            raise ValueError(
                f"{len(token_ids)} prompt tokens and up to {request.max_tokens} output tokens need {needed:,} bytes of "
                f"KV cache, kv_cache_bytes is {self.kv_cache_bytes:,}"
            )
        return request

    # --- The loop ---------------------------------------------------------------------------------------------------

    def _batches(self, requests: list[Request]) -> list[list[Request]]:
        """The requests in groups of `max_num_seqs` whose KV cache fits, the longest prompts first."""
        if self.sort_by_length:
            requests = sorted(requests, key=lambda request: len(request.prompt_token_ids), reverse=True)
        room = self.kv_cache_bytes // self.bytes_per_token  # in tokens
        batches: list[list[Request]] = []
        for request in requests:
            larger = [*batches[-1], request] if batches else []
            if larger and len(larger) <= self.max_num_seqs and len(larger) * self._cache_len(larger) <= room:
                batches[-1] = larger
            else:
                batches.append([request])
        return batches

    def _cache_len(self, batch: list[Request]) -> int:
        """The columns that the batch's KV cache needs: the longest prompt, and every output token but the last, which
        never goes through the model."""
        return max(len(r.prompt_token_ids) for r in batch) + max(r.max_tokens for r in batch) - 1

    def _run(self, batch: list[Request]) -> Iterator[list[Request]]:
        """Advance a batch until its last request is finished; yields, after each step, those that got a token."""
        config, max_len = self.model.config, self._cache_len(batch)
        head_dim = config.n_embd // config.n_head
        cache = KVCache(config.n_layer, len(batch), config.n_head, max_len, head_dim, self.dtype, self.device)
        while not all(request.finished for request in batch):
            yield self._step(batch, cache)

    @torch.inference_mode()
    def _step(self, batch: list[Request], cache: KVCache) -> list[Request]:
        """One forward pass over what is new in the batch, and one token more for each row that is not finished.

        The first step is the prefill, the whole left-padded prompts; each later one decodes every row's last token.
        A row that is finished is carried along: it goes through the model with the others, for nothing.
        """
        start = time.perf_counter()
        rows = [i for i, request in enumerate(batch) if not request.finished]
        live = [batch[i] for i in rows]
        longest = max(len(request.prompt_token_ids) for request in batch)
        num_padding = [longest - len(request.prompt_token_ids) for request in batch]
        if cache.length == 0:
            phase = "prefill"
            padded = [[0] * n + r.prompt_token_ids for n, r in zip(num_padding, batch, strict=True)]
            records = [RowRecord(r.request_id, phase, longest - n, n) for n, r in zip(num_padding, batch, strict=True)]
        else:
            phase = "decode"
            padded = [[request.output_token_ids[-1]] for request in batch]
            records = [RowRecord(r.request_id, phase, int(not r.finished), int(r.finished)) for r in batch]
        token_ids, padding = (torch.tensor(x, device=self.device) for x in (padded, num_padding))
        with self.thread_limit:
            logits = self.model(token_ids, padding, cache)  # [batch, n_new] -> [batch, vocab_size]
            sampled = sample(logits[rows], live)  # of [n_live, vocab_size]
        used = sum(len(request.token_ids) for request in live)
        for request, token_and_logprobs in zip(live, sampled, strict=True):
            request.add_token(*token_and_logprobs)
            if request.finished:
                self.stats.num_requests += 1
                self.stats.ttft_seconds += request.first_token_time - request.arrival_time
        self._record(start, records, cache.num_tokens, used)
        self.stats.num_output_tokens += len(live)
        return live

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
