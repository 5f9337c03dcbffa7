"""What a request asks of the sampler, and when it ends. Names and meanings are vLLM's `SamplingParams`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 1e5  # within these, logits / temperature stays finite in float32
MAX_PROMPT_LOGPROBS = 20  # vLLM's limit; with 50,000 for each token of a prompt, one request would stop all others


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request. The order: penalties, temperature, top-k, top-p, min-p, draw.

    Attributes:
        temperature: divides the logits; 0 is greedy (the best token, nothing is drawn), below 1 is sharper.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least p (nucleus sampling,
            Holtzman et al. 2020).
        min_p: keep tokens at least this share as likely as the most likely one (Nguyen et al. 2024).
        repetition_penalty: over 1 makes tokens of the prompt and the output less likely (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted once from the logit of every token in the output.
        frequency_penalty: subtracted from a token's logit once per time it is in the output.
        seed: makes the draws repeatable, alone or in company; None takes one from the engine's seed.
        max_tokens: the longest output, in tokens.
        min_tokens: before this many tokens nothing but `max_tokens` and the end of the context ends the output.
        stop: texts that end the output; the output ends before them.
        stop_token_ids: tokens that end the output; the token is in `token_ids`, its text is not in `text`.
        ignore_eos: go on past the model's end token.
        logprobs: return the log-probabilities of the chosen token and of this many most likely ones, from the model's
            raw logits; None returns none.
        prompt_logprobs: the same for each token of the prompt; at most 20. With it max_tokens may be 0.
        n: how many completions of the prompt. The first is the one that n=1 gives.

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
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self):
        self._check_number("temperature", 0, MAX_TEMPERATURE)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, got {self.temperature!r}")
        self._check_integer("top_k", 0, 2**31 - 1)
        self._check_number("top_p", 0, 1)
        if self.top_p == 0:
            raise ValueError(f"top_p must be over 0, got {self.top_p!r}")
        self._check_number("min_p", 0, 1)
        self._check_number("repetition_penalty", 0.01, 100)
        self._check_number("presence_penalty", -100, 100)
        self._check_number("frequency_penalty", -100, 100)
        if self.seed is not None:
            self._check_integer("seed", 0, 2**64 - 1)
        if self.prompt_logprobs is not None:
            self._check_integer("prompt_logprobs", 0, MAX_PROMPT_LOGPROBS)
        self._check_integer("max_tokens", 1 if self.prompt_logprobs is None else 0)
        self._check_integer("min_tokens", 0, self.max_tokens)
        if self.logprobs is not None:
            self._check_integer("logprobs", 0)
        self._check_integer("n", 1, 1024)
        if not isinstance(self.ignore_eos, bool | np.bool_):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")
        object.__setattr__(self, "ignore_eos", bool(self.ignore_eos))
        stop = (self.stop,) if isinstance(self.stop, str) else self._check_sequence("stop")
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop must be texts that are not empty, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(map(str, stop)))
        stop_token_ids = self._check_sequence("stop_token_ids")
        object.__setattr__(self, "stop_token_ids", tuple(whole_number("stop_token_ids", i, 0) for i in stop_token_ids))

    def _check_number(self, field: str, low: float, high: float) -> None:
        object.__setattr__(self, field, number(field, getattr(self, field), low, high))

    def _check_integer(self, field: str, low: int, high: int | None = None) -> None:
        object.__setattr__(self, field, whole_number(field, getattr(self, field), low, high))

    def _check_sequence(self, field: str) -> tuple[Any, ...]:
        value = getattr(self, field)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{field} must be a list, got {value!r}")
        return tuple(getattr(self, field))


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
