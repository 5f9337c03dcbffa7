"""Limits for one request, so that no request makes others wait: each limit is a flag of the server."""

import argparse
from dataclasses import dataclass, field, fields
from typing import Any

from ..parser import num_bytes
from ..stages import Stage


def limit(default: float, help: str, low: float = 1) -> Any:
    return field(default=default, metadata={"help": help, "low": low})


@dataclass(frozen=True)
class Limits:
    """A request beyond one of these is refused with an error that names it.

    A single request gets at most half of the free places in the queue, so there is always one left for the next.
    """

    max_queue_size: int = limit(4096, "completions that may wait, prompts times n")
    max_queue_tokens: int = limit(2**22, "tokens that all waiting and running requests may reach, prompts included")
    max_body_bytes: int = limit(2**20, "bytes in a request's body")
    max_json_values: int = limit(2**16, "values in a request's JSON: numbers, texts, lists, objects")
    max_choices: int = limit(128, "completions in a request: prompts times n")
    max_stop_texts: int = limit(64, "strings in a request's stop or bad_words")
    max_stop_characters: int = limit(1024, "characters in one of them")
    max_token_ids: int = limit(1024, "token ids in a request's stop_token_ids, allowed_token_ids or logit_bias")
    max_logprobs: int = limit(20, "log-probabilities of likely tokens with each token; -1: of the whole vocabulary", -1)
    form_seconds: float = limit(1, "seconds of CPU time that compiling a structured-output form may take", 0.01)
    max_connections: int = limit(512, "connections; with more, requests get 503", 2)
    idle_seconds: float = limit(10, "seconds that a connection may be silent, or take to send a request", 0.01)


def add_flags(add: Any) -> None:
    """A flag for each limit; `add` is a parser's `add_argument`."""
    for one in fields(Limits):
        kind, metavar = (float, "SECONDS") if one.type in (float, "float") else (int, "N")
        kind, metavar = (num_bytes, "SIZE") if one.name.endswith("_bytes") else (kind, metavar)
        text = f"{one.metadata['help']} (default: %(default)s)"
        add("--" + one.name.replace("_", "-"), type=kind, default=one.default, metavar=metavar, help=text)


def limits_of(args: argparse.Namespace, stage: Stage) -> Limits:
    """The limits that the flags ask for. Raises ValueError for one that is wrong."""
    values = {one.name: getattr(args, one.name) for one in fields(Limits)}
    for one in fields(Limits):
        flag, value = "--" + one.name.replace("_", "-"), values[one.name]
        if isinstance(value, float):
            stage.check_number(flag, value, one.metadata["low"], 86400)
        else:
            stage.check_whole_number(flag, value, one.metadata["low"])
    return Limits(**values)
