"""The shape of answers: OpenAI's objects, with vLLM's additional fields.

A stream and a whole answer are made of the same pieces: a `Piece` is what a step added to a choice, and a whole choice
is its pieces put together. Completions and chats differ only in their choices.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import Job, Served


@dataclass(frozen=True, slots=True)
class Token:
    """A token as text and as bytes, its log-probability, and its offset in the choice's text. `top`: the likeliest
    tokens in its place."""

    text: str
    raw: bytes
    logprob: float | None = None
    offset: int = 0
    top: tuple["Token", ...] = ()

    @property
    def name(self) -> str:
        """Its text; its bytes if they are only part of a character, because names must distinguish tokens."""
        if "\ufffd" in self.text and self.text.encode() != self.raw:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.raw)
        return self.text


@dataclass
class Piece:
    """The new part of a choice; or, put together, all of it."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, other: "Piece") -> None:
        self.text += other.text
        self.tokens += other.tokens
        self.token_ids += other.token_ids
        self.finish_reason, self.stop_reason = other.finish_reason, other.stop_reason


class Wording:
    """Turns the events of a choice into pieces, and keeps track of the position in its text."""

    def __init__(self, served: "Served", job: "Job", prompt: int, index: int):
        self.tokenizer, self.job, self.index = served.tokenizer, job, index
        self.token_ids, self.prompt = job.token_ids[prompt], job.prompts[prompt]
        self._new_detokenizer = functools.partial(served.stage.Detokenizer, self.tokenizer)
        self._detokenizer, self._offset, self.begun = self._new_detokenizer(), 0, False
        self._by_ids = job.fields["return_tokens_as_token_ids"]

    def piece(self, event: Any, prompt_logprobs: Sequence[dict | None] | None) -> Piece:
        """The piece of an event. The first one begins with the prompt if it is to be echoed."""
        piece = Piece(self.index, finish_reason=event.finish_reason, stop_reason=event.stop_reason)
        if self.job.echo and not self.begun:
            piece.text = self.prompt if isinstance(self.prompt, str) else full_text(self.tokenizer, self.token_ids)
            piece.tokens = self._tokens(self.token_ids, prompt_logprobs)
            self._detokenizer, self._offset = self._new_detokenizer(), len(piece.text)
        self.begun = True
        piece.text += event.text
        piece.token_ids += event.token_ids
        piece.tokens += self._tokens(event.token_ids, event.logprobs)
        return piece

    def _tokens(self, token_ids: list[int], logprobs: Sequence[dict | None] | None) -> list[Token]:
        pairs = zip(token_ids, logprobs or [], strict=False)  # an aborted prompt has fewer
        return [self._token(token_id, likely) for token_id, likely in pairs]

    def _token(self, token_id: int, likely: dict | None) -> Token:
        text, offset = self.tokenizer.token_text(token_id), self._offset
        raw = self.tokenizer.token_bytes(token_id)
        self._offset += len(self._detokenizer.add(token_id)) if raw else len(text)
        text = self._text(token_id, text)
        if likely is None:
            return Token(text, raw, offset=offset)
        most = self.job.num_logprobs or 0  # a prompt's tokens may come with more, for `prompt_logprobs`
        best = sorted((p for p in likely.items() if p[1].rank <= most or p[0] == token_id), key=lambda p: p[1].rank)
        top = tuple(
            Token(self._text(i, entry.decoded_token), self.tokenizer.token_bytes(i), entry.logprob) for i, entry in best
        )
        return Token(text, raw, likely[token_id].logprob, offset, top)

    def _text(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}" if self._by_ids else text


def full_text(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of token ids, with the end token by its name, so that encoding the text gives the same ids."""
    raw = b"".join(tokenizer.token_bytes(token) or tokenizer.token_text(token).encode() for token in token_ids)
    return raw.decode("utf-8", errors="replace")


# --- Choices ----------------------------------------------------------------------------------------------------------


def choice_of(job: "Job", piece: Piece, *, chunk: bool = False) -> dict:
    """A choice of an answer, or of a chunk of one."""
    said = chat_choice(job, piece, chunk) if job.chat else completion_choice(job, piece)
    ids = {"token_ids": piece.token_ids} if job.fields["return_token_ids"] else {}
    return {"index": piece.index, **said, "stop_reason": piece.stop_reason, **ids}


def completion_choice(job: "Job", piece: Piece) -> dict:
    logprobs = None
    if job.num_logprobs is not None:
        logprobs = {
            "tokens": [token.name for token in piece.tokens],
            "token_logprobs": [token.logprob for token in piece.tokens],
            "top_logprobs": [likely(token) for token in piece.tokens],
            "text_offset": [token.offset for token in piece.tokens],
        }
    prompt = {"prompt_token_ids": None, "prompt_logprobs": None}
    return {"text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason, **prompt}


def chat_choice(job: "Job", piece: Piece, chunk: bool) -> dict:
    logprobs = None
    if job.num_logprobs is not None:
        content = [
            {**token_entry(token), "top_logprobs": [token_entry(one) for one in token.top[: job.num_logprobs]]}
            for token in piece.tokens
        ]
        logprobs = {"content": content}
    said = {"content": piece.text}
    said = {"delta": said} if chunk else {"message": {"role": "assistant", **said}}
    return {**said, "logprobs": logprobs, "finish_reason": piece.finish_reason}


def greeting(index: int) -> dict:
    """The first chunk of a chat's choice: the role."""
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def likely(token: Token) -> dict[str, float | None] | None:
    """The token, then the likeliest ones in its place, as vLLM orders them."""
    return {token.name: token.logprob, **{one.name: one.logprob for one in token.top}} if token.top else None


def token_entry(token: Token) -> dict:
    """As in a chat's log-probabilities."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


# --- Around the choices -----------------------------------------------------------------------------------------------


def around(name: str, kind: str, created: int, model: str, choices: list) -> dict:
    """OpenAI's object around choices."""
    return {"id": name, "object": kind, "created": created, "model": model, "choices": choices}


def usage(num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None = None) -> dict:
    total = num_prompt_tokens + num_output_tokens
    counts = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_output_tokens, "total_tokens": total}
    cached = {} if num_cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": num_cached_tokens}}
    return {**counts, **cached}


def of_prompt(job: "Job", prompt: int, logprobs: Sequence[dict | None] | None) -> dict:
    """What an answer says about a prompt, as in vLLM."""
    entries = logprobs if "prompt_logprobs" in job.fields else None
    told = entries and [one and {str(i): vars(token) for i, token in one.items()} for one in entries]
    ids = {"prompt_token_ids": job.token_ids[prompt]} if job.fields["return_token_ids"] else {}
    return {"prompt_logprobs": told, **ids}
