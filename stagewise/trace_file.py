"""Trace files: their schema, a writer, and a reader that refuses anything unknown.

A stage writes a trace with `--trace FILE`: lines of JSON, a header and then a line per step (a forward pass). This is
the only description of their contents; tracing.py makes the records. A file may hold several runs, one after another,
each with its header. Times are seconds by a clock with an arbitrary
start. A request is identified by its `request_id`, and each of its completions by that and its `index` (0 if there is
only one).

Header: {"trace": 4, …}
    trace           the version of this schema
    stage           "stage01_single" … "stage08_int8"
    model           as --model names it
    options         the engine's options, by name: max_num_seqs, max_num_batched_tokens, block_size, policy …
    max_model_len   the longest sequence, in tokens
    num_slots       of the KV cache (stage 4)
    num_blocks      of the KV cache (from stage 5)
    free, num_findable
                    on a live page: the free blocks when the trace begins, in the order in which they are taken, and how
                    many of them, at the end, the prefix cache can find (else all blocks are free, in rising order)
    bytes_per_token of the KV cache (from stage 3)

Step: a forward pass; or, without rows, the engine at rest: nothing is left to do, and no request holds memory. Such a
record has the events since the last forward pass, if any (for example, the last requests were aborted). A trace that
does not end with one was cut short, or is old.
    step            counts from 0 (on a live page: from the first step that anyone saw)
    start, seconds  when its forward pass began, and the time from there to the end of the commit
    parts           seconds of "schedule", "draft", "build", "forward", "sample", "commit" (stages 1 to 3 schedule
                    nothing; before stage 7 nothing is drafted). The first three are before `start`, the others make up
                    `seconds`
    before          events since the last step, up to this forward pass, in order
    rows            what the forward pass computed, see below
    after           events that followed it, in order
    texts           token id (as a string) -> its text, for tokens that are new in this trace
    kv_tokens_reserved, kv_tokens_used
                    of the KV cache during the step, in tokens (from stage 3; else null)
    num_blocks_shared, num_blocks_saved
                    blocks that several completions hold, and how many more there would be if each had its own (from 5)

Row: one completion's part in the forward pass.
    request_id, index
    phase           "prefill" until its first token, then "decode"
    start           the position of the first token that it computes, in its sequence (prompt and output so far)
    num_tokens      how many it computes from there; 0 for a finished row that is carried along
    num_padding     positions that went through the model without a token of a live request
    slot            its row of the KV cache (stages 3, 4; else null)
    blocks          its block table (from stage 5; else null)
    drafts, num_accepted
                    draft tokens, which went through the model after the others; the first num_accepted of them were
                    right: each is the token of an event below (from stage 7)

Event: {"kind": …, "request_id": …, "index": …, …}
    queued          a request came: prompt_token_ids, output_token_ids (not empty if it was running when the trace
                    began), max_tokens, n (completions requested), place ([key, arrival]: the queue is sorted by
                    place; null in stages 1 to 3, whose queue is in the order of these events)
    admitted        it runs from this step on: slot (stages 3, 4), num_cached_tokens (from stage 5: found in the prefix
                    cache, and not computed)
    refused         it is next in the queue and could not be admitted to this step: reason, one of
                      "running"   no more requests may run at once: most
                      "budget"    the step has no tokens left
                      "blocks"    needed, free, reserve: blocks
                      "preempted" a request was preempted just now: memory is short
    preempted       it waits again, without its memory
    copied          copy-on-write: source and target, blocks
    evicted         block: one that the prefix cache could still find is reused
    taken           block: it is no longer free
    released        block: it is free. cached: the prefix cache can still find it, and it goes to the end of the free
                    blocks; else to the front
    token           it got the token token_id
    beams           beam search: the request's beams are replaced, beam i by parents[i] with token_ids[i] after it.
                    Beams are known by their index; one that is no parent is dropped
    finished        reason: "stop", "length" or "abort" (or "beams": the search is done)
    restarted       a step was cut short: all blocks are free, in rising order, and the prefix cache is empty. Requests
                    that go on wait again, each with a "queued" after this; the others (an interrupted beam search, say)
                    are gone
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .exits import naming
from .stages import PACKAGES
from .strict_json import from_line

VERSION = 4
PHASES = ("prefill", "decode")
PARTS = ("schedule", "draft", "build", "forward", "sample", "commit")
MEMORY = ("kv_tokens_reserved", "kv_tokens_used", "num_blocks_shared", "num_blocks_saved")
REASONS = ("running", "budget", "blocks", "preempted")  # of "refused"

# The fields by name, and what each may be.
NULL, TIME = type(None), (int, float)
LARGEST = 10**7  # number in a header, say of blocks: a page draws each
HEADER = dict(trace=int, stage=str, model=str, options=dict, max_model_len=int)
HEADER_OF_SOME = dict(num_slots=int, num_blocks=(int, NULL), bytes_per_token=(int, NULL), free=list, num_findable=int)
STEP = dict(
    step=int,
    start=TIME,
    seconds=TIME,
    parts=dict,
    before=list,
    rows=list,
    after=list,
    texts=dict,
    kv_tokens_reserved=(int, NULL),
    kv_tokens_used=(int, NULL),
    num_blocks_shared=(int, NULL),
    num_blocks_saved=(int, NULL),
)
ROW = dict(
    request_id=str,
    index=int,
    phase=str,
    start=int,
    num_tokens=int,
    num_padding=int,
    slot=(int, NULL),
    blocks=(list, NULL),
)
ROW_OF_SOME = dict(drafts=(list, tuple), num_accepted=int)
WHOSE = dict(request_id=str, index=int)  # in every event except these
OF_THE_ENGINE = ("evicted", "taken", "released", "restarted")
EVENTS: dict[Any, dict] = dict(
    queued=dict(prompt_token_ids=list, output_token_ids=list, max_tokens=int, n=int, place=(list, NULL)),
    admitted={},
    refused=dict(reason=str),
    preempted={},
    copied=dict(source=int, target=int),
    evicted=dict(block=int),
    taken=dict(block=int),
    released=dict(block=int, cached=bool),
    token=dict(token_id=int),
    beams=dict(parents=list, token_ids=list),
    finished=dict(reason=str),
    restarted={},
)
EVENTS_OF_SOME: dict[Any, dict] = dict(
    admitted=dict(slot=(int, NULL), num_cached_tokens=(int, NULL)),
    refused=dict(most=int, needed=int, free=int, reserve=int),
)


# --- Writing ------------------------------------------------------------------------------------------------------


def check_trace(path: Path) -> None:
    """Raise ValueError or OSError, before the work, if the trace can't be written, or would replace another file."""
    if not path.exists():
        path.open("xb").close()
        path.unlink()
        return
    if not path.is_file():
        raise ValueError(f"--trace {path} is not a regular file")
    begin = f'{{"trace": {VERSION}, '.encode()
    with path.open("r+b") as file:
        there = file.read(len(begin))
        if not there or not begin.startswith(there):  # its end may be missing, as after a full disk
            raise ValueError(f"--trace {path} exists and is not a trace: remove it, or choose another name")


