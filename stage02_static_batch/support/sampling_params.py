"""How to sample a request, and when it ends. Names and meanings are vLLM's `SamplingParams`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 1e5  # within these, logits / temperature stays finite in float32


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request. The order: logits_processors, penalties, temperature, top-k, top-p, min-p,
    draw.

    Attributes:
        temperature: divides the logits; 0 is greedy (the best token, nothing is drawn), below 1 is sharper. The
            lowest above 0 is 0.00001.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least p (nucleus sampling,
            Holtzman et al. 2020).
        min_p: drop tokens whose probability is below p times that of the most likely one (Nguyen et al. 2024).
        repetition_penalty: over 1 makes tokens of the prompt and the output less likely (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted once from the logit of every token in the output.
        frequency_penalty: subtracted from a token's logit for every time that it is in the output.
        seed: makes the draws repeatable, alone or in a batch; None takes one from the engine's seed.
        max_tokens: the longest output, in tokens.
        min_tokens: before this many tokens only `max_tokens` and the end of the context end the output.
        stop: strings that end the output; it ends before the first one.
        stop_token_ids: tokens that end the output; the token is in `token_ids`, its text is not in `text`.
        ignore_eos: go on past the model's end token.
        logprobs: return the log-probabilities of the chosen token and of this many most likely ones, from the model's
            raw logits; -1 is all of them, None returns none.
        logits_processors: pure functions (prompt token ids, output token ids, logits) -> logits.
            Logits are [vocab_size] float32, as the model gave them; a token at -inf is not chosen.
        include_stop_str_in_output: the text ends after the stop string, or the stop token's text, that ended it.
        skip_special_tokens: leave special tokens, such as the end token, out of the text.

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
    logits_processors: Sequence[Callable[..., Any]] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self):
        self._check(check_number, "temperature", low=0, high=MAX_TEMPERATURE)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature must be 0 or at least {MIN_TEMPERATURE}, got {self.temperature!r}")
        self._check(check_integer, "top_k", low=0, high=2**31 - 1)
        self._check(check_number, "top_p", "min_p", low=0, high=1)
        if self.top_p == 0:
            raise ValueError(f"top_p must be over 0, got {self.top_p!r}")
        self._check(check_number, "repetition_penalty", low=0.01, high=100)
        self._check(check_number, "presence_penalty", "frequency_penalty", low=-100, high=100)
        self._check(check_integer, "seed", low=0, high=2**64 - 1, optional=True)
        self._check(check_integer, "max_tokens", low=0)
        self._check(check_integer, "min_tokens", low=0, high=self.max_tokens)
        self._check(check_integer, "logprobs", low=-1, optional=True)
        self._check(check_boolean, "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
        self._check(check_stop, "stop")
        self._check(check_token_ids, "stop_token_ids")
        self._check(check_functions, "logits_processors")

    def _check(self, check: Callable[..., Any], *fields: str, optional: bool = False, **limits: Any) -> None:
        """Replace fields by what the check returns. optional: None stays as it is."""
        for field in fields:
            if not (optional and getattr(self, field) is None):
                object.__setattr__(self, field, check(field, getattr(self, field), **limits))


# --- Checks: (name, value) -> the value as a Python type, or a ValueError that names both. A numpy.int8, for example,
# would overflow later, in a sum far from here. ----------------------------------------------------------------------


def check_number(name: str, value: Any, low: float, high: float) -> float:
    # This form also catches NaN.
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name} must be a number from {low} to {high}, got {value!r:.80}")
    return float(value)


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not low <= value <= (math.inf if high is None else high)  # pyright: ignore[reportOperatorIssue]
    ):
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {limit}, got {value!r:.80}")
    return int(value)


def check_boolean(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's too
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_list(name: str, value: Any) -> tuple[Any, ...]:
    if not is_list(value):
        raise ValueError(f"{name} must be a list, got {value!r:.80}")
    return tuple(value)


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_stop(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else check_list(name, value)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} must be non-empty texts, got {value!r:.80}")
    return tuple(map(str, texts))


def check_token_ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(check_integer(name, token_id, 0) for token_id in check_list(name, value)))


def check_functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    if not all(map(callable, check_list(name, value))):
        raise ValueError(f"{name} must be functions, got {value!r:.80}")
    return tuple(value)
