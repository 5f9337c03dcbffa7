"""From prompts and sampling parameters to requests. All of it is checked here, before anything is computed."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from .philox import derive_seed
from .sampling_params import SamplingParams, check_integer
from .scoring import Pair, encode_pair

Prompt = str | list[int] | Pair  # a text, token ids, or a prompt and a continuation to be scored
Prompts = str | Sequence[Prompt]  # a single string is one prompt
Params = SamplingParams | Sequence[SamplingParams]  # one for all prompts, or one per prompt


def text_of(prompt: Prompt) -> str | None:
    """The text of a prompt; None if it is token ids."""
    if isinstance(prompt, Pair):
        return "".join(map(str, prompt)) if isinstance(prompt.prompt, str) else None
    return prompt if isinstance(prompt, str) else None


class InputProcessor:
    """Makes the requests of an engine. Raises ValueError, which says what is wrong and names the limit.

    Args:
        engine: has the tokenizer, the model's sizes, and `check_fits`.
        make_request: the class of the requests.
    """

    def __init__(self, engine: Any, make_request: Callable[..., Any]):
        self.engine, self.make_request = engine, make_request
        self._numbers = itertools.count()  # of requests

    def requests(
        self, prompts: Prompts, sampling_params: Params | None, priority: Sequence[int] | None = None
    ) -> list[Any]:
        """One request per prompt. An error names the prompt's index."""
        prompts = [prompts] if isinstance(prompts, str | Pair | dict) else list(prompts)
        params = SamplingParams() if sampling_params is None else sampling_params
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            raise ValueError(
                f"got {len(prompts)} prompts but {len(params)} sampling_params; give one, or one per prompt"
            )
        priorities = [0] * len(prompts) if priority is None else list(priority)
        if len(priorities) != len(prompts):
            raise ValueError(f"got {len(prompts)} prompts but {len(priorities)} priorities; give one per prompt")
        requests = []
        for i, (prompt, p, value) in enumerate(zip(prompts, params, priorities, strict=True)):
            try:
                requests.append(self.request(prompt, p, priority=value))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
        return requests

    def request(self, prompt: Prompt, params: SamplingParams, priority: int = 0, number: int | None = None) -> Any:
        """A checked request. Its number, by default the next one, is its id, and seeds its draws if it has no seed."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        vocab_size = self.engine.model_config.vocab_size
        params = replace(params, logprobs=vocab_size) if params.logprobs == -1 else params
        context, continuation = encode_pair(prompt, self.engine.tokenizer) if isinstance(prompt, Pair) else (prompt, [])
        token_ids = self._encode(context) + (self._encode(continuation) if continuation else [])
        self._check(token_ids, params)
        number = next(self._numbers) if number is None else number
        request = self.make_request(
            request_id=str(number),
            prompt=text_of(prompt),
            prompt_token_ids=token_ids,
            params=params,
            seed=derive_seed(self.engine.config.seed, number) if params.seed is None else params.seed,
            max_model_len=self.engine.max_model_len,
            tokenizer=self.engine.tokenizer,
            eos_token_ids=self.engine.model_config.eos_token_ids,
            priority=check_integer("priority", priority, -(2**63), 2**63 - 1),
            score_from=len(token_ids) - len(continuation) if continuation else 1,
        )
        self.engine.check_fits(request)
        return request

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.engine.tokenizer.encode(prompt)
        if not isinstance(prompt, list | tuple) or any(
            not isinstance(t, Integral) or isinstance(t, bool) for t in prompt
        ):
            raise ValueError(f"a prompt is a string or a list of token ids, got {prompt!r:.80}")
        if not prompt:
            raise ValueError("an empty list of token ids; to start from nothing, give the empty text ''")
        return [int(t) for t in prompt]

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        """Compare tokens and parameters with the model's vocabulary."""
        vocab_size = self.engine.model_config.vocab_size
        if bad := [t for t in token_ids if not 0 <= t < vocab_size]:
            raise ValueError(f"token {bad[0]} is outside the model's vocabulary of {vocab_size} tokens")
        if bad := [t for t in params.stop_token_ids if t >= vocab_size]:
            raise ValueError(f"stop_token_ids {bad[0]} is outside the model's vocabulary of {vocab_size} tokens")
        for name in ("logprobs", "prompt_logprobs"):
            if (number := getattr(params, name)) is not None and number > vocab_size:
                raise ValueError(f"{name} {number} is over the model's vocabulary of {vocab_size} tokens")
