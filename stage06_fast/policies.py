"""Policies: which waiting request is admitted first. Each gives an arriving request a number; lower is earlier."""

from .request import Request

POLICIES = ("fcfs", "fair", "priority", "shortest")
AGING = 16  # under "shortest": how many prompt tokens a step of waiting is worth


def policy_rank(policy: str, request: Request, num_steps: int) -> float:
    """The number that a policy gives a request. Equal numbers are admitted in the order of arrival.

    "fair" takes the completions of one call (its prompts, and n of each) as if each arrived only when the one before it
    must have ended, at one step per token. So a newcomer comes before every completion that would not have started by
    now. Nothing starves, because no newcomer gets a number that is in the past.

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
    if policy == "fair":
        return num_steps + sibling_lag(policy, request, request.num_ahead)
    return 0


def sibling_lag(policy: str, request: Request, num_siblings: int) -> int:
    """The steps added to a completion's number for the siblings before it."""
    return num_siblings * (len(request.prompt_token_ids) + request.max_tokens) if policy == "fair" else 0