def write_trace(path: Path, trace: Any) -> None:
    check_trace(path)  # again: meanwhile the run has made its own files
    with naming(path), path.open("w", encoding="utf-8") as file:
        for line in lines_of(trace):
            file.write(json.dumps(line, allow_nan=False) + "\n")


def lines_of(trace: Any) -> Iterator[dict]:
    """The lines of a trace: its header, its steps and, if nothing is left to do, the engine at rest."""
    yield trace.header
    step, unfinished = None, set()
    for record in trace.records:
        step = whole_step(record.to_dict())
        follow(step, unfinished)
        yield step
    if step and step["rows"] and not unfinished:
        yield at_rest(step)


def follow(step: dict, unfinished: set[tuple[str, int]]) -> None:
    """Update the set of waiting and running completions: (request_id, index)."""
    for event in step["before"] + step["after"]:
        key = event.get("request_id"), event.get("index")
        if event["kind"] in ("queued", "token"):
            unfinished.add(key)
        elif event["kind"] == "finished":
            ends_all = event["reason"] == "beams"
            unfinished -= {other for other in unfinished if other == key or (ends_all and other[0] == key[0])}
        elif event["kind"] == "restarted":
            unfinished.clear()


def at_rest(last: dict) -> dict:
    """The record after the last step, when all are finished."""
    rest = dict(step=last["step"] + 1, start=last["start"] + last["seconds"], seconds=0.0, parts={}, texts={})
    memory = {name: None if last[name] is None else 0 for name in MEMORY}
    return {**rest, "before": [], "rows": [], "after": [], **memory}


def whole_step(step: dict) -> dict:
    """A step as in a file: rows without drafts omit their fields."""
    rows = [row if row.get("drafts") else {name: row[name] for name in ROW} for row in step["rows"]]
    return {**step, "rows": rows}


# --- Reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A run in a file. `torn`: its last line was incomplete, as after a kill, and is left out."""

    name: str
    header: dict
    steps: list[dict]
    torn: bool = False


