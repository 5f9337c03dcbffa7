"""Beam search over the prompts of a run: `--beam-width`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from .sampling import Sampling

# Fields of other servers and libraries, with the values that ask for nothing.
BEAM_FIELDS = {"use_beam_search": (False,), "length_penalty": (1, 1.0), "early_stopping": (False,)}
NO_BEAMS = "a search has the engine to itself: take --beam-width, for all prompts of a run, or LLM.beam_search"
AT_ONCE = 16  # prompts of a file that are searched together, and then written


def drawing(sampling: Sampling) -> list[str]:
    """The fields that ask for something a beam search can't do."""
    params, make = sampling.params, sampling.stage.SamplingParams
    plain = make(**{name: getattr(params, name) for name in ("temperature", "max_tokens", "n", "seed")})
    names = [name for name in make.__dataclass_fields__ if getattr(params, name) != getattr(plain, name)]
    return [*names, *sampling.given]


def completed_by_beams(llm: Any, beam_width: int) -> Callable[..., Iterator[tuple[int, Any]]]:
    """In place of `llm.as_completed`: completes prompts by beam search, and passes scored lines on."""

    def as_completed(prompts: list, params: list, *priority: list) -> Iterator[tuple[int, Any]]:
        jobs = sorted(range(len(prompts)), key=lambda i: -params[i].max_tokens)
        for most, group in itertools.groupby(jobs, lambda i: params[i].max_tokens):
            group = list(group)
            if not most:  # to be scored
                columns = [[column[i] for i in group] for column in (prompts, params, *priority)]
                yield from ((group[i], output) for i, output in llm.as_completed(*columns))
                continue
            for start in range(0, len(group), AT_ONCE):
                part = group[start : start + AT_ONCE]
                yield from zip(part, llm.beam_search([prompts[i] for i in part], beam_width, most), strict=True)

    return as_completed
