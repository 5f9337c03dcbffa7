"""From a checked `Job` to OpenAI's answer: its prompts run side by side, and what they say is put into words.

A stream and a whole answer are made of the same pieces: a `Piece` is what a step added to a choice, and a whole choice
is its pieces put together.
"""

import asyncio
import contextlib
import dataclasses
import functools
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..beams import Beams, search
from ..stages import Stage
from .chat import ChatTemplate, chat_choice, chat_job, greeting
from .errors import RETRY, APIError, bad_request
from .lanes import SMALL, Lanes
from .limits import Limits
from .metrics import Meter, Metrics
from .protocol import SAMPLING, Job, Served, completion_job, too_long
from .tools import CallReader

AT_ONCE = 16  # prompts of a request that are submitted, or given up, together; more of them one by one
PROMPT_TOKEN_BYTES = 96  # and so many has one of a prompt's
TOKEN_BYTES = 64  # about so many has a token, or a log-probability, in JSON
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Token:
    """A token in words, where its text begins in the choice's, and how likely it was: `top` are the likely ones."""

    text: str
    raw: bytes
    logprob: float | None = None
    offset: int = 0
    top: tuple["Token", ...] = ()

    @property
    def name(self) -> str:
        """Its text; its bytes if they are a part of a character, for a name has to tell one token from another."""
        if "\ufffd" in self.text and self.text.encode() != self.raw:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.raw)
        return self.text


@dataclass
class Piece:
    """What is new of a choice; or, put together, all of it."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    length_limit: str | None = None

    def add(self, other: "Piece") -> None:
        self.text += other.text
        self.tokens += other.tokens
        self.token_ids += other.token_ids
        self.finish_reason, self.stop_reason = other.finish_reason, other.stop_reason
        self.length_limit = other.length_limit

    @property
    def ends(self) -> dict:
        """Why it ended, for answers: beside OpenAI's field vLLM's, and of "length" which limit it was."""
        limit = {"length_limit": self.length_limit} if self.length_limit else {}
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason, **limit}


def full_text(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of token ids, with the end token by its name, so that the text gives the same ids again."""
    raw = b"".join(tokenizer.token_bytes(token) or tokenizer.token_text(token).encode() for token in token_ids)
    return raw.decode("utf-8", errors="replace")


class Wording:
    """Puts the events of a choice into pieces, and keeps account of where its text is."""

    def __init__(self, service: "Service", job: Job, prompt: int, index: int):
        self.tokenizer, self.job, self.index = service.tokenizer, job, index
        self.token_ids, self.prompt = job.token_ids[prompt], job.prompts[prompt]
        self._new_detokenizer = functools.partial(service.stage.Detokenizer, self.tokenizer)
        self._detokenizer, self._offset, self.begun = self._new_detokenizer(), 0, False
        room = job.max_model_len - len(self.token_ids)
        self._length_limit = "max_model_len" if job.params.max_tokens > room else "max_tokens"

    def piece(self, event: Any, prompt_logprobs: list[dict | None] | None) -> Piece:
        """What an event says. The first piece begins with the prompt if that is to be echoed."""
        piece = Piece(self.index, finish_reason=event.finish_reason, stop_reason=event.stop_reason)
        piece.length_limit = self._length_limit if event.finish_reason == "length" else None
        if self.job.echo and not self.begun:
            piece.text = self.prompt if isinstance(self.prompt, str) else full_text(self.tokenizer, self.token_ids)
            piece.tokens = self._tokens(self.token_ids, prompt_logprobs)
            self._detokenizer, self._offset = self._new_detokenizer(), len(piece.text)
        self.begun = True
        piece.text += event.text
        piece.token_ids += event.token_ids
        piece.tokens += self._tokens(event.token_ids, event.logprobs)
        return piece

    def _tokens(self, token_ids: list[int], logprobs: list[dict | None] | None) -> list[Token]:
        pairs = zip(token_ids, logprobs or [], strict=False)  # an aborted prompt has fewer
        return [self._token(token_id, likely) for token_id, likely in pairs]

    def _token(self, token_id: int, likely: dict | None) -> Token:
        text, offset = self.tokenizer.token_text(token_id), self._offset
        raw = self.tokenizer.token_bytes(token_id)
        self._offset += len(self._detokenizer.add(token_id)) if raw else len(text)
        text = self._text(token_id, text)
        if likely is None:
            return Token(text, raw, offset=offset)
        most = self.job.num_logprobs or 0  # a prompt's tokens may have more beside them, for `prompt_logprobs`
        best = sorted((p for p in likely.items() if p[1].rank <= most or p[0] == token_id), key=lambda p: p[1].rank)
        top = tuple(
            Token(self._text(t, one.decoded_token), self.tokenizer.token_bytes(t), one.logprob) for t, one in best
        )
        return Token(text, raw, likely[token_id].logprob, offset, top)

    def _text(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}" if self.job.tokens_as_ids else text