def read_traces(path: Path) -> list[Trace]:
    """The runs in a file. Raises ValueError, which names file and line, if it is something else."""
    *lines, last = path.read_bytes().split(b"\n")  # `last` is empty, unless it was cut short
    torn = bool(last) and not is_json(last)
    if last and not torn:
        lines.append(last)
    if not lines:
        raise ValueError(f"{path} is not a trace: it {'has no complete line' if torn else 'is empty'}")
    runs: list[tuple[dict, list[dict]]] = []
    known, free = set(), set()
    for number, line in enumerate(lines, start=1):
        try:
            record = from_line(line, parse_constant=finite, parse_float=finite)
            if not runs or (isinstance(record, dict) and "trace" in record):
                check_header(record)
                runs.append((record, []))
                known, free = set(), set(record.get("free", range(record.get("num_blocks") or 0)))
            else:
                header, steps = runs[-1]
                check_step(record, len(steps))
                check_names(record, known)
                check_blocks(record, free, header)
                steps.append(record)
        except RecursionError:
            raise ValueError(f"{path}, line {number}: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not all(steps for _, steps in runs):
        raise ValueError(f"{path} has a header and no steps: nothing ran")
    traces = [Trace(path.name, header, steps) for header, steps in runs]
    return [*traces[:-1], replace(traces[-1], torn=torn)]


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def finite(number: str) -> float:
    """A number in the file. Raises ValueError for one that a page could not read."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not finite")
    return value


def check_header(record: object) -> None:
    if isinstance(record, dict) and "trace" not in record and "rows" in record:
        raise ValueError("a version 1 trace, which has no header: record it again")
    if not isinstance(record, dict) or "trace" not in record:
        raise ValueError("not a trace: the first line is not a header, see stagewise/trace_file.py")
    if record["trace"] != VERSION:
        raise ValueError(f"a trace of version {record['trace']!r}, but this program reads {VERSION}: record it again")
    check("the header", record, HEADER, HEADER_OF_SOME)
    for name in ("max_model_len", "num_slots", "num_blocks"):
        if (record.get(name) or 0) > LARGEST:
            raise ValueError(f"the header: {name} can't be {record[name]}, over {LARGEST:,}")
    if not all(isinstance(block, int) for block in record.get("free", [])):
        raise ValueError("the header: free is a list of blocks' numbers")
    one_of("stage", record["stage"], tuple(PACKAGES.values()))


def check_step(record: Any, number: int) -> None:
    check("the step", record, STEP)
    if record["step"] != number:
        raise ValueError(f"step {record['step']} where step {number} is expected")
    for part, seconds in record["parts"].items():
        one_of("part", part, PARTS)
        check("parts", {part: seconds}, {part: TIME})
    for row in record["rows"]:
        check("a row", row, ROW, ROW_OF_SOME)
        one_of("phase", row["phase"], PHASES)
    for event in record["before"] + record["after"]:
        kind = event.get("kind") if isinstance(event, dict) else None
        one_of("event", kind, EVENTS)
        whose = {} if kind in OF_THE_ENGINE else WHOSE
        check(f"the event {kind!r}", event, dict(kind=str) | whose | EVENTS[kind], EVENTS_OF_SOME.get(kind, {}))
        if kind == "refused":
            one_of("reason", event["reason"], REASONS)


def check_names(step: dict, known: set[str]) -> None:
    """Raise ValueError for a row of a request that never came. known: those that did."""
    known.update(event["request_id"] for event in step["before"] if event["kind"] == "queued")
    if unknown := [row["request_id"] for row in step["rows"] if row["request_id"] not in known]:
        raise ValueError(f"a row of the request {unknown[0]!r}, which was never queued")


def check_blocks(step: dict, free: set[int], header: dict) -> None:
    """Raise ValueError for a block that is taken but not free, or released but free. free: the free blocks."""
    for event in step["before"] + step["after"]:
        if event["kind"] == "restarted":
            free.update(range(header.get("num_blocks") or 0))
        elif event["kind"] in ("taken", "released"):
            block, is_free = event["block"], event["block"] in free
            if is_free != (event["kind"] == "taken") or not 0 <= block < (header.get("num_blocks") or 0):
                raise ValueError(f"block {block} is {event['kind']}, and {'is' if is_free else 'is not'} a free block")
            free.symmetric_difference_update([block])


def check(what: str, record: object, fields: dict, optional: dict | None = None) -> None:
    """Raise ValueError unless a record has these fields, and no others except optional ones, with the right types."""
    if not isinstance(record, dict):
        raise ValueError(f"{what} is not a JSON object")
    known = fields | (optional or {})
    for name in fields:
        if name not in record:
            raise ValueError(f"{what} lacks {name!r}")
    for name, value in record.items():
        if name not in known:
            raise ValueError(f"{what} has an unknown field, {name!r}")
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise ValueError(f"{what}: {name} can't be {json.dumps(value)[:40]}")


def one_of(what: str, name: object, known: tuple | dict) -> None:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {what} {name!r:.80}")
