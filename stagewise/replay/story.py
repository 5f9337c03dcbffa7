"""Stories: what a run shows, told at stops in it. A file `stories.toml` next to the traces has the texts, by the names
of the traces; the traces' numbers are filled in here.

    title, message   the example's point, and its result in a few numbers
    chapter          where to read about it, from the root of the repository
    look             "rows" or "memory": the part of a step to show first
    engines          what to call the two engines, if they are of the same stage
    stops            each {at, says, text}. `at` is the event that defines a stop, [kind, who, which, trace]: the first
                     (or second, …) event of this kind for this completion, in the first trace (or the second). Besides
                     a trace's events there are "carried" (a finished row goes through the model), "right" (a row
                     whose guesses were all right) and "wrong" (a row with a wrong guess)
    verdict          the result

In `title`, `message`, `text` and `verdict`, braces hold numbers from the traces: {a.steps} and {b.steps} are of whole
runs (see `Run`); a stop's text can also use what `Run.moment` returns for its step, and as `other` that of the other
trace.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..exits import naming
from ..trace_file import Trace
from .state import Key, State, states

if sys.version_info >= (3, 11):
    import tomllib  # pyright: ignore[reportMissingImports]
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def story_of(path: Path, traces: Sequence[Trace]) -> dict | None:
    """The story of the file with these traces, as `tell` returns it; None if there is none."""
    source = path.with_name("stories.toml")
    if not source.is_file():
        return None
    try:
        with naming(source):
            story = tomllib.loads(source.read_text(encoding="utf-8")).get(path.stem)
        return None if story is None else tell(story, traces)
    except KeyError as error:
        raise ValueError(f"{source}: the story {path.stem} has no {error}") from None
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def tell(story: dict, traces: Sequence[Trace]) -> dict:
    """A story in the form that its page needs, with steps and numbers filled in.

    Returns:
        {title, message, look, verdict, stops}, each stop {trace, step, says, text}; traces count from 0.

    Raises:
        ValueError: an event is not in its trace, or a name in braces is unknown.
    """
    runs = [Run(trace) for trace in traces]
    facts = dict(zip("ab", runs, strict=False))
    stops = [stop_of(stop, runs, facts) for stop in story["stops"]]
    return {**story, "stops": stops, **{name: filled(story[name], facts) for name in ("title", "message", "verdict")}}


def stop_of(stop: dict, runs: list["Run"], facts: dict) -> dict:
    kind, who, which, trace = [*stop["at"], 1, 1][:4] if len(stop["at"]) < 4 else stop["at"]
    run = runs[trace - 1]
    step, event = run.find(kind, who, which)
    numbers = {**run.moment(step, who), **event}
    if len(runs) > 1:
        other = runs[2 - trace]
        numbers["other"] = SimpleNamespace(**other.moment(min(step, other.steps), who))
    if "free" in event:  # when a request was refused; later admissions reduce these
        numbers["taken"] = run.blocks - event["free"]
    text = filled(stop["text"], {**facts, **numbers, "prompt": run.prompt})
    return {"trace": trace - 1, "step": step, "says": stop["says"], "text": text}


def filled(text: str, numbers: dict[str, Any]) -> str:
    try:
        return text.format(**numbers)
    except (KeyError, AttributeError) as error:
        raise ValueError(f"there is no {error} for {text!r}") from None


class Run:
    """The numbers of a whole trace.

    Attributes:
        steps: forward passes; milliseconds: from the beginning of the first to the end of the last;
            slowest: milliseconds of the longest step after the first.
        at_once: the maximum number of rows in a step.
        computed, recomputed: tokens that went through the model, and how many of these had before.
        idle: positions of padding; carried_rows: rows of finished completions.
        accepted, rejected: guesses that were right, or not.
        largest: the most tokens in a step after the first.
        output, prompts, cached: tokens generated, in all prompts, found in the prefix cache.
        finished, completions: how many there are.
        preemptions, copied: how many there were.
        blocks, block_size, most_held, slots, longest, budget: sizes of the KV cache and of a step, where they apply.
        prompt: the length of each request's prompt.
    """

    def __init__(self, trace: Trace):
        self.trace, header, self.moments = trace, trace.header, []
        self.blocks, self.slots = header.get("num_blocks"), header.get("num_slots")
        self.longest, self.budget = header["max_model_len"], header["options"].get("max_num_batched_tokens")
        self.block_size = header["options"].get("block_size")
        self.names, self.prompt, self.several = {}, {}, set()
        for state, step in zip(states(trace), trace.steps, strict=True):
            for event in step["before"] + step["after"]:
                if event["kind"] == "queued":
                    letter = self.names.setdefault(event["request_id"], chr(ord("A") + len(self.names)))
                    self.prompt[letter] = len(event["prompt_token_ids"])
                if event["kind"] == "beams" or event.get("n", 1) > 1:
                    self.several.add(event["request_id"])
            self.moments.append(self._look(state, step))
        steps = [step for step in trace.steps if step["rows"]]
        events = Counter(event["kind"] for step in steps for event in step["before"] + step["after"])
        self.milliseconds = round(1000 * (steps[-1]["start"] + steps[-1]["seconds"] - steps[0]["start"]))
        self.slowest = round(1000 * max(step["seconds"] for step in steps[1:]))
        self.steps, self.at_once = len(steps), max(len(step["rows"]) for step in steps)
        self.computed, self.recomputed = state.counts["useful"] + state.counts["recomputed"], state.counts["recomputed"]
        self.idle, self.output = state.counts["padding"] + state.counts["carried"], state.counts["output"]
        guessed = [(len(row.get("drafts", ())), row.get("num_accepted", 0)) for step in steps for row in step["rows"]]
        self.accepted, self.rejected = sum(right for _, right in guessed), sum(all - right for all, right in guessed)
        self.carried_rows = sum(row["num_tokens"] == 0 for step in steps for row in step["rows"])
        self.largest = max(sum(row["num_tokens"] for row in step["rows"]) for step in steps[1:])
        self.prompts, self.completions = sum(self.prompt.values()), len(state.completions)
        self.finished = sum(completion.status == "finished" for completion in state.completions.values())
        self.preemptions, self.copied = state.counts["preemptions"], events["copied"]
        admitted = [event for step in steps for event in step["before"] if event["kind"] == "admitted"]
        self.cached = sum(event.get("num_cached_tokens") or 0 for event in admitted)
        self.most_held = max(moment["step"]["held"] for moment in self.moments)

    def _look(self, state: State, step: dict) -> dict[str, Any]:
        """The numbers of a step: under "step" for all completions, and under each completion's key its own."""
        held = {block for completion in state.completions.values() for block in completion.blocks}
        of_step = dict(
            waiting=len(state.waiting),
            held=len(held),
            unheld=(self.blocks or 0) - len(held),
            shared=step["num_blocks_shared"],
            reserved=step["kv_tokens_reserved"],
            used=step["kv_tokens_used"],
            step_padding=sum(row["num_padding"] for row in step["rows"]),
        )
        moment: dict[Any, dict] = {"step": of_step}
        new = Counter((e["request_id"], e["index"]) for e in step["after"] if e["kind"] == "token")
        for key, completion in state.completions.items():
            row = state.rows.get(key, {})
            moment[key] = dict(
                tokens=row.get("num_tokens", 0),
                padding=row.get("num_padding", 0),
                guesses=len(row.get("drafts", ())),
                accepted=row.get("num_accepted", 0),
                new=new[key],
                again=completion.recomputed if row else 0,
                length=len(completion.tokens),
                output=len(completion.output) + new[key],
            )
        return moment

    def moment(self, step: int, who: str) -> dict[str, int]:
        """The numbers of a step, and of a completion in it.

        For the step: waiting requests; blocks that are held, unheld and shared; tokens of the KV cache that are
        reserved and used; step_padding. For the completion: tokens, padding and guesses in its row; how many guesses
        were accepted; how many tokens are computed again; its length before the step; its new tokens; its output after
        the step.
        """
        return self.moments[step]["step"] | self.moments[step].get(self.key(who), {})

    def find(self, kind: str, who: str, which: int) -> tuple[int, dict]:
        """The step in which something happens to a completion for the first (second, …) time, and the event."""
        key, found = self.key(who), []
        for number, step in enumerate(self.trace.steps):
            carried = [{**row, "kind": "carried"} for row in step["rows"] if row["num_tokens"] == 0]
            for row in (row for row in step["rows"] if row.get("drafts")):
                carried.append({**row, "kind": "right" if row["num_accepted"] == len(row["drafts"]) else "wrong"})
            for event in [*step["before"], *carried, *step["after"]]:
                if (event["kind"], event.get("request_id"), event.get("index")) == (kind, *key):
                    found.append((number, event))
        if len(found) < which:
            raise ValueError(f"{self.trace.name}: {who} is {kind} {len(found)} times, not {which}")
        return found[which - 1]

    def key(self, who: str) -> Key:
        """The key of a completion by the page's name: A; A1 and A2 if there are several."""
        ids = {letter: request_id for request_id, letter in self.names.items()}
        if who[0] not in ids or (who[1:] != "") != (ids[who[0]] in self.several):
            raise ValueError(f"{self.trace.name}: there is no completion {who}")
        return ids[who[0]], int(who[1:] or 1) - 1
