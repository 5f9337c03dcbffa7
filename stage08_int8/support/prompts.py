"""Prompts as they are given: texts, lists of token ids, or vLLM's dicts of one; cut to a length that was asked for."""

from collections.abc import Mapping
from typing import Any

from .sampling_params import SamplingParams

KEYS = {"prompt", "prompt_token_ids"}


def unwrapped(prompt: Any) -> tuple[Any, Any]:
    """What is to be encoded of a prompt, and what it is called in the result: of a dict with both, the text."""
    if not isinstance(prompt, Mapping):
        return prompt, prompt
    given = {name: value for name, value in prompt.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - KEYS)):
        raise ValueError(f"a prompt as a dict has {' or '.join(sorted(KEYS))}, got {unknown[0]!r:.80}")
    if not given:
        raise ValueError(f"a prompt as a dict has {' or '.join(sorted(KEYS))}, got {prompt!r:.80}")
    if not isinstance(given.get("prompt", ""), str) or not isinstance(given.get("prompt_token_ids", []), list | tuple):
        raise ValueError("prompt must be a text, prompt_token_ids a list of token ids")
    encoded = given.get("prompt_token_ids", given.get("prompt"))
    return encoded, given.get("prompt", encoded)


def truncated(token_ids: list[int], params: SamplingParams, max_model_len: int) -> list[int]:
    """The last tokens of a prompt, as many as the parameters say."""
    most = params.truncate_prompt_tokens
    if most is None:
        return token_ids
    if most > max_model_len:
        raise ValueError(f"truncate_prompt_tokens {most} is over max_model_len {max_model_len}")
    if most == -1:
        most = max_model_len - min(max(1, params.max_tokens), max_model_len - 1)
    return token_ids[-most:]
