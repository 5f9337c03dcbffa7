"""Prompts as they are given: texts, lists of token ids, or vLLM's dicts of one."""

from collections.abc import Mapping
from typing import Any

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
