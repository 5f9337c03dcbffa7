"""Policies: which waiting request is admitted first. Each gives an arriving request a number; lower is earlier."""

from .request import Request

AGING = 16  # under "shortest": how many prompt tokens a step of waiting is worth


def policy_rank(policy: str, request: Request, num_steps: int) -> int:
    """The number that a policy gives a request. Equal numbers are admitted in the order of arrival.

    "shortest" lets requests age: each step of waiting makes a prompt AGING tokens shorter. All age alike, so the queue
    need not be updated: a request starts with AGING added for each step already done. A prompt of P tokens is overtaken
    only by prompts that come within P / AGING steps after it: nothing starves.

    Args:
        num_steps: how many steps the engine has done.
    """
    if policy == "priority":
        return request.priority
    if policy == "shortest":
        return len(request.prompt_token_ids) + AGING * num_steps
    return 0
