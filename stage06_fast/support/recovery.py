"""After a step that was cut short, by an error or by a Ctrl-C between any two of its lines: go on from what is certain.

Certain are the requests, and of each the tokens that it has. All else is made from these: the text of a request, the
reason why it ended, the queue. What was in the KV cache is computed again.
"""

import copy
from typing import Any


def start_over(engine: Any, requests: list[Any]) -> list[Any]:
    """Start over with these requests, all that there are. Returns the completions with news. Harmless if it is done
    twice."""
    engine.scheduler.clear()
    completions = [completion for request in requests for completion in request.group]
    for completion in completions:
        restore(completion)
        completion.wait()
        if not completion.output_token_ids:  # as if it had not been admitted yet
            completion.first_scheduled_time, completion.num_cached_tokens = None, 0
    for completion in completions:
        first = completion.group[0]  # the others wait for its first token
        if not completion.finished and (completion is first or first.output_token_ids or first.finished):
            engine.scheduler.add(completion)
    return [c for c in completions if has_news(c)]


def has_news(request: Any) -> bool:
    """Whether it has tokens, or an end, that no stream has given out."""
    return request.told[0] < len(request.output_token_ids) or (request.finished and not request.told[2])


def restore(request: Any) -> None:
    """Make a request what its tokens say, whatever line of `add` was cut short: a new one gets the same tokens, and
    becomes the request in a single assignment."""
    new = copy.copy(request)
    new.begin()
    for i, token_id in enumerate(request.output_token_ids):
        new.add(token_id, request.logprobs[i] if request.logprobs else None)
    if not new.finished and (request.told[2] or request.finish_reason == "length"):  # an end that is no token's
        new.finish_reason, new.stop_reason = request.finish_reason, request.stop_reason
    new.token_times = request.token_times[: len(new.output_token_ids)]
    vars(request).update(vars(new))
