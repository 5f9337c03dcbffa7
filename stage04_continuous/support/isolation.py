"""A request that fails in a step ends there, and the others go on."""

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .around import around
from .logprobs import NOT_FINITE
from .scoring import Scorer

logger = logging.getLogger(__name__)


def isolated(sample: Callable) -> Callable:
    """A sampler that, if it fails for all rows together, is asked for each by itself. Where it still fails the token is
    -1; if it is every row, that is raised."""

    @functools.wraps(sample)
    def sample_isolated(logits: Tensor, requests: list[Any], *how: Any) -> list[tuple]:
        try:
            return sample(logits, requests, *how)
        except Exception as error:
            tokens, failure = [], error
        for i, request in enumerate(requests):
            try:
                tokens += sample(logits[i : i + 1], [request], *how)
            except Exception as error:
                logger.warning("request %s fails: %s", request.request_id, error)
                tokens.append((-1, None))
        if all(token_id < 0 for token_id, _ in tokens):
            raise failure
        return tokens

    return sample_isolated


class Isolation:
    """Ends the requests that a step could not sample or score."""

    def __init__(self, engine: Any, scorer: Scorer):
        self.engine, self.scorer = weakref.proxy(engine), scorer
        around(engine, "commit", self.commit)

    def commit(self, commit: Callable, batch: Any, tokens: list[tuple]) -> list[Any]:
        """If it is all of them, that is the engine's error."""
        failed = self.scorer.take_failed()
        failed |= {request: None for request, token in zip(batch.ready, tokens, strict=True) if token[0] < 0}
        if not failed:
            return commit(batch, tokens)
        if failed.keys() >= set(batch.ready):
            raise ValueError(NOT_FINITE)
        tokens = [(-1, None) if r in failed else token for r, token in zip(batch.ready, tokens, strict=True)]
        slots = [request.slot for request in failed]
        news = commit(batch, tokens)
        # 0 x NaN is NaN, and the slot's next request may read past its own.
        self.engine.runner.cache.data[:, :, slots] = 0
        for request in (request for request in failed if not request.finished):
            self.engine.abort(request)
            news = [*news, request]
        return news
