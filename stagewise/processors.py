"""Logits processors for vLLM's and OpenAI's fields, for any stage.

    from stagewise import structured
    SamplingParams(logits_processors=[structured(llm, choice=["yes", "no"])])

Each is a pure function (prompt token ids, output token ids, logits) -> logits, except that it changes the logits in
place. `sampling_params` makes them from fields with vLLM's names.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from .form_compiler import SECONDS
from .stages import llm_of
from .structured_outputs import Form, Structured

if TYPE_CHECKING:  # else imported where it is used: the command line's flags need no torch
    from torch import Tensor, device

MAX_BIAS = 100.0  # OpenAI's limit


def structured(llm: Any, *, seconds: float = SECONDS, **form: Any) -> Structured:
    """Structured output: the whole output has this form. It ends with the end token when the form is complete; before
    that only `max_tokens` ends it, if the parameters have neither stop strings nor stop tokens.

    Args:
        llm: the model's LLM, or AsyncLLM.
        seconds: CPU time that compiling the form may take.
        form: one of `json` (a JSON schema), `regex`, `choice` (a list of texts), `grammar` (Lark's or GBNF) and
            `json_object=True`; and `disable_any_whitespace`. See `Form`.

    Raises:
        ValueError: names what is wrong with the form, or the limit that it exceeds.
    """
    return Structured(llm, Form.of(form), seconds)


class OnDevices:
    """A tensor of these values, copied once to each device that uses it."""

    def __init__(self, values: list[Any], dtype: str):
        self.values, self.dtype = values, dtype
        self._copies: dict[device, Tensor] = {}

    def on(self, device: "device") -> "Tensor":
        import torch

        if device not in self._copies:
            self._copies[device] = torch.tensor(self.values, dtype=getattr(torch, self.dtype), device=device)
        return self._copies[device]


class TokenIds:
    """Token ids; `name` is the parameter's, for errors."""

    def __init__(self, name: str, token_ids: Iterable[Any]):
        self.name, self.token_ids = name, [whole_number(name, i) for i in token_ids]
        self.largest, self._tensor = max(self.token_ids, default=-1), OnDevices(self.token_ids, "int64")

    def check(self, vocab_size: int) -> None:
        """Raise ValueError for a token that the model does not have."""
        if self.largest >= vocab_size:
            raise ValueError(f"{self.name} {self.largest} is outside the model's vocabulary of {vocab_size} tokens")

    def on(self, logits: "Tensor") -> "Tensor":
        """The ids, on the logits' device. [vocab_size] -> [n]"""
        self.check(len(logits))
        return self._tensor.on(logits.device)


class LogitBias:
    """Add to logits. bias: token id (in JSON a string) -> what to add, from -100 to 100."""

    def __init__(self, bias: Mapping[Any, float]):
        if not isinstance(bias, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"logit_bias must be a mapping from token ids to numbers, got {bias!r:.80}")
        ids = (int(i) if isinstance(i, str) and i.isdecimal() and len(i) < 20 else i for i in bias)
        self.ids = TokenIds("logit_bias token", ids)
        self.values = [number("logit_bias", value, -MAX_BIAS, MAX_BIAS) for value in bias.values()]
        self._added = OnDevices(self.values, "float32")

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: "Tensor") -> "Tensor":
        return logits.index_add_(0, self.ids.on(logits), self._added.on(logits.device).to(logits.dtype))


class AllowedTokenIds:
    """Allow only these tokens."""

    def __init__(self, token_ids: Iterable[int]):
        if isinstance(token_ids, str) or not isinstance(token_ids, Iterable):
            raise ValueError(f"allowed_token_ids must be a list, got {token_ids!r:.80}")
        self.ids = TokenIds("allowed_token_ids", token_ids)
        if not self.ids.token_ids:
            raise ValueError("allowed_token_ids must not be empty: no token could be chosen")

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: "Tensor") -> "Tensor":
        import torch

        ids = self.ids.on(logits)
        return torch.full_like(logits, -math.inf).index_copy_(0, ids, logits[ids])


class BadWords:
    """Forbid texts, at the beginning of the output and after a space: once all tokens of a text but the last are there,
    the last is forbidden.

    Attributes:
        words: the tokens of each text, without a space before it and with one.
    """

    def __init__(self, llm: Any, words: str | Sequence[str]):
        llm = llm_of(llm)
        encode = llm.get_tokenizer().encode
        self.words = [encode(space + word.lstrip()) for word in checked_words(words) for space in ("", " ")]
        self.ids = TokenIds("bad_words token", (i for word in self.words for i in word))
        self.ids.check(llm.vocab_size)

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: "Tensor") -> "Tensor":
        import torch

        forbidden = [word[-1] for word in self.words if ends_with(output_token_ids, word[:-1])]
        return logits.index_fill_(0, torch.tensor(forbidden, dtype=torch.int64, device=logits.device), -math.inf)


logit_bias, allowed_token_ids, bad_words = LogitBias, AllowedTokenIds, BadWords  # the names used in `stagewise`


def checked_words(words: Any) -> tuple[str, ...]:
    words = (words,) if isinstance(words, str) else words
    if not isinstance(words, Sequence) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"bad_words must be strings that are not blank, got {words!r:.80}")
    return tuple(words)


def ends_with(token_ids: list[int], others: list[int]) -> bool:
    return len(others) <= len(token_ids) and token_ids[len(token_ids) - len(others) :] == others


def number(name: str, value: Any, low: float, high: float) -> float:
    """A number as a float. Raises ValueError, naming it, unless it is from low to high."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name} must be a number from {low} to {high}, got {value!r:.80}")
    return float(value)


def whole_number(name: str, value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number as a Python int. Raises ValueError, naming it, unless it is from low to high."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {value!r:.80}")
    return int(value)
