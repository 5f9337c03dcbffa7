"""Chats: a template, which the operator gives, makes one prompt of the messages; GPT-2 itself has none."""

from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..openai_fields import IDLE, NO_TOOLS, ONLY_TEXT, Others
from .errors import bad_request
from .protocol import (
    CHAT,
    MAX_TOKENS,
    Fields,
    Job,
    Served,
    check_model,
    job_fields,
    make_job,
    number_of_logprobs,
    prompt_logprobs,
    sampling_params,
)

# What an answer of ours or of others has beside its role and its content, so that a client can send it back.
IDLE_IN_MESSAGES: Others = {
    "refusal": (("",), "the template does not see it"),
    "reasoning": (("",), "the template does not see it"),
    "reasoning_content": (("",), "the template does not see it"),
    "annotations": (([],), "the template does not see them"),
    "audio": ((), ONLY_TEXT),
    "tool_calls": (([],), NO_TOOLS),
    "function_call": ((), NO_TOOLS),
    "tool_call_id": (("",), NO_TOOLS),
}


class ChatTemplate:
    """A Jinja template as those of Hugging Face's models: it sees `messages` and `add_generation_prompt`.

    The sandbox keeps a template from another source from reaching into this program.

    Raises:
        ValueError, OSError: the file is no template, or can't be read.
    """

    def __init__(self, path: Path):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = raise_exception
        try:
            self.text = path.read_text(encoding="utf-8")
            self._template = environment.from_string(self.text)
        except UnicodeDecodeError as error:
            raise ValueError(f"--chat-template {path} is not UTF-8: {error.reason} at byte {error.start}") from None
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"--chat-template {path}, line {error.lineno}: {error.message}") from None

    def prompt(self, messages: list[dict], *, begins: bool = True, goes_on: bool = False) -> str:
        """The prompt that messages make. Raises APIError if the template refuses them.

        Args:
            begins: it ends with the beginning of an answer.
            goes_on: it ends with the last message, which is to be gone on with.
        """
        try:
            prompt = self._template.render(messages=messages, add_generation_prompt=begins)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise bad_request(f"the chat template can't take these messages: {error}", param="messages") from None
        if not goes_on:
            return prompt
        end = messages[-1]["content"].strip()
        if not end or end not in prompt:
            raise bad_request(
                "the chat template does not show the last message, which was to be gone on with", param="messages"
            )
        last = prompt.rindex(end) + len(end)
        return prompt[:last]  # what the template puts behind a message would end it


def raise_exception(message: str) -> None:
    """What templates call to refuse messages."""
    raise jinja2.TemplateError(message)


def chat_prompt(fields: Fields, template: ChatTemplate | None) -> str:
    """The prompt that the messages of a request make. Raises APIError."""
    if template is None:
        raise bad_request("GPT-2 has no chat template: ask /v1/completions, or start with --chat-template FILE")
    goes_on = fields.flag("continue_final_message")
    begins = fields.flag("add_generation_prompt", not goes_on)
    if begins and goes_on:
        message = "continue_final_message goes on with the last message, add_generation_prompt begins another: set one"
        raise bad_request(message, param="continue_final_message")
    return template.prompt(read_messages(fields), begins=begins, goes_on=goes_on)


def chat_job(served: Served, body: dict, template: ChatTemplate | None) -> Job:
    """The job of a body of /v1/chat/completions. Raises APIError."""
    fields = Fields(body, CHAT, others={**IDLE, "echo": ((False,), "an answer is the new message alone")})
    check_model(fields, served.name)
    prompt = chat_prompt(fields, template)
    common = job_fields(fields, 1, served.limits)
    num_logprobs = number_of_logprobs(served, fields, "top_logprobs") or 0
    if not fields.flag("logprobs"):
        if num_logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
        num_logprobs = None
    given = [fields.number(name, 1, MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens")]
    if None not in given and given[0] != given[1]:
        raise bad_request("max_tokens and max_completion_tokens are one limit: give one", param="max_tokens")
    most = served.defaults.get("max_tokens", MAX_TOKENS)
    more = {"logprobs": num_logprobs, "max_tokens": next((limit for limit in given if limit is not None), most)}
    params = sampling_params(served, fields, common["beams"], **more, **prompt_logprobs(served, fields))
    return make_job(served, [prompt], params=params, num_logprobs=num_logprobs, chat=True, **common)


def read_messages(fields: Fields) -> list[dict]:
    """The messages, each with its role and its content as one text. Raises APIError."""
    messages = fields.get("messages", list, "a list of messages")
    if not messages:
        raise bad_request("messages must be a list of at least one message", param="messages")
    return [read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def read_message(message: Any, where: str) -> dict:
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object, got {message!r:.80}", param=where)
    fields = Fields(message, {"role", "content", "name"}, f"{where}.", IDLE_IN_MESSAGES)
    read = {name: fields.get(name, str, "a text") for name in ("role", "name") if name in fields.values}
    if "role" not in read:
        raise bad_request(f"{where}.role is missing", param=f"{where}.role")
    content = fields.get("content", (str, list), "a text, or a list of parts of type text")
    if isinstance(content, list):
        content = "".join(read_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None:
        raise bad_request(f"{where}.content is missing", param=f"{where}.content")
    return {**read, "content": content}


def read_part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise bad_request(f'{where} must be {{"type": "text", "text": …}}, got {part!r:.80}', param=where)
    fields = Fields(part, {"type", "text"}, f"{where}.", {"annotations": IDLE_IN_MESSAGES["annotations"]})
    text = fields.get("text", str, "a text")
    if text is None:
        raise bad_request(f"{where}.text is missing", param=f"{where}.text")
    return text


def greeting(index: int) -> dict:
    """The first chunk of a choice: who speaks."""
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def chat_choice(job: Job, piece: Any, chunk: bool) -> dict:
    """A choice of a chat, or of a chunk of one."""
    said = {"delta": {"content": piece.text}} if chunk else {"message": {"role": "assistant", "content": piece.text}}
    logprobs = None
    if job.num_logprobs is not None:
        content = [{**in_words(token), "top_logprobs": likely(token, job.num_logprobs)} for token in piece.tokens]
        logprobs = {"content": content}
    ids = {"token_ids": piece.token_ids} if job.token_ids_told else {}
    return {"index": piece.index, **said, "logprobs": logprobs, **piece.ends, **ids}


def likely(token: Any, number: int) -> list[dict]:
    """The most likely tokens in its place; the chosen one may not be among them."""
    return [in_words(one) for one in token.top[:number]]


def in_words(token: Any) -> dict:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}
