"""Policies: which waiting request is admitted first. Each gives an arriving request a number; lower is earlier."""

from .request import Request

AGING = 16  # under "shortest": how many prompt tokens a step of waiting is worth


def policy_rank(policy: str, request: Request, num_steps: int) -> int:
    """The number that a policy gives a request. Equal numbers are admitted in the order of arrival.

    "shortest" subtracts AGING tokens from a prompt for each step that it has waited. All waiting requests age
    alike, so a newcomer instead starts with AGING added for each step already done. A prompt of P tokens is therefore
    overtaken only by prompts that come within P / AGING steps after it: nothing starves.

    Args:
        num_steps: how many steps the engine has done.
    """
    if policy == "priority":
        return request.priority
    if policy == "shortest":
        return len(request.prompt_token_ids) + AGING * num_steps
    return 0
