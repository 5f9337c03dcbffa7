"""A trace in Chrome's trace event format (JSON), which ui.perfetto.dev opens: a track for the engine, with the parts of
each step, and a track for each completion."""

import json
from collections.abc import Sequence

from ..trace_file import PARTS, Trace
from .state import name

BEGIN = b'{"otherData":{"made by":"stagewise replay"}'  # every such file begins with this


def make_chrome(traces: Sequence[Trace]) -> str:
    events = [event for process, trace in enumerate(traces, start=1) for event in Process(process, trace).events()]
    made = {"otherData": {"made by": "stagewise replay"}, "displayTimeUnit": "ms", "traceEvents": events}
    return json.dumps(made, separators=(",", ":"))


ENGINE = 1  # its thread; Perfetto doesn't show 0


class Process:
    """The events of one trace. Times are whole nanoseconds from the beginning of its first step, so that rounding makes
    no consecutive events overlap; the format's unit is the microsecond."""

    def __init__(self, number: int, trace: Trace):
        self.number, self.trace = number, trace
        self.threads: dict[tuple, int] = {}  # of completions
        self.zero = begin_of(trace.steps[0])

    def events(self) -> list[dict]:
        stage = self.trace.header["stage"]
        made = [
            self.label("process_name", ENGINE, f"{stage}, {self.trace.name}"),
            self.label("thread_name", ENGINE, "engine"),
        ]
        waiting, end = {}, 0  # waiting: since when
        for step in self.trace.steps:
            begin = max(end, self.time(begin_of(step)))
            start, end = max(begin, self.time(step["start"])), self.time(step["start"] + step["seconds"])
            made += self.engine(step, begin, start, end)
            for event in step["before"]:
                made += self.change(event, begin, waiting)
            for row in step["rows"]:
                made.append(self.row(row, start, end))
            for event in step["after"]:
                made += self.change(event, end, waiting)
            if step["kv_tokens_reserved"] is not None:
                used, reserved = step["kv_tokens_used"], step["kv_tokens_reserved"]
                made.append(self.counter("KV cache, tokens", start, {"used": used, "not filled": reserved - used}))
            made.append(self.counter("waiting", start, {"requests": len(waiting)}))
        made += [self.span("waiting", self.thread(key), since, end) for key, since in waiting.items()]
        made += [self.label("thread_name", thread, name(key)) for key, thread in self.threads.items()]
        return made

    def engine(self, step: dict, begin: int, start: int, end: int) -> list[dict]:
        """The step, and its parts one after another within it."""
        made, at = [self.span(f"step {step['step']}", ENGINE, begin, end, rows=len(step["rows"]))], begin
        for part in PARTS:
            if part == "forward":
                at = max(at, start)
            if part in step["parts"]:
                until = min(end, at + round(1e9 * step["parts"][part]))
                made.append(self.span(part, ENGINE, at, until))
                at = until
        return made

    def change(self, event: dict, at: int, waiting: dict) -> list[dict]:
        kind = event["kind"]
        if kind == "restarted":
            return [self.instant(kind, ENGINE, at, {})]
        if kind in ("taken", "released"):
            return []
        if kind == "evicted":
            return [self.instant(kind, ENGINE, at, {"block": event["block"]})]
        key = event["request_id"], event["index"]
        made = []
        if kind in ("queued", "preempted") or (kind == "forked" and not event["running"]):
            waiting.setdefault(key, at)
        elif kind in ("admitted", "finished") and key in waiting:
            made.append(self.span("waiting", self.thread(key), waiting.pop(key), at))
        if kind not in ("queued", "token"):
            details = {name: value for name, value in event.items() if name not in ("kind", "request_id", "index")}
            made.append(self.instant(kind, self.thread(key), at, details))
        return made

    def row(self, row: dict, start: int, end: int) -> dict:
        thread = self.thread((row["request_id"], row["index"]))
        what = row["phase"] if row["num_tokens"] else "carried along"
        return self.span(what, thread, start, end, tokens=row["num_tokens"], padding=row["num_padding"])

    # --- Single events ----------------------------------------------------------------------------------------------

    def thread(self, key: tuple) -> int:
        return self.threads.setdefault(key, ENGINE + 1 + len(self.threads))

    def time(self, seconds: float) -> int:
        return round(1e9 * (seconds - self.zero))

    def label(self, what: str, thread: int, text: str) -> dict:
        return dict(ph="M", pid=self.number, tid=thread, name=what, args={"name": text})

    def span(self, what: str, thread: int, begin: int, end: int, **details) -> dict:
        length = max(0, end - begin)
        return dict(ph="X", pid=self.number, tid=thread, name=what, ts=begin / 1e3, dur=length / 1e3, args=details)

    def instant(self, what: str, thread: int, at: int, details: dict) -> dict:
        return dict(ph="i", s="t", pid=self.number, tid=thread, name=what, ts=at / 1e3, args=details)

    def counter(self, what: str, at: int, values: dict) -> dict:
        return dict(ph="C", pid=self.number, tid=ENGINE, name=what, ts=at / 1e3, args=values)


def begin_of(step: dict) -> float:
    return step["start"] - step["parts"].get("schedule", 0) - step["parts"].get("build", 0)