def completion_choice(job: Job, piece: Piece) -> dict:
    """A choice of a completion, or of a chunk of one."""
    logprobs = None
    if job.num_logprobs is not None:
        logprobs = {
            "tokens": [token.name for token in piece.tokens],
            "token_logprobs": [token.logprob for token in piece.tokens],
            "top_logprobs": [likely(token) for token in piece.tokens],
            "text_offset": [token.offset for token in piece.tokens],
        }
    ids = {"token_ids": piece.token_ids} if job.token_ids_told else {}
    prompt = {"prompt_token_ids": None, "prompt_logprobs": None}
    return {"index": piece.index, "text": piece.text, "logprobs": logprobs, **piece.ends, **ids, **prompt}


def likely(token: Token) -> dict[str, float | None] | None:
    """The token itself, and then the most likely ones in its place, as vLLM orders them."""
    return {token.name: token.logprob, **{one.name: one.logprob for one in token.top}} if token.top else None


def of_prompt(run: "Run", prompt: int) -> dict:
    """What an answer tells of a prompt, as vLLM."""
    job, entries = run.job, run.prompt_logprobs.get(prompt) if run.job.prompt_logprobs else None
    told = entries and [one and {str(i): dataclasses.asdict(token) for i, token in one.items()} for one in entries]
    return {"prompt_logprobs": told, **({"prompt_token_ids": job.token_ids[prompt]} if job.token_ids_told else {})}


class Usage:
    """Counts of tokens so far."""

    def __init__(self, job: Job, has_cache: bool):
        self.num_prompt_tokens, self.has_cache = job.num_prompt_tokens, has_cache
        self.cached: dict[int, int] = {}  # of each prompt
        self.num_output_tokens = 0

    def count(self, prompt: int, event: Any) -> None:
        self.num_output_tokens += len(event.token_ids)
        if self.has_cache:
            self.cached[prompt] = event.num_cached_tokens

    def to_dict(self) -> dict:
        prompt, output = self.num_prompt_tokens, self.num_output_tokens
        counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        if self.has_cache:
            counts["prompt_tokens_details"] = {"cached_tokens": sum(self.cached.values())}
        return counts


