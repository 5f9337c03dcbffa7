"""From events to states: what is where during each step of a trace.

The page does the same in `page/state.js`, forward and backward; the tests compare the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..trace_file import Trace

Key = tuple[str, int]  # request_id, index


@dataclass
class Completion:
    """One completion of a request, in its current state.

    Attributes:
        status: "waiting", "running" or "finished"; "gone" if an interrupted step took it away.
        seat: the number of its admission; running requests are shown in this order.
        num_computed: how many of its tokens have gone through the model (and are in the KV cache, if there is one).
        furthest: the maximum of `num_computed` so far: tokens computed below it are recomputed.
        recomputed: how many tokens of its last row were recomputed.
        padding: positions to the left of its tokens in its row (stages 2, 3).
    """

    prompt: list[int]
    output: list[int]
    max_tokens: int
    n: int
    place: list | None
    arrival: int
    status: str = "waiting"
    seat: int = -1
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_computed: int = 0
    furthest: int = 0
    recomputed: int = 0
    padding: int = 0
    num_preemptions: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def leave(self, status: str) -> None:
        """It no longer runs, and has no memory."""
        self.status, self.slot, self.blocks, self.num_computed = status, None, [], 0


@dataclass
class State:
    """Everything during a step.

    Attributes:
        contents: block -> the tokens whose keys and values are in it, and which request computed them.
        free: the free blocks in the order in which they are taken.
        num_findable: how many of them, the last ones, the prefix cache can find.
        longest_first: stages 2 and 3 take the longest prompts first (sort_by_length).
        counts: what has been computed from the first step through this one, and the resulting tokens.
    """

    block_size: int
    num_blocks: int
    free: list[int]
    num_findable: int = 0
    completions: dict[Key, Completion] = field(default_factory=dict)
    contents: dict[int, tuple[list[int], Key]] = field(default_factory=dict)
    rows: dict[Key, dict] = field(default_factory=dict)
    num_seats: int = 0
    longest_first: bool = False
    counts: dict[str, int] = field(
        default_factory=lambda: dict(output=0, useful=0, recomputed=0, padding=0, carried=0, refused=0, preemptions=0)
    )

    @classmethod
    def before(cls, header: dict) -> "State":
        """Before the first step of a trace with this header."""
        num_blocks, block_size = header.get("num_blocks") or 0, header["options"].get("block_size") or 16
        free, findable = list(header.get("free", range(num_blocks))), header.get("num_findable", 0)
        longest_first = bool(header["options"].get("sort_by_length"))
        return cls(block_size, num_blocks, free, findable, longest_first=longest_first)

    def begin(self, step: dict) -> None:
        """Through the forward pass."""
        for event in step["before"]:
            self.apply(event)
        self.rows = {(row["request_id"], row["index"]): row for row in step["rows"]}
        for key, row in self.rows.items():
            self.compute(key, self.completions[key], row)
        for event in step["before"] + step["after"]:
            self.counts["output"] += {"token": 1, "beams": len(event.get("token_ids", []))}.get(event["kind"], 0)
            self.counts["preemptions"] += event["kind"] == "preempted"

    def end(self, step: dict) -> None:
        for event in step["after"]:
            self.apply(event)

    def compute(self, key: Key, completion: Completion, row: dict) -> None:
        """A row of the forward pass."""
        drafts = row.get("drafts", [])
        accepted = drafts[: row.get("num_accepted", 0)]  # tokens computed like any others
        start, end = row["start"], row["start"] + row["num_tokens"] + len(accepted)
        if row["num_tokens"] == 0:  # it is finished, and carried along
            self.counts["carried"] += row["num_padding"]
            completion.slot, completion.recomputed = row["slot"], 0
            return
        completion.recomputed = max(0, min(end, completion.furthest) - start)
        self.counts["recomputed"] += completion.recomputed
        self.counts["useful"] += row["num_tokens"] + len(accepted) - completion.recomputed
        self.counts["refused"] += len(drafts) - len(accepted)
        self.counts["padding"] += row["num_padding"]
        completion.furthest, completion.num_computed = max(completion.furthest, end), end
        completion.slot = row["slot"]
        if row["phase"] == "prefill":
            completion.padding = row["num_padding"]
        if row["blocks"] is not None:
            size, tokens = self.block_size, completion.tokens + list(accepted)
            for i, block in enumerate(row["blocks"]):
                own = tokens[i * size : min((i + 1) * size, end)]
                if (i + 1) * size > start:  # written in this step, or not yet
                    self.contents[block] = own, key
                else:
                    self.contents.setdefault(block, (own, key))
            completion.blocks = row["blocks"]

    def apply(self, event: Any) -> None:
        key = request_id, _ = event.get("request_id"), event.get("index")
        match event["kind"]:
            case "queued":
                fields = (event[name] for name in ("prompt_token_ids", "output_token_ids", "max_tokens", "n", "place"))
                came = Completion(*fields, arrival=len(self.completions))
                if (known := self.completions.get(key)) and known.status != "finished":  # again, after a restart
                    came.arrival, came.furthest = known.arrival, known.furthest
                self.completions[key] = came
            case "admitted":
                completion = self.completions[key]
                completion.status, completion.slot = "running", event.get("slot")
                completion.num_cached = completion.num_computed = event.get("num_cached_tokens") or 0
                self.seat(completion)
            case "preempted":
                self.completions[key].leave("waiting")
                self.completions[key].num_preemptions += 1
            case "token":
                self.completions[key].output = [*self.completions[key].output, event["token_id"]]
            case "beams":
                old = {i: self.completions.pop((r, i)) for r, i in list(self.completions) if r == request_id}
                for i, (parent, token_id) in enumerate(zip(event["parents"], event["token_ids"], strict=True)):
                    output = [*old[parent].output, token_id]
                    self.completions[request_id, i] = beam = self.copy(old[parent], output=output)
                    self.seat(beam)
                self.completions |= {} if event["parents"] else {(request_id, i): beam for i, beam in old.items()}
            case "finished":
                ends = [key] if event["reason"] != "beams" else [k for k in self.completions if k[0] == request_id]
                for completion in (self.completions[k] for k in ends if k in self.completions):
                    completion.leave("finished")
                    completion.finish_reason = event["reason"]
            case "taken":
                place = self.free.index(event["block"])
                self.num_findable -= place >= len(self.free) - self.num_findable
                del self.free[place]
            case "released":
                self.free.insert(len(self.free) if event["cached"] else 0, event["block"])
                self.num_findable += event["cached"]
            case "restarted":
                self.free, self.num_findable = list(range(self.num_blocks)), 0
                for completion in self.completions.values():
                    if completion.status != "finished":
                        completion.leave("gone")  # unless it is queued again

    def copy(self, completion: Completion, **changes) -> Completion:
        return replace(completion, arrival=len(self.completions), recomputed=0, **changes)

    def seat(self, completion: Completion) -> None:
        completion.seat = self.num_seats
        self.num_seats += 1

    @property
    def findable(self) -> list[int]:
        """The free blocks that the prefix cache can find."""
        return self.free[len(self.free) - self.num_findable :]

    @property
    def waiting(self) -> list[Key]:
        """The waiting completions, in queue order."""

        def place(key: Key) -> tuple:
            c = self.completions[key]
            return tuple(c.place or (-len(c.prompt) if self.longest_first else 0, c.arrival))

        return sorted((key for key, c in self.completions.items() if c.status == "waiting"), key=place)

    @property
    def shown(self) -> list[Key]:
        """The requests that run or are carried along, in the order of admission."""
        keys = {k for k, c in self.completions.items() if c.status == "running"} | self.rows.keys()
        return sorted(keys, key=lambda k: self.completions[k].seat)


def states(trace: Trace) -> Iterator[State]:
    """The state during each step; always the same object, changed."""
    state = State.before(trace.header)
    for step in trace.steps:
        state.begin(step)
        yield state
        state.end(step)


def name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"
