"""A step's tokens before they count: the progress of each request with one more. (Speculative decoding, where drafts
are guesses of a smaller model, is something else.)"""

import logging
from collections.abc import Callable

from torch import Tensor

from .progress import Progress
from .request import Request

Drafts = list[tuple[Request, Progress]]
logger = logging.getLogger(__name__)


def sample_each(logits: Tensor, requests: list[Request], sample: Callable) -> tuple[Drafts, dict[Request, Exception]]:
    """A token for each request, not yet its own: `commit` makes it so. And the errors of those for which that fails;
    the others go on.

    Args:
        logits: [n_rows, vocab_size], a row per request.
        sample: the sampler. If it fails for all together, it is asked for each by itself.
    """
    drafts, errors = [], {}
    try:
        results = sample(logits, requests)
    except Exception:
        results = [None] * len(requests)
    for i, (request, result) in enumerate(zip(requests, results, strict=True)):
        try:
            if result is None:
                (result,) = sample(logits[i : i + 1], [request])
            elif isinstance(result, Exception):
                raise result
            drafts.append((request, request.progress.after(*result)))
        except Exception as error:
            errors[request] = error
            logger.warning("request %s fails: %s", request.request_id, error)
    return drafts, errors
