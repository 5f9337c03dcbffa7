"""The service: an engine that answers OpenAI's requests. A `Job` runs as a `Run`: its prompts in parallel, their
outputs as pieces of the answer.
"""

import asyncio
import contextlib
import dataclasses
import functools
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ..openai.answers import Piece, Wording, around, choice_of, greeting, of_prompt, usage
from ..openai.errors import RETRY, APIError, bad_request
from ..openai.job import Job, Served, chat_job, completion_job, field_of, too_long
from ..stages import core_of
from .feed import Feed
from .metrics import Meter, Metrics

SMALL = 2**13  # bytes of JSON, which take some milliseconds
TOKEN_BYTES = 64  # of a token or a log-probability in JSON, roughly
PROMPT_TOKEN_BYTES = 96  # the same for a prompt's
T = TypeVar("T")


class Run:
    """A running job; use it in `async with`.

    Args:
        in_turn: whether it waits for its seats in the engine; else its completions queue there.

    Attributes:
        id, created: the answer's.
        num_output_tokens: reported so far.
        finish_reasons: of the choices reported as finished, in that order.
    """

    def __init__(self, service: "Service", job: Job, in_turn: bool = True):
        self.service, self.job, self.in_turn, self.num_output_tokens = service, job, in_turn, 0
        self.id = f"{'chatcmpl' if job.chat else 'cmpl'}-{job.fields['request_id'] or uuid.uuid4().hex}"
        self.created = int(time.time())
        self.finish_reasons: list[str] = []
        self.prompt_logprobs: dict[int, Sequence | None] = {}  # of each prompt; they come with its first event
        self._num_cached: dict[int, int] = {}  # of each prompt, from stage 5 on
        self._scored = [asyncio.Event() for _ in job.prompts]  # whether its log-probabilities are there
        self._news: asyncio.Queue = asyncio.Queue()  # holds no more than the tokens of this job
        self._tasks: list[asyncio.Task] = []
        self._is_accepted = False

    async def __aenter__(self) -> "Run":
        """Start all completions, or none: if the engine refuses one, the others are aborted."""
        self.service.check_room(self.job)
        self._meter = Meter(self.service.metrics, self.job)
        try:
            for index in range(self.job.num_choices):
                task = asyncio.create_task(self._follow(index))
                task.add_done_callback(self._news.put_nowait)
                self._tasks.append(task)
            await asyncio.sleep(0)  # each task runs up to its first wait: by then it is submitted, refused, or waits
            for task in self._tasks:
                if task.done():
                    self._check(task)
        except BaseException:
            await self.__aexit__()
            raise
        self._is_accepted = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Completions that have not ended are aborted: leaving `generate` does that."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # even if this is cancelled, as when the client leaves right after the last chunk
            self._meter.close()

    async def _follow(self, index: int) -> None:
        """Run a choice, which is a request for one completion, and pass its events on."""
        job, (i, number) = self.job, divmod(index, self.job.n)
        if number and job.params.prompt_logprobs is not None:
            await self._scored[i].wait()  # the first completion alone scores the prompt
        try:
            async with self.service.feed.seat(self) if self.in_turn else contextlib.nullcontext():
                self._meter.seated(index)
                params, priority = self.service.params_of(job.params, number), job.fields["priority"]
                async for event in self.service.engine.generate(job.token_ids[i], params, priority=priority):
                    self._pass_on(index, event)
        except self.service.stage.EngineClosedError as error:
            if not self._is_accepted or error.__cause__ is not None:  # refused, or the engine has failed
                raise
            self._pass_on(index, self.service.stage.StreamEvent(0, "", [], "abort"))
        finally:
            self._scored[i].set()

    def _pass_on(self, index: int, event: Any) -> None:
        i, number = divmod(index, self.job.n)
        if not number:
            self.prompt_logprobs.setdefault(i, event.prompt_logprobs)
            self._num_cached[i] = getattr(event, "num_cached_tokens", 0)
            self._scored[i].set()
        self._meter.count(i, index, event)  # here, where a slow reader makes no difference
        self._news.put_nowait((index, event))

    def _check(self, task: asyncio.Task) -> None:
        """Raise a finished task's error, as clients get it."""
        try:
            task.result()
        except ValueError as error:
            raise bad_request(str(error)) from None
        except self.service.stage.EngineClosedError as error:
            if error.__cause__ is None:
                raise APIError(503, str(error), code="shutting_down") from None
            raise APIError(503, f"the engine has failed: {error.__cause__}", code="engine_failed") from error
        except Exception as error:  # a step failed, and its retry
            raise APIError(500, f"the engine has failed: {error}", code="engine_failed") from error

    def _failure(self, message: str) -> APIError:
        """The error of a request that failed alone: the client's, if its fields restrict the tokens (most become
        logits processors), else the model's."""
        is_restricted = self.job.params.logits_processors or self.job.params.min_tokens
        return APIError(400 if is_restricted else 500, message, code="generation_failed")

    async def events(self) -> AsyncGenerator[tuple[int, Any], None]:
        """(choice, event) of all choices, as they come."""
        unfinished = len(self._tasks)
        while unfinished:
            news = await self._news.get()
            if isinstance(news, asyncio.Task):
                self._check(news)
                unfinished -= 1
                continue
            index, event = news
            if event.finish_reason == "error":
                raise self._failure(event.stop_reason)
            self.num_output_tokens += len(event.token_ids)
            if event.finish_reason is not None:
                self.finish_reasons.append(event.finish_reason)
            yield index, event

    def wording(self, index: int) -> Wording:
        return Wording(self.service, self.job, index // self.job.n, index)

    def piece(self, wording: Wording, event: Any) -> Piece:
        return wording.piece(event, self.prompt_logprobs.get(wording.index // self.job.n))

    def choice(self, index: int, events: list[Any]) -> dict:
        """A whole choice."""
        wording, whole = self.wording(index), Piece(index)
        for event in events:
            whole.add(self.piece(wording, event))
        more = {} if self.job.chat else self.of_prompt(index // self.job.n)
        return {**choice_of(self.job, whole), **more}

    def usage(self) -> dict:
        """Counts of tokens so far."""
        cached = sum(self._num_cached.values()) if self.service.stage.number >= 5 else None
        return usage(self.job.num_prompt_tokens, self.num_output_tokens, cached)

    def answer(self, choices: list, *, chunk: bool = False) -> dict:
        """OpenAI's object around choices."""
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.job.chat else "text_completion"
        return around(self.id, kind, self.created, self.service.model_name, choices)

    def of_prompt(self, i: int) -> dict:
        return of_prompt(self.job, i, self.prompt_logprobs.get(i))

    def size(self, index: int, events: list[Any]) -> int:
        """Roughly how many bytes of JSON the events of a choice take."""
        job, size = self.job, sum(len(event.text) for event in events)
        if job.num_logprobs is not None:
            size += TOKEN_BYTES * (1 + job.num_logprobs) * sum(len(event.token_ids) for event in events)
        return size + self.prompt_size(index // job.n)

    def prompt_size(self, i: int) -> int:
        """The same for the log-probabilities of a prompt."""
        count = self.job.num_prompt_logprobs
        return 0 if count is None else PROMPT_TOKEN_BYTES * (1 + count) * len(self.job.token_ids[i])


@dataclass(eq=False)
class Service(Served):
    """An engine that answers OpenAI's requests.

    Attributes:
        worker: a thread for what is large. Two would not be faster: Python runs one at a time.
        compiler: a thread for requests with structured output, whose form may take a second to compile.
        num_forms: how many of these wait, also for clients that have left. They may take half of the connections, so
            that others are still let in.
    """

    def __post_init__(self):
        super().__post_init__()
        self.num_places = self.limits.max_queue_size + self.engine.llm.config.max_num_seqs
        self.metrics = Metrics(self.stage, self.engine, self.model_name)
        self.worker, self.compiler = ThreadPoolExecutor(1, "worker"), ThreadPoolExecutor(1, "compiler")
        self.num_forms = 0
        self.created = int(time.time())
        self.feed = Feed(self._num_seats)

    def _num_seats(self) -> int:
        """How many completions the engine may have at once. If a policy orders them, it has all."""
        scheduler = core_of(self.engine.llm).scheduler
        in_order = scheduler.policy == "fcfs"
        return min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens) if in_order else sys.maxsize

    def params_of(self, params: Any, number: int) -> Any:
        """The parameters that make one of `n` completions a separate request, with the same tokens."""
        if self.stage.number == 4:
            return params
        seed = None if params.seed is None else self.stage.completion_seed(params.seed, number)
        scores = {} if number == 0 else {"prompt_logprobs": None}
        return dataclasses.replace(params, n=1, seed=seed, **scores)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text. Raises APIError if it is not valid Unicode."""
        try:
            return self.tokenizer.encode(text)
        except ValueError as error:
            raise bad_request(f"prompt: {error}", param="prompt") from None

    def token_names(self, token_ids: list[int]) -> list[str]:
        """Each token as it is written in vocab.json."""
        letters = {byte[0]: letter for letter, byte in self.stage.byte_alphabet().items()}
        texts = ["".join(letters[byte] for byte in self.tokenizer.token_bytes(token_id)) for token_id in token_ids]
        return [text or self.tokenizer.token_text(i) for text, i in zip(texts, token_ids, strict=True)]

    def job(self, body: dict, *, chat: bool = False) -> Job:
        """A body as a checked job. Call this by `aside`: tokenizing long texts takes time.

        Raises APIError if something is wrong with it; then nothing runs.
        """
        job = chat_job(self, body) if chat else completion_job(self, body)
        self.check_room(job)  # before anything is spent on it
        job = dataclasses.replace(job, params=self._params(job))
        for i, token_ids in enumerate(job.token_ids):
            self._validate(job, token_ids, f"prompt {i}: " if len(job.prompts) > 1 else "")
        return job

    def _params(self, job: Job) -> Any:
        """The parameters of a job, with its processors: a form is compiled here."""
        try:
            return job.sampling.params_for(self.engine.llm, self.limits.form_seconds)
        except ValueError as error:
            raise bad_request(str(error), param=field_of(error, job.fields, job.form_field)) from None

    def check_room(self, job: Job) -> None:
        """Raise APIError if a job takes more than half of what is free; the other half is for other clients. Jobs with
        several completions share half of the total, so that there is always room for single ones."""
        several = job.num_choices > 1
        columns = [
            ("completions", job.num_choices, self.num_places, self.metrics.num_unfinished, "--max-queue-size"),
            ("tokens", job.num_tokens, self.limits.max_queue_tokens, self.metrics.num_tokens, "--max-queue-tokens"),
        ]
        for what, number, most, taken, flag in columns:
            most -= several * (most // 2)
            who = "one for several completions" if several else "it"
            asked = f"the request asks for {number:,} {what}; {who} may take half of"
            if number > max(1, most // 2):
                raise bad_request(f"{asked} {most:,} ({flag})")
            if number > max(1, (most - taken) // 2):
                message = f"{asked} the {max(0, most - taken):,} that are free now: try again later"
                raise APIError(429, message, code="queue_full", headers=RETRY)

    def _validate(self, job: Job, token_ids: list[int], where: str) -> None:
        try:
            self.engine.llm.validate(token_ids, job.params, job.fields["priority"])
        except ValueError as error:
            prompt = "messages" if job.chat else "prompt"
            if len(token_ids) + bool(job.params.max_tokens) > self.max_model_len:
                raise too_long(self.max_model_len, f"{where}{error}", prompt) from None
            param = field_of(error, job.fields, job.form_field) or prompt
            raise bad_request(f"{where}{error}", param=param) from None

    @property
    def failed(self) -> bool:
        """Whether the engine's thread has ended: it no longer answers."""
        return not self.engine.llm.loop.thread.is_alive()

    async def whole(self, run: Run, form: Callable[[dict], Any] = lambda choice: choice) -> dict:
        """The answer to a job that does not stream, with `form` applied to each choice. Choices are built one at a
        time, so that neither smaller answers nor the server's shutdown wait for all of them, and each one's tokens and
        log-probabilities become objects only while it is built."""
        events: list[list[Any]] = [[] for _ in range(run.job.num_choices)]
        async for index, event in run.events():
            events[index].append(event)
        made = []
        for i, own in enumerate(events):
            made.append(await self.aside(run.size(i, own), lambda i=i, own=own: form(run.choice(i, own))))
        more = await self.aside(run.prompt_size(0), lambda: run.of_prompt(0)) if run.job.chat else {}
        return {**run.answer(made), "usage": run.usage(), **more}

    async def aside(self, size: int, work: Callable[[], T], *, has_form: bool = False) -> T:
        """The result of `work`, in a thread if it takes so long that others would have to wait. size: roughly the bytes
        of JSON that it reads or writes."""
        if has_form:
            if self.num_forms >= max(1, self.limits.max_connections // 2):
                raise APIError(429, f"{self.num_forms} forms wait to be compiled", code="queue_full", headers=RETRY)
            self.num_forms += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self.compiler, work)
            finally:
                self.num_forms -= 1
        if size > SMALL:
            return await asyncio.get_running_loop().run_in_executor(self.worker, work)
        await asyncio.sleep(0)
        return work()

    async def chunks(self, run: Run, form: Callable[[dict], Any] = lambda chunk: chunk) -> AsyncGenerator[Any, None]:
        """The answer to a job that streams, with `form` applied to each chunk: one for each step of each choice, even
        if it has no text yet."""
        job = run.job
        counted = job.stream_options["include_usage"]
        in_chunks = counted and job.stream_options["continuous_usage_stats"]
        more: dict[str, Any] = {"usage": run.usage() if in_chunks else None} if counted else {}
        wordings: dict[int, Wording] = {}

        def chunk(index: int, event: Any, prompt: dict) -> Any:
            piece = run.piece(wordings[index], event)
            choice = choice_of(job, piece, chunk=True)
            return form({**run.answer([choice if job.chat else {**choice, **prompt}], chunk=True), **more})

        async with contextlib.aclosing(run.events()) as events:
            async for index, event in events:
                is_first = index not in wordings
                told = is_first and job.fields["return_token_ids"]
                prompt = {"prompt_token_ids": job.token_ids[index // job.n]} if told else {}
                if is_first:
                    wordings[index] = run.wording(index)
                    if job.chat:
                        yield form({**run.answer([greeting(index)], chunk=True), **prompt, **more})
                if in_chunks:
                    more["usage"] = run.usage()
                if is_first and job.echo:  # all of the prompt at once
                    yield await self.aside(run.size(index, [event]), functools.partial(chunk, index, event, prompt))
                else:
                    yield chunk(index, event, prompt)
        if counted:
            yield form({**run.answer([], chunk=True), "usage": run.usage()})
