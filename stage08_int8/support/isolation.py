"""A request that fails in a step ends there, and the others go on."""

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .around import around
from .logprobs import NOT_FINITE
from .scoring import Scorer
from .structured import FormError

logger = logging.getLogger(__name__)


def isolated(sample: Callable) -> Callable:
    """A sampler that, if it fails for all rows together, is asked for each by itself. A row that still fails gets the
    token -1 and its error."""

    @functools.wraps(sample)
    def sample_isolated(logits: Tensor, requests: list[Any], *how: Any) -> list[tuple]:
        with contextlib.suppress(Exception):  # whichever it is, it comes again below
            return sample(logits, requests, *how)
        tokens = []
        for i, request in enumerate(requests):
            try:
                tokens += sample(logits[i : i + 1], [request], *how)
            except Exception as error:
                logger.warning("request %s fails: %s", request.request_id, error)
                tokens.append((-1, error))
        return tokens

    return sample_isolated


class Isolation:
    """Ends the requests that a step could not sample or score."""

    def __init__(self, engine: Any, scorer: Scorer):
        self.engine, self.scorer, self.worked = weakref.proxy(engine), scorer, False
        around(engine, "commit", self.commit)

    def commit(self, commit: Callable, batch: Any, tokens: list[tuple]) -> list[Any]:
        """If no request would be left, or none has ever got a token, it is the engine's error, and is raised. A form
        that can't be followed is its request's own error."""
        failed = self.scorer.take_failed()
        failed |= {request: what for request, (token, what) in zip(batch.ready, tokens, strict=True) if token < 0}
        self.worked = self.worked or any(token >= 0 for token, _ in tokens)
        if not failed:
            return commit(batch, tokens)
        scheduler = self.engine.scheduler
        left = {r for r in (*scheduler.running, *(entry[-1] for entry in scheduler.waiting)) if not r.finished}
        own = {request for request, what in failed.items() if isinstance(what, FormError)}
        if failed.keys() - own and (not self.worked or failed.keys() >= left):
            raise next(filter(None, failed.values()), ValueError(NOT_FINITE))
        tokens = [(-1, None) if r in failed else token for r, token in zip(batch.ready, tokens, strict=True)]
        news = commit(batch, tokens)
        for request in dict.fromkeys(completion.group[0] for completion in failed):
            ended = [completion for completion in request.group if not completion.finished]
            self.engine.abort(request)
            news = [*news, *ended]
        return news
