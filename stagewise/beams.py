"""Beam search around an engine: in batch files, and in a server, where other requests keep running.

`LLM.beam_search` has the engine to itself. In a server each beam is a separate request instead, for one token and the
likeliest candidates; from stage 5 on the prefix cache holds what they share. Candidates, scores and ends are the same.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .sampling import Sampling
from .stages import Stage, end_tokens

BEAM_FIELDS = ("use_beam_search", "length_penalty", "early_stopping")  # of a line of a file, and of a server's request
AT_ONCE = 16  # prompts of a file that are searched together, and then written


@dataclass(frozen=True)
class Beams:
    """How to search."""

    beam_width: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False


def read_beams(fields: dict, n: Any) -> Beams | None:
    """The beam search for the n best that these fields ask for; None if they ask for none. Raises ValueError."""
    if not isinstance(fields.get("use_beam_search", False), bool):
        raise ValueError(f"use_beam_search must be true or false, got {fields['use_beam_search']!r:.80}")
    penalty, stopping = fields.get("length_penalty", 1), fields.get("early_stopping", False)
    if not fields.get("use_beam_search"):
        for name, value, off in (("length_penalty", penalty, 1), ("early_stopping", stopping, False)):
            if isinstance(value, bool) != isinstance(off, bool) or value != off:
                raise ValueError(f"{name} needs use_beam_search")
        return None
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not -100 <= penalty <= 100:
        raise ValueError(f"length_penalty must be a number from -100 to 100, got {penalty!r:.80}")
    if not isinstance(stopping, bool) and stopping != "never":
        raise ValueError(f'early_stopping must be true, false or "never", got {stopping!r:.80}')
    return Beams(n, float(penalty), stopping)


@dataclass(frozen=True)
class Hypothesis:
    """A sequence, its log-probability, and how it ended, if it has."""

    logprob: float
    token_ids: tuple[int, ...]
    finish_reason: str | None = None

    def score(self, length_penalty: float, length: int | None = None) -> float:
        """As `BeamSearch.score`: orders as logprob / length**length_penalty does."""
        length = len(self.token_ids) if length is None else length
        return math.inf if self.logprob >= 0 else length_penalty * math.log(length) - math.log(-self.logprob)


def drawing(sampling: Sampling) -> list[str]:
    """The fields that ask for something a beam search can't do."""
    params, make = sampling.params, sampling.stage.SamplingParams
    plain = make(**{name: getattr(params, name) for name in ("temperature", "max_tokens", "n", "seed")})
    names = [name for name in make.__dataclass_fields__ if getattr(params, name) != getattr(plain, name)]
    return [*names, *sampling.given]


async def search(
    stage: Stage, engine: Any, prompt: list[int], params: Any, beams: Beams, **where: int
) -> list[Hypothesis]:
    """The best completions of a prompt, best first.

    Args:
        engine: an AsyncLLM.
        params: SamplingParams; `max_tokens` is the longest output.
        where: `priority` and `num_ahead`, for `engine.generate`. Each beam has the earlier ones ahead of it, so that
            others need not wait for all of them.
    """
    ends = end_tokens(engine.llm)
    most = min(params.max_tokens, engine.llm.max_model_len - len(prompt))
    count = min(max(2, 1 + len(ends)) * beams.beam_width, engine.llm.vocab_size)
    one_token = stage.SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=count)
    growing, finished, num_ahead = [Hypothesis(0.0, ())], [], where.get("num_ahead", 0)
    for length in range(1, most + 1):
        asked = (
            candidates(engine, [*prompt, *beam.token_ids], one_token, {**where, "num_ahead": num_ahead + k})
            for k, beam in enumerate(growing)
        )
        steps = await asyncio.gather(*asked)
        longer = [
            Hypothesis(beam.logprob + entry.logprob, (*beam.token_ids, token_id))
            for beam, step in zip(growing, steps, strict=True)
            for token_id, entry in step
        ]
        longer.sort(key=lambda beam: -beam.logprob)  # stable
        growing = []
        for rank, beam in enumerate(longer[: max(2, 1 + len(ends)) * beams.beam_width]):
            if beam.token_ids[-1] in ends or length == most:
                if rank < beams.beam_width:
                    reason = "stop" if beam.token_ids[-1] in ends else "length"
                    finished.append(Hypothesis(beam.logprob, beam.token_ids, reason))
            elif len(growing) < beams.beam_width:
                growing.append(beam)
        finished.sort(key=lambda beam: -beam.score(beams.length_penalty))
        del finished[beams.beam_width :]
        if not growing or is_over(finished, growing[0], beams, most):
            break
    return finished


def is_over(finished: list[Hypothesis], best: Hypothesis, beams: Beams, most: int) -> bool:
    """Whether no growing beam can still beat the finished ones."""
    if len(finished) < beams.beam_width or beams.early_stopping is True:
        return len(finished) == beams.beam_width
    at_best = most if beams.early_stopping == "never" and beams.length_penalty > 0 else None
    return best.score(beams.length_penalty, at_best) <= finished[-1].score(beams.length_penalty)


async def candidates(engine: Any, token_ids: list[int], one_token: Any, where: dict) -> list[tuple[int, Any]]:
    """The likeliest next tokens with their log-probabilities, likeliest first."""
    async for event in engine.generate(token_ids, one_token, **where):
        if event.finish_reason == "error":
            raise ValueError(event.stop_reason)
        if event.finish_reason == "abort":
            raise RuntimeError("a beam was aborted")
        if event.logprobs:
            return sorted(event.logprobs[0].items(), key=lambda pair: pair[1].rank)
    raise RuntimeError("a beam got no token")


def completed_by_beams(llm: Any, beams: Beams) -> Callable[..., Iterator[tuple[int, Any]]]:
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
                how = beams.beam_width, most, beams.length_penalty, beams.early_stopping
                yield from zip(part, llm.beam_search([prompts[i] for i in part], *how), strict=True)

    return as_completed
