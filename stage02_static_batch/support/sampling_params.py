"""How to sample a request, and when it ends. Names and meanings are vLLM's `SamplingParams`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 1e5  # within these, logits / temperature stays finite in float32


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request. The order: logits_processors, penalties, temperature, top-k, top-p, min-p,
    draw.

    Attributes:
        temperature: divides the logits; 0 is greedy (the best token, nothing is drawn), below 1 is sharper. Between 0
            and 0.00001 it is 0.00001.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least p (nucleus sampling,
            Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).
        repetition_penalty: over 1 makes tokens of the prompt and the output less likely (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted once from the logit of every token in the output.
        frequency_penalty: subtracted from a token's logit once per time it is in the output.
        seed: makes the draws repeatable, alone or beside others; None, or vLLM's -1, takes one from the engine's seed.
        max_tokens: the longest output, in tokens.
        min_tokens: before this many tokens nothing but `max_tokens` and the end of the context ends the output.
        stop: texts that end the output; the output ends before them.
        stop_token_ids: tokens that end the output; the token is in `token_ids`, its text is not in `text`.
        ignore_eos: go on past the model's end token.
        logprobs: return the log-probabilities of the chosen token and of this many most likely ones, from the model's
            raw logits; -1 is all of them, None returns none.
        logits_processors: functions (prompt token ids, output token ids, logits) -> logits, of their arguments alone.
            Logits are [vocab_size] float32, as the model gave them; a token at -inf is not chosen.
        include_stop_str_in_output: the text ends after the stop text, or the stop token's text, that ended it.
        skip_special_tokens: the end token has no text.

    Raises:
        ValueError: names the field and its value.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 64
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logits_processors: Sequence[Callable[..., Tensor]] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self):
        self._check_number("temperature", 0, MAX_TEMPERATURE)
        if self.temperature:
            self._set("temperature", max(self.temperature, MIN_TEMPERATURE))
        self._check_integer("top_k", 0, 2**31 - 1)
        self._check_number("top_p", 0, 1)
        if self.top_p == 0:
            raise ValueError(f"top_p must be over 0, got {self.top_p!r}")
        self._check_number("min_p", 0, 1)
        self._check_number("repetition_penalty", 0.01, 100)
        self._check_number("presence_penalty", -100, 100)
        self._check_number("frequency_penalty", -100, 100)
        if self.seed is not None:
            self._check_integer("seed", -1, 2**64 - 1)
            self._set("seed", None if self.seed == -1 else self.seed)
        self._check_integer("max_tokens", 1)
        self._check_integer("min_tokens", 0, self.max_tokens)
        if self.logprobs is not None:
            self._check_integer("logprobs", -1)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
            self._set(name, bool(getattr(self, name)))
        self._check_texts("stop")
        self._check_token_ids("stop_token_ids")
        self._set("logits_processors", self._check_sequence("logits_processors"))
        if not all(map(callable, self.logits_processors)):
            raise ValueError(f"logits_processors must be functions, got {self.logits_processors!r:.80}")

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    def _check_number(self, field: str, low: float, high: float) -> None:
        self._set(field, number(field, getattr(self, field), low, high))

    def _check_integer(self, field: str, low: int, high: int | None = None) -> None:
        self._set(field, whole_number(field, getattr(self, field), low, high))

    def _check_sequence(self, field: str) -> tuple[Any, ...]:
        value = getattr(self, field)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{field} must be a list, got {value!r}")
        return tuple(getattr(self, field))

    def _check_texts(self, field: str) -> None:
        value = getattr(self, field)
        texts = (value,) if isinstance(value, str) else self._check_sequence(field)
        if not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{field} must be texts that are not empty, got {value!r}")
        self._set(field, tuple(map(str, texts)))

    def _check_token_ids(self, field: str) -> None:
        self._set(field, tuple(dict.fromkeys(whole_number(field, i, 0) for i in self._check_sequence(field))))


# What comes from NumPy, say, is converted once, here: a numpy.int8 that counts overflows later, far from its origin.


def number(name: str, value: Any, low: float, high: float) -> float:
    """A number as Python's own. Raises ValueError, naming it, unless it is one from low to high."""
    # The last is false for NaN too.
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name} must be a number from {low} to {high}, got {value!r:.80}")
    return float(value)


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number as Python's own. Raises ValueError, naming it, unless it is one of at least low, at most high."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not low <= value <= (math.inf if high is None else high)  # pyright: ignore[reportOperatorIssue]
    ):
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {limit}, got {value!r:.80}")
    return int(value)
