"""The engine: takes prompts, runs the model step by step, gives back completions."""

import time
from collections.abc import Iterator, Sequence
from numbers import Integral

import torch
from tqdm import tqdm

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
        seed: int = 0,
        trace: bool = False,
    ):
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be 'auto' or 'dummy', got {load_format!r}")
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
            for advanced in self._run(requests):
                bar.update(sum(request.finished for request in advanced))
        return [request.output() for request in requests]

    def as_completed(
        self,
        prompts: str | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Like `generate`, but yields (index of the prompt, result) the moment a result is there."""
        requests = self._make_requests(prompts, sampling_params)
        index = {request: i for i, request in enumerate(requests)}
        return ((index[r], r.output()) for advanced in self._run(requests) for r in advanced if r.finished)

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
        return (
            StreamEvent(index[r], *r.take_new(), r.finish_reason) for advanced in self._run(requests) for r in advanced
        )

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
        return Request(
            request_id=str(number),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=params,
            seed=seed,
            max_length=self.max_model_len,
            tokenizer=self.tokenizer,
            eos_token_ids=self.model.config.eos_token_ids,
        )

    # --- The loop ---------------------------------------------------------------------------------------------------

    def _run(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Advance the requests until all are finished; yields, after each step, those that got a token."""
        for request in requests:
            while not request.finished:
                self._step(request)
                yield [request]

    @torch.inference_mode()
    def _step(self, request: Request) -> None:
        """One forward pass over the request's whole sequence, and one token more."""
        start = time.perf_counter()
        phase = "decode" if request.output_token_ids else "prefill"
        token_ids = torch.tensor(request.token_ids, device=self.device)  # [n_seq]
        with self.thread_limit:
            logits = self.model(token_ids)  # [n_seq] -> [vocab_size]
            sampled = sample(logits, request)
        request.add_token(*sampled)
        self._record(start, [RowRecord(request.request_id, phase, num_tokens=len(token_ids), num_padding=0)])
        self.stats.num_output_tokens += 1
        if request.finished:
            self.stats.num_requests += 1
            self.stats.ttft_seconds += request.first_token_time - request.arrival_time

    def _record(self, start: float, rows: list[RowRecord]) -> None:
        """Count a forward pass, and keep its record if there is a trace."""
        seconds = time.perf_counter() - start
        if self.trace is not None:
            self.trace.append(StepRecord(self.stats.num_forwards, start, seconds, rows))
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += sum(row.num_tokens for row in rows)
        self.stats.num_padding_tokens += sum(row.num_padding for row in rows)
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