class Run:
    """A job that runs, in an `async with`.

    Attributes:
        id, created: of the answer.
        usage: what was told so far.
        finish_reasons: of the choices of which it was told, in the order in which they ended.
    """

    def __init__(self, service: "Service", job: Job):
        self.service, self.job, self.usage = service, job, Usage(job, service.stage.number >= 5)
        self.id = f"{'chatcmpl' if job.chat else 'cmpl'}-{job.request_id or uuid.uuid4().hex}"
        self.created = int(time.time())
        self.finish_reasons: list[str] = []
        self.prompt_logprobs: dict[int, list | None] = {}  # of each prompt; they come with its first event
        self._news: asyncio.Queue = asyncio.Queue()  # holds no more than the tokens of this job
        self._tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> "Run":
        """Submit all prompts, or none: if the engine refuses one, the others are aborted. Between many of them others
        have their turn."""
        self.service.check_room(self.job)
        self._meter = Meter(self.service.metrics, self.job)
        try:
            for i in range(len(self.job.prompts)):
                task = asyncio.create_task(self._follow(i))
                task.add_done_callback(self._news.put_nowait)
                self._tasks.append(task)
                if i >= AT_ONCE:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # each task runs up to its first wait, for news: it is submitted then, or refused
            for task in self._tasks:
                if task.done():
                    self._check(task)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """What has not ended is aborted: leaving `generate` does that."""
        try:
            for i, task in enumerate([one for one in self._tasks if not one.done()]):
                task.cancel()
                if i >= AT_ONCE:
                    await asyncio.sleep(0)
        finally:  # also if this is cancelled
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:  # also if this is cancelled, as when the client goes right after the last chunk
                self._meter.close()

    async def _follow(self, i: int) -> None:
        job = self.job
        where = {} if self.service.stage.number == 4 else {"num_ahead": i * job.n}
        events = self.service.engine.generate(job.token_ids[i], job.params, priority=job.priority, **where)
        if job.beams is not None:
            events = self._beams(job.beams, i, where)
        async for event in events:
            index = i * job.n + getattr(event, "completion_index", 0)
            self._meter.count(i, index, event)  # here, where a slow reader makes no difference
            self._news.put_nowait((i, index, event))

    async def _beams(self, beams: Beams, i: int, where: dict[str, int]) -> AsyncGenerator[Any, None]:
        """What a search has found, an event for each completion."""
        job, stage, tokenizer = self.job, self.service.stage, self.service.tokenizer
        where = {**where, "priority": job.priority}
        found = await search(stage, self.service.engine, job.token_ids[i], job.params, beams, **where)
        for j in range(job.n):
            if j >= len(found):  # fewer than n have ended before the greatest length
                yield stage.StreamEvent(
                    0, "", [], "length", completion_index=j, num_prompt_tokens=len(job.token_ids[i])
                )
                continue
            ids, reason = list(found[j].token_ids), found[j].finish_reason
            text = tokenizer.decode(ids[:-1] if reason == "stop" else ids)
            counts = {"num_prompt_tokens": len(job.token_ids[i]), "num_output_tokens": len(ids)}
            yield stage.StreamEvent(0, text, ids, reason, completion_index=j, **counts)

    def _check(self, task: asyncio.Task) -> None:
        """Raise the error of a task that has ended, as clients get it."""
        try:
            task.result()
        except self.service.stage.QueueFullError as error:
            raise APIError(429, str(error), code="queue_full", headers=RETRY) from None
        except ValueError as error:
            raise bad_request(str(error)) from None
        except self.service.stage.EngineClosedError as error:
            raise APIError(503, str(error), code="shutting_down") from None
        except Exception as error:  # a step has failed, twice
            raise APIError(500, f"the engine has failed: {error}", code="engine_failed") from error

    def _failure(self, message: str) -> APIError:
        """The error of a request that failed by itself: its own if it steers its logits, otherwise the model's."""
        p = self.job.params
        if p.logits_processors or p.logit_bias or p.bad_words or p.min_tokens or p.allowed_token_ids is not None:
            return bad_request(message, code="generation_failed")
        if p.structured_outputs is not None:
            return bad_request(message, code="generation_failed")
        return APIError(500, message, code="generation_failed")

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the choices say, as they come, until all have ended."""
        job, unfinished = self.job, len(self._tasks)
        wordings: dict[int, Wording] = {}
        while unfinished:
            news = await self._news.get()
            if isinstance(news, asyncio.Task):
                self._check(news)
                unfinished -= 1
                continue
            i, index, event = news
            if event.finish_reason == "error":
                raise self._failure(event.stop_reason)
            self.prompt_logprobs.setdefault(i, event.prompt_logprobs)
            if index not in wordings:
                wordings[index] = Wording(self.service, job, i, index)
            self.usage.count(i, event)
            if event.finish_reason is not None:
                self.finish_reasons.append(event.finish_reason)
            wording, logprobs = wordings[index], self.prompt_logprobs[i]
            if job.echo and logprobs and not wording.begun:  # all of the prompt at once
                size = self.size(len(wording.token_ids))
                yield await self.service.aside(size, functools.partial(wording.piece, event, logprobs))
            else:
                yield wording.piece(event, logprobs)

    def size(self, num_tokens: int) -> int:
        """About how many bytes of JSON so many tokens with their log-probabilities are."""
        return TOKEN_BYTES * num_tokens * (1 + (self.job.num_logprobs or 0))


class Service:
    """An engine that answers OpenAI's requests: what the server and batch files have in common.

    Args:
        engine: an AsyncLLM of this stage.
        model_name: how clients call the model.
        limits: what one client may ask for; `max_queue_size` is the engine's.
        chat: what makes prompts of chats; None: the model has no template for them.
        defaults: of fields that a request leaves out.

    Attributes:
        lanes: where what takes long is done.
    """

    def __init__(
        self,
        stage: Stage,
        engine: Any,
        model_name: str,
        limits: Limits,
        chat: ChatTemplate | None = None,
        defaults: dict[str, Any] | None = None,
        ignores_unknown: bool = False,
    ):
        self.stage, self.engine, self.model_name, self.chat = stage, engine, model_name, chat
        self.defaults, self.ignores_unknown = defaults or {}, ignores_unknown
        self.tokenizer, self.max_model_len = engine.llm.get_tokenizer(), engine.llm.max_model_len
        self.limits, self.num_places = limits, limits.max_queue_size + engine.llm.config.max_num_seqs
        self.lanes = Lanes()
        self.metrics, self.created = Metrics(stage, engine, model_name), int(time.time())

    @property
    def served(self) -> Served:
        names = self.tokenizer, self.model_name, self.max_model_len, self.engine.llm.vocab_size
        return Served(self.stage, *names, self.limits, self.defaults, self.ignores_unknown)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text. Raises APIError if it is no Unicode."""
        try:
            return self.tokenizer.encode(text)
        except ValueError as error:
            raise bad_request(f"prompt: {error}", param="prompt") from None

    def token_names(self, token_ids: list[int]) -> list[str]:
        """Each token as vocab.json writes it."""
        letters = {byte[0]: letter for letter, byte in self.stage.byte_alphabet().items()}
        texts = ["".join(letters[byte] for byte in self.tokenizer.token_bytes(token_id)) for token_id in token_ids]
        return [text or self.tokenizer.token_text(i) for text, i in zip(texts, token_ids, strict=True)]

    def tokenizer_info(self) -> dict:
        """What a tokenizer_config.json of Hugging Face says, as far as it is so here."""
        end, number = self.tokenizer.token_text(self.tokenizer.end_of_text_id), self.tokenizer.end_of_text_id
        added = {str(number): {"content": end, "special": True, "lstrip": False, "rstrip": False, "normalized": True}}
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
        switches = dict.fromkeys(("add_bos_token", "add_prefix_space", "clean_up_tokenization_spaces"), False)
        more = {"errors": "replace", "model_max_length": self.max_model_len, "added_tokens_decoder": added}
        template = None if self.chat is None else self.chat.text
        return {"tokenizer_class": "GPT2Tokenizer", **names, **switches, **more, "chat_template": template}

    def job(self, body: dict, *, chat: bool = False) -> Job:
        """A body as a checked job. Call this in a thread: to cut long texts into tokens takes time.

        Raises APIError: something is wrong with it; nothing runs then.
        """
        job = chat_job(self.served, body, self.chat) if chat else completion_job(self.served, body)
        self.check_room(job)  # before anything is spent on it
        job = dataclasses.replace(job, params=self._params(job))
        for i, token_ids in enumerate(job.token_ids):
            self._validate(job, token_ids, f"prompt {i}: " if len(job.prompts) > 1 else "")
        return job

    def _params(self, job: Job) -> Any:
        """The parameters of a job, with its processors. A form is compiled here, once."""
        try:
            return job.sampling.params_for(self.engine.llm, self.limits.form_seconds)
        except ValueError as error:
            raise bad_request(str(error), param=self._field(job, error)) from None

    @staticmethod
    def _field(job: Job, error: ValueError) -> str | None:
        """The field of a request that an error is about; None if it is none of them."""
        name = str(error).split()[0]
        if name.startswith("structured_outputs"):
            return job.form_field
        return name if name == "priority" or name in SAMPLING else None

    def check_room(self, job: Job) -> None:
        """Raise APIError unless a job takes no more than half of what is free; the other half is for others. Jobs of
        several completions share half of all: few clients could have all of it, and who asks for one has its place."""
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
            self.engine.llm.validate(token_ids, job.params, job.priority)
        except ValueError as error:
            prompt = "messages" if job.chat else "prompt"
            if len(token_ids) + bool(job.params.max_tokens) > self.max_model_len:
                raise too_long(self.max_model_len, f"{where}{error}", prompt) from None
            raise bad_request(f"{where}{error}", param=self._field(job, error) or prompt) from None

    def answer(self, run: Run, choices: list[dict], *, chunk: bool = False) -> dict:
        """OpenAI's object around choices."""
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if run.job.chat else "text_completion"
        return {"id": run.id, "object": kind, "created": run.created, "model": self.model_name, "choices": choices}

    def choice(self, job: Job, piece: Piece, *, chunk: bool = False, reader: CallReader | None = None) -> dict:
        if not job.chat:
            return completion_choice(job, piece)
        return chat_choice(job, piece, chunk, reader or (job.tools and CallReader(job.tools)))

    @property
    def failed(self) -> bool:
        """Whether the engine's thread has ended: it answers nothing any more."""
        return not self.engine.llm.loop.thread.is_alive()

    async def whole(self, run: Run, form: Callable[[dict], Any] = lambda choice: choice) -> dict:
        """The answer to a job that does not stream, its choices in this form. They are made one by one, so that nobody
        waits for all of them: neither who has a smaller answer nor the end of the server."""
        choices = [Piece(i) for i in range(run.job.num_choices)]
        async for piece in run.pieces():
            choices[piece.index].add(piece)
        made, job = [], run.job
        for choice in choices:
            size = len(choice.text) + run.size(len(choice.tokens))
            prompt = choice.index // job.n
            if job.prompt_logprobs:
                size += PROMPT_TOKEN_BYTES * len(job.token_ids[prompt]) * (1 + job.params.prompt_logprobs)
            more = {} if job.chat else of_prompt(run, prompt)
            made.append(await self.aside(size, lambda one=choice, m=more: form({**self.choice(job, one), **m})))
        more = of_prompt(run, 0) if job.chat else {}
        return {**self.answer(run, made), "usage": run.usage.to_dict(), **more}

    async def aside(self, size: int, work: Callable[[], T]) -> T:
        """Do this work in a lane if it is about so many bytes of JSON that others would wait for it."""
        if size > SMALL:
            return await self.lanes.do(size, work)
        await asyncio.sleep(0)
        return work()

    async def chunks(self, run: Run) -> AsyncGenerator[dict, None]:
        """The answer to a job that streams: a chunk for each step of each choice, also if it has no text yet."""
        job, begun, readers = run.job, set(), defaultdict(lambda: run.job.tools and CallReader(run.job.tools))
        more: dict[str, Any] = {"usage": run.usage.to_dict() if job.usage_in_chunks else None} if job.usage else {}
        async with contextlib.aclosing(run.pieces()) as pieces:
            async for piece in pieces:
                is_first = piece.index not in begun
                begun.add(piece.index)
                prompt = {"prompt_token_ids": job.token_ids[piece.index // job.n]} if job.token_ids_told else {}
                if job.chat and is_first:
                    yield {**self.answer(run, [greeting(piece.index)], chunk=True), **prompt, **more}
                if job.usage_in_chunks:
                    more["usage"] = run.usage.to_dict()
                said = self.choice(job, piece, chunk=True, reader=readers[piece.index])
                choice = {**said, **(prompt if is_first and not job.chat else {})}
                yield {**self.answer(run, [choice], chunk=True), **more}
        if job.usage:
            yield {**self.answer(run, [], chunk=True), "usage": run.usage.to_dict()}
