"""From prompts and sampling parameters to requests. All of it is checked here, before anything is computed."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from .philox import derive_seed
from .sampling_params import SamplingParams

Prompt = str | list[int]  # a text, or token ids
Prompts = str | Sequence[Prompt]  # a single string is one prompt
Params = SamplingParams | Sequence[SamplingParams]  # one for all prompts, or one per prompt


class InputProcessor:
    """Makes the requests of an engine. Raises ValueError, which says what is wrong and names the limit.

    Args:
        engine: has the tokenizer, the model's sizes, and `check_fits`.
        make_request: the class of the requests.
    """

    def __init__(self, engine: Any, make_request: Callable[..., Any]):
        self.engine, self.make_request = engine, make_request
        self._numbers = itertools.count()  # of requests

    def requests(self, prompts: Prompts, sampling_params: Params | None) -> list[Any]:
        """One request per prompt. An error names the prompt's index."""
        prompts = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        params = SamplingParams() if sampling_params is None else sampling_params
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            raise ValueError(
                f"got {len(prompts)} prompts but {len(params)} sampling_params; give one, or one per prompt"
            )
        requests = []
        for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
            try:
                requests.append(self.request(prompt, p))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
        return requests

    def request(self, prompt: Prompt, params: SamplingParams, number: int | None = None) -> Any:
        """A checked request. Its number, by default the next one, is its id, and seeds its draws if it has no seed."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        vocab_size = self.engine.model_config.vocab_size
        params = replace(params, logprobs=vocab_size) if params.logprobs == -1 else params
        token_ids = self._encode(prompt)
        self._check(token_ids, params)
        number = next(self._numbers) if number is None else number
        request = self.make_request(
            request_id=str(number),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=params,
            seed=derive_seed(self.engine.config.seed, number) if params.seed is None else params.seed,
            max_model_len=self.engine.max_model_len,
            tokenizer=self.engine.tokenizer,
            eos_token_ids=self.engine.model_config.eos_token_ids,
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
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise ValueError(f"logprobs {params.logprobs} is over the model's vocabulary of {vocab_size} tokens")
