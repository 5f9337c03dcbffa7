"""Traces made of the committed examples: as they are, with hostile texts, or much longer."""

import copy
import json
from pathlib import Path

from stagewise.replay.state import State, name
from stagewise.trace_file import read_traces
from tools.replay_examples import FOLDER

# A run of every kind that a page can show: the example, and which of its runs.
RUNS = {
    "stage 1": ("recomputation", 0),
    "stage 2": ("padding", 0),
    "stage 3": ("static_and_continuous", 0),
    "stage 4": ("static_and_continuous", 1),
    "stage 5": ("preemption", 0),
    "completions": ("completions", 0),
    "beams": ("beams", 0),
    "drafts": ("speculation", 1),
}
HOSTILE = ["</script><b>x", "<!--", "&amp;", '"', "\\", "\x1b[31m", *"\u2028\u202e\ud800\x00\n\t\x7f"]


def run_of(example: str, number: int = 0) -> tuple[dict, list[dict]]:
    """The header and the steps of a committed run, which may be changed."""
    trace = read_traces(FOLDER / f"{example}.jsonl")[number]
    return trace.header, trace.steps


def hostile(header: dict, steps: list[dict]) -> tuple[dict, list[dict]]:
    """The same trace, with texts that try to be markup or code."""
    for step in steps:
        step["texts"] = {token: HOSTILE[int(token) % len(HOSTILE)] for token in step["texts"]}
    return header, steps


def long(times: int) -> tuple[dict, list[dict]]:
    """A run that begins again and again, each time with new requests."""
    header, run = run_of("preemption")
    steps = []
    for number in range(times):
        for step in copy.deepcopy(run[:-1]):
            for one in (*step["before"], *step["rows"], *step["after"]):
                if "request_id" in one:
                    one["request_id"] += f" of {number}"
            if step["step"] == 0:
                step["before"].insert(0, {"kind": "restarted"})
            step["start"] += number * (run[-1]["start"] - run[0]["start"] + 1e-3)
            steps.append({**step, "step": len(steps)})
    return header, steps


def write(path: Path, header: dict, steps: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in [header, *steps]))
    return path


def snapshot(state: State) -> dict:
    """A state as `snapshot` in page/state.js has it."""
    live = state.waiting + [key for key in state.shown if key not in state.waiting]
    held = sorted({block for key in live for block in state.completions[key].blocks})
    visible = sorted({*held, *state.findable})

    def by_name(attribute: str) -> dict:
        return {name(key): getattr(state.completions[key], attribute) for key in live}

    return dict(
        waiting=[name(key) for key in state.waiting],
        running=[name(key) for key in state.shown],
        tokens=by_name("tokens"),
        num_computed=by_name("num_computed"),
        recomputed=by_name("recomputed"),
        slots=by_name("slot"),
        tables=by_name("blocks"),
        free=list(state.free),
        findable=state.findable,
        contents={str(block): state.contents[block][0] for block in visible if block in state.contents},
        counts=dict(state.counts),
    )
