"""What a request asks of the logits themselves, before penalties: biases, tokens that are forbidden or alone allowed,
a form of the whole output (structured.py), the caller's own functions. Names and meanings are those of vLLM's
`SamplingParams`.

All of it follows from the parameters and the tokens so far. So nothing here changes while a request runs, and it is the
same after a preemption, beside any other requests.
"""

import copy
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .sampling_params import SamplingParams
from .structured import FormError, Guide
from .tokenizer import Tokenizer


def bad_token_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The words as tokens: each as it begins a text, and as it follows a space, which may be other tokens and fewer."""
    return [tokenizer.encode(space + word.lstrip()) for word in words for space in ("", " ")]


class Controls:
    """Those of a request.

    Args:
        params: what it asks for.
        tokenizer: makes tokens of its bad words.
        eos_token_ids: the model's end tokens.

    Attributes:
        bad: the bad words, as tokens.
        ending: the tokens that may not come before `min_tokens`.
    """

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]):
        self.params, self.bad = params, bad_token_ids(params.bad_words, tokenizer)
        self.ending = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        form = params.structured_outputs
        self._guide = None if form is None else Guide(form, tokenizer, eos_token_ids)
        others = params.logit_bias or params.allowed_token_ids or params.logits_processors or self.bad
        self._lasting = bool(others or self._guide)
        self._tensors: dict[tuple[str, torch.device], Tensor] = {}

    def fork(self) -> "Controls":
        """Those of another completion of the request: what follows from an output is its own."""
        other = copy.copy(self)
        other._guide = self._guide and self._guide.fork()
        return other

    @property
    def may_fail(self) -> bool:
        """Whether a step may fail for this request alone."""
        return bool(self.params.logits_processors or self._guide)

    def asks(self, num_output: int) -> bool:
        """Whether it asks for anything behind so many tokens of output."""
        return self._lasting or num_output < self.params.min_tokens

    def steer(self, logits: Tensor, prompt_token_ids: list[int], output_token_ids: list[int]) -> Tensor:
        """The logits with all that is asked for; a token that must not be chosen is at -inf. [vocab_size] -> same"""
        params, device = self.params, logits.device
        for process in params.logits_processors:
            logits = processed(process, logits, prompt_token_ids, output_token_ids)
        if params.logit_bias:
            ids = self._tensor("biased", list(params.logit_bias), device)
            bias = torch.tensor([*params.logit_bias.values()], dtype=logits.dtype, device=device)
            logits = logits.index_add(0, ids, bias)
        if params.allowed_token_ids is not None:
            ids = self._tensor("allowed", params.allowed_token_ids, device)
            logits = torch.full_like(logits, -math.inf).index_copy(0, ids, logits[ids])
        if forbidden := [word[-1] for word in self.bad if ends_with(output_token_ids, word[:-1])]:
            logits = logits.index_fill(0, torch.tensor(forbidden, dtype=torch.int64, device=device), -math.inf)
        if self._guide is not None:
            logits = held_to(logits, self._guide.allowed(output_token_ids))
        if len(output_token_ids) < params.min_tokens and self.ending:
            longer = logits.index_fill(0, self._tensor("ending", self.ending, device), -math.inf)
            logits = longer if self._guide is None or longer.max().isfinite() else logits  # for its form is complete
        return logits

    def _tensor(self, name: str, token_ids: Sequence[int], device: torch.device) -> Tensor:
        """Token ids on a device, made once."""
        if (name, device) not in self._tensors:
            self._tensors[name, device] = torch.tensor(token_ids, dtype=torch.int64, device=device)
        return self._tensors[name, device]

    def check(self, vocab_size: int) -> None:
        """Raise ValueError for a token that the model has not, and if they leave nothing to choose."""
        params = self.params
        columns = {"logit_bias token": params.logit_bias or (), "allowed_token_ids": params.allowed_token_ids or ()}
        columns |= {"stop_token_ids": params.stop_token_ids, "bad_words token": [i for word in self.bad for i in word]}
        for name, ids in columns.items():
            if bad := [i for i in ids if not 0 <= i < vocab_size]:
                raise ValueError(f"{name} {bad[0]} is outside the model's vocabulary of {vocab_size} tokens")
        if params.min_tokens and len({*self.ending}) == vocab_size:
            raise ValueError("min_tokens leaves nothing to choose: every token of the vocabulary is a stop token")
        forbidden = {word[0] for word in self.bad if len(word) == 1} | {*(self.ending if params.min_tokens else ())}
        allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
        if self._guide is not None and params.ignore_eos:
            raise ValueError("ignore_eos can't go with structured_outputs: the end token is how the form ends")
        if forbidden.issuperset(allowed):
            raise ValueError("allowed_token_ids leaves nothing to choose: bad_words or min_tokens forbid all of them")


def held_to(logits: Tensor, allowed: np.ndarray) -> Tensor:
    """The logits, at -inf but for what is allowed. [vocab_size], [n] bool -> [vocab_size]

    Raises FormError if that leaves nothing.
    """
    vocab_size = len(logits)
    forbidden = np.ones(vocab_size, bool)  # a model's vocabulary may be larger than its tokenizer's
    np.logical_not(allowed[:vocab_size], out=forbidden[: len(allowed)])
    held = logits.masked_fill(torch.from_numpy(forbidden).to(logits.device), -math.inf)
    if not held.max().isfinite() and logits.max().isfinite():
        raise FormError("structured_outputs leaves nothing to choose beside what else is asked for")
    return held


def steer(scores: Tensor, requests: Sequence[Any]) -> None:
    """Let each request's controls change its row, in place. [n_rows, vocab_size]"""
    for row, request in zip(scores, requests, strict=True):
        if request.controls.asks(len(request.output_token_ids)):
            row.copy_(request.controls.steer(row, request.prompt_token_ids, request.output_token_ids))


def processed(process: Any, logits: Tensor, prompt_token_ids: list[int], output_token_ids: list[int]) -> Tensor:
    """What a function of the caller's makes of the logits. Raises ValueError unless these are as many numbers."""
    before = ([*prompt_token_ids], [*output_token_ids]) if takes_prompt(process) else ([*output_token_ids],)
    result = process(*before, logits.clone())
    if not isinstance(result, Tensor) or result.shape != logits.shape:
        raise ValueError(f"a logits processor must give logits [{len(logits)}], got {result!r:.80}")
    return result.to(logits)


def takes_prompt(process: Any) -> bool:
    try:
        return len(inspect.signature(process).parameters) == 3
    except (TypeError, ValueError):  # of one that is not written in Python
        return False


def ends_with(token_ids: list[int], others: list[int]) -> bool:
    return len(others) <= len(token_ids) and token_ids[len(token_ids) - len(others) :] == others
