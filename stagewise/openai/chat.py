"""Chats: a template turns the messages into one prompt: --chat-template, or the model's own; GPT-2 has none.

The prompt equals that of transformers' `apply_chat_template` for the same messages.
"""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.parser
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..strict_json import read_json, read_text
from .errors import bad_request
from .fields import NO_TOOLS, ONLY_TEXT, TEXT, Field, Fields, Others

# Fields of answers, ours or others', besides role and content, so that a client can send an answer back.
IDLE_IN_MESSAGES: Others = {
    "refusal": (("",), "the template does not see it"),
    "reasoning": (("",), "the template does not see it"),
    "reasoning_content": (("",), "the template does not see it"),
    "annotations": (([],), "the template does not see them"),
    "audio": ((), ONLY_TEXT),
    "tool_calls": (([],), NO_TOOLS),
    "function_call": ((), NO_TOOLS),
    "tool_call_id": (("",), NO_TOOLS),
    "cache_control": (dict, "it must be an object"),
}
MESSAGE = {
    "role": TEXT,
    "name": TEXT,
    "content": Field((str, list), "a string, or a list of parts of type text"),
}
TOOL_ROLES = ("tool", "function")  # of what a function returned

SUPPLIED = {"messages", "tools", "documents", "add_generation_prompt"}  # and the special tokens
GPT2_TOKENIZERS = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
END_OF_TEXT = "<|endoftext|>"
GOES_ON = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where a message to be continued ends, as in transformers


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark what a model wrote, changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class ChatTemplate:
    """A Jinja template as in Hugging Face models. It sees what transformers passes: `messages`,
    `add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now`; `tools` and `documents` are None.

    The sandbox keeps a template from another source from reaching into this program.

    Args:
        source: where the text comes from; errors begin with it.
        special_tokens: such as eos_token.

    Attributes:
        special_tokens: the ones that it uses.
        optional: its other variables, which a request may set (`chat_template_kwargs`); else they are undefined.

    Raises ValueError if it is not a template.
    """

    def __init__(self, text: str, source: str, special_tokens: dict[str, str]):
        extensions = [Generation, jinja2.ext.loopcontrols]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        environment.filters["tojson"] = to_json  # Jinja's own is for HTML
        try:
            self._template, tree = environment.from_string(text), environment.parse(text)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"{source}, line {error.lineno}: {error.message}") from None
        names = jinja2.meta.find_undeclared_variables(tree) - environment.globals.keys()
        self.special_tokens = {name: token for name, token in special_tokens.items() if name in names}
        self.optional = names - SUPPLIED - special_tokens.keys()

    def check_tokens(self, tokenizer: Any) -> None:
        """Raise ValueError if a special token that it uses is not a single token of the tokenizer."""
        for name, text in self.special_tokens.items():
            if len(tokenizer.encode(text)) != 1:
                message = f"the chat template uses {name}, but {text!r} is not one of the tokenizer's tokens"
                raise ValueError(f"{message}: give another template with --chat-template FILE")

    def prompt(
        self,
        messages: list[dict],
        *,
        begins: bool = True,
        goes_on: bool = False,
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt for messages. Raises APIError if the template refuses them.

        Args:
            begins: it ends with the beginning of an answer.
            goes_on: it ends with the last message, which is to be continued.
            kwargs: further variables.
        """
        if goes_on:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last.get("content", "") + GOES_ON}]
        given = {"messages": messages, "add_generation_prompt": begins, "tools": None, "documents": None}
        try:
            prompt = self._template.render(**kwargs, **self.special_tokens, **given)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise bad_request(f"the chat template can't take these messages: {error}", param="messages") from None
        if not goes_on:
            return prompt
        end = prompt.rfind(GOES_ON.strip())
        if end < 0:
            raise bad_request(
                "the chat template does not show the last message, which should be continued", param="messages"
            )
        # Cut what the template puts after a message, which would end it. Where it strips messages, strip this one too.
        return prompt[:end] if prompt.startswith(GOES_ON, end) else prompt[:end].rstrip()


def load_template(file: Path | None, directory: Path) -> ChatTemplate | None:
    """The template in this file, or else in the model's directory; None if there is none.

    Raises ValueError or OSError for one that can't be used.
    """
    config, tokens = directory / "tokenizer_config.json", special_tokens(directory)
    if file is not None:
        return ChatTemplate(read_text(file), f"--chat-template {file}", tokens)
    if (own := directory / "chat_template.jinja").is_file():
        return ChatTemplate(read_text(own), str(own), tokens)
    text = read_json(config, optional=True).get("chat_template")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{config} has several chat templates: name the file of one with --chat-template FILE")
    return ChatTemplate(text, f"the chat_template of {config}", tokens)


def special_tokens(directory: Path) -> dict[str, str]:
    """The special tokens of a tokenizer by their names, as transformers reads them from its files."""
    given = read_json(directory / "tokenizer_config.json", optional=True)
    if given.get("tokenizer_class") in GPT2_TOKENIZERS:
        given = {**dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT), **given}
    if "added_tokens_decoder" not in given:
        given |= read_json(directory / "special_tokens_map.json", optional=True)
    if isinstance(extra := given.get("extra_special_tokens"), dict):
        given |= extra
    tokens = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
    return {name: token for name, token in tokens.items() if name.endswith("_token") and isinstance(token, str)}


# --- Functions for templates, as in transformers ----------------------------------------------------------------------


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    """Refuse the messages."""
    raise jinja2.TemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


# --- Requests ---------------------------------------------------------------------------------------------------------


def chat_prompt(fields: Fields, template: ChatTemplate | None) -> str:
    """The prompt for a request's messages. Raises APIError."""
    if template is None:
        raise bad_request("the model has no chat template: use /v1/completions, or start with --chat-template FILE")
    goes_on = fields["continue_final_message"]
    begins = fields.get("add_generation_prompt", not goes_on)
    if begins and goes_on:
        message = "continue_final_message continues the last message, add_generation_prompt begins another: set one"
        raise bad_request(message, param="continue_final_message")
    messages, kwargs = read_messages(fields), template_kwargs(fields, template)
    return template.prompt(messages, begins=begins, goes_on=goes_on, kwargs=kwargs)


def template_kwargs(fields: Fields, template: ChatTemplate) -> dict:
    """The request's variables for the template; a false one that the template does not use is dropped. Raises APIError
    for any other that it does not use."""
    given = fields["chat_template_kwargs"]
    for name, value in given.items():
        if name in template.special_tokens or name in SUPPLIED or (value and name not in template.optional):
            message = f"chat_template_kwargs.{name:.80} is not a variable that a request can set for this template"
            raise bad_request(message, param="chat_template_kwargs")
    return {name: value for name, value in given.items() if name in template.optional}


def read_messages(fields: Fields) -> list[dict]:
    """The messages, each with its role, and its content as one string. Raises APIError."""
    if not fields["messages"]:
        raise bad_request("messages must be a list of at least one message", param="messages")
    return [read_message(one, f"messages[{i}]") for i, one in enumerate(fields["messages"])]


def read_message(message: Any, where: str) -> dict:
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object, got {message!r:.80}", param=where)
    fields = Fields(message, MESSAGE, f"{where}.", IDLE_IN_MESSAGES)
    if "role" not in fields:
        raise bad_request(f"{where}.role is missing", param=f"{where}.role")
    if fields["role"] in TOOL_ROLES:
        raise bad_request(f"{where}.role {fields['role']!r} is not supported: {NO_TOOLS}", param=f"{where}.role")
    if "content" not in fields:
        raise bad_request(f"{where}.content is missing", param=f"{where}.content")
    read = dict(fields)
    if isinstance(content := read["content"], list):
        read["content"] = "".join(read_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    return read


def read_part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise bad_request(f'{where} must be {{"type": "text", "text": …}}, got {part!r:.80}', param=where)
    others = {name: IDLE_IN_MESSAGES[name] for name in ("annotations", "cache_control")}
    fields = Fields(part, {"type": TEXT, "text": TEXT}, f"{where}.", others)
    if "text" not in fields:
        raise bad_request(f"{where}.text is missing", param=f"{where}.text")
    return fields["text"]
