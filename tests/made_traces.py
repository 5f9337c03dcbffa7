"""Traces of engines that do not exist: consistent, of any length, and quickly made. What they compute is made up, but
their schedules obey the stages' rules, so that everything the page can show happens in them."""

import json
import random
from pathlib import Path

from stagewise.replay.state import State, name

WORDS = "the a bear fox mouse owl harbor winter lantern old brave shy Otto Mira sang walked found said"
TEXTS = [".", ",", *(f" {word}" for word in WORDS.split())]
HOSTILE = [
    "</script><b>x",
    "<!--",
    "\u2028",
    "\u202e",
    "\ud800",
    "\x00",
    "\x1b[31m",
    "\n",
    "\t",
    "&amp;",
    '"',
    "\\",
    "\x7f",
]


def write(path: Path, header: dict, steps: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in [header, *steps]))
    return path


def hostile(header: dict, steps: list[dict]) -> tuple[dict, list[dict]]:
    """The same trace, with texts that try to be markup or code."""
    for step in steps:
        step["texts"] = {token: HOSTILE[int(token) % len(HOSTILE)] for token in step["texts"]}
    return header, steps


class Engine:
    """What the generators below have in common: requests, and a step's record."""

    def __init__(self, stage: str, seed: int, num_requests: int, max_tokens: int, n: int = 1, **options):
        self.random = random.Random(seed)
        self.header = dict(trace=4, stage=stage, model="made", options=options, max_model_len=256)
        self.steps, self.before, self.after, self.named, self.time = [], [], [], set(), 100.0
        shared = self.tokens(40)
        self.requests = []
        for i in range(num_requests):
            prompt = (
                shared + self.tokens(self.random.randint(1, 30))
                if i % 3 == 1
                else self.tokens(self.random.randint(3, 90))
            )
            for index in range(n):
                most = self.random.randint(1, max_tokens)
                self.requests.append(dict(id=f"r{i}", index=index, prompt=prompt, output=[], most=most, n=n))

    def tokens(self, number: int) -> list[int]:
        return [self.random.randrange(len(TEXTS)) for _ in range(number)]

    def event(self, kind: str, request: dict, where: list, **fields) -> None:
        where.append(dict(kind=kind, request_id=request["id"], index=request["index"], **fields))

    def queue(self, request: dict, place: list | None) -> None:
        fields = dict(prompt_token_ids=request["prompt"], output_token_ids=[], max_tokens=request["most"])
        self.event("queued", request, self.before, **fields, n=request["n"], place=place)

    def sample(self, request: dict) -> bool:
        """A token for a request; returns whether it ends with it."""
        request["output"].append(self.random.randrange(len(TEXTS)))
        self.event("token", request, self.after, token_id=request["output"][-1])
        return len(request["output"]) >= request["most"]

    def row(self, request: dict, start: int, num_tokens: int, num_padding=0, slot=None, blocks=None) -> dict:
        phase = "decode" if request["output"] else "prefill"
        fields = dict(start=start, num_tokens=num_tokens, num_padding=num_padding, slot=slot, blocks=blocks)
        return dict(request_id=request["id"], index=request["index"], phase=phase, **fields)

    def record(self, rows: list[dict], **memory) -> None:
        seconds = 0.004 + 0.0001 * sum(row["num_tokens"] + row["num_padding"] for row in rows)
        parts = dict(schedule=0.0002, build=0.0003, forward=0.8 * seconds, sample=0.15 * seconds, commit=0.05 * seconds)
        seen = {e["token_id"] for e in self.after if e["kind"] == "token"}
        seen |= {t for e in self.before if e["kind"] == "queued" for t in e["prompt_token_ids"]}
        texts = {str(token): TEXTS[token] for token in sorted(seen - self.named)}
        self.named |= seen
        names = ("kv_tokens_reserved", "kv_tokens_used", "num_blocks_shared", "num_blocks_saved")
        self.steps.append(
            dict(step=len(self.steps), start=self.time, seconds=seconds, parts=parts, before=self.before, rows=rows)
            | dict(after=self.after, texts=texts)
            | {name: memory.get(name) for name in names}
        )
        self.time += seconds + 0.0007
        self.before, self.after = [], []


def static(stage: str = "stage03_kvcache", num_requests: int = 7, max_tokens: int = 12, rows: int = 3, seed: int = 0):
    """Stages 1, 2 and 3: batches that run until their last row is done."""
    engine = Engine(stage, seed, num_requests, max_tokens, max_num_seqs=rows)
    cached = stage == "stage03_kvcache"
    for request in engine.requests:
        engine.queue(request, None)
    waiting = engine.requests[:]
    while waiting:
        batch = [waiting.pop(0) for _ in range(min(1 if stage == "stage01_single" else rows, len(waiting)))]
        for slot, request in enumerate(batch):
            engine.event("admitted", request, engine.before, **(dict(slot=slot) if cached else {}))
        longest, done, first = max(len(r["prompt"]) for r in batch), set(), True
        room = longest + max(r["most"] for r in batch) - 1
        while len(done) < len(batch):
            grown = max(len(r["output"]) for r in batch)
            records = []
            for slot, request in enumerate(batch):
                tokens = len(request["prompt"]) + len(request["output"])
                start = tokens - 1 if cached and not first else 0
                columns = 1 if cached and not first else longest + grown
                num_tokens = 0 if request["id"] in done else tokens - start
                place = slot if cached else None
                records.append(engine.row(request, start, num_tokens, columns - num_tokens, place))
            live = [r for r in batch if r["id"] not in done]
            used = sum(len(r["prompt"]) + len(r["output"]) for r in live)
            for request in live:
                if engine.sample(request):
                    done.add(request["id"])
                    engine.event("finished", request, engine.after, reason="length")
            memory = dict(kv_tokens_reserved=room * len(batch), kv_tokens_used=used) if cached else {}
            engine.record(records, **memory)
            first = False
    return engine.header, engine.steps


def slots(num_requests: int = 9, max_tokens: int = 14, max_num_seqs: int = 3, budget: int = 64, seed: int = 0):
    """Stage 4: a request that is done leaves, and the next one joins."""
    engine = Engine(
        "stage04_continuous", seed, num_requests, max_tokens, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget
    )
    engine.header["num_slots"] = max_num_seqs
    for i, request in enumerate(engine.requests):
        engine.queue(request, [0, i])
    waiting, running, free = engine.requests[:], [], list(range(max_num_seqs))
    while waiting or running:
        left, rows = budget, []
        for request in sorted(running, key=lambda r: not r["output"]):
            left -= take(engine, request, left, rows, request["slot"])
        while waiting and free and left:
            request = waiting.pop(0)
            request["slot"], request["computed"] = free.pop(0), 0
            engine.event("admitted", request, engine.before, slot=request["slot"])
            running.append(request)
            left -= take(engine, request, left, rows, request["slot"])
        if waiting:
            why = dict(reason="budget") if free else dict(reason="running", most=max_num_seqs)
            engine.event("refused", waiting[0], engine.before, **why)
        used, reserved = sum(request["computed"] for request in running), len(running) * 256
        for request in [r for r in running if r["computed"] == len(r["prompt"]) + len(r["output"])]:
            if engine.sample(request):
                engine.event("finished", request, engine.after, reason="length")
                running.remove(request)
                free = sorted([*free, request["slot"]])
        engine.record(rows, kv_tokens_reserved=reserved, kv_tokens_used=used)
    return engine.header, engine.steps


def take(engine: Engine, request: dict, left: int, rows: list, slot=None, blocks=None) -> int:
    """Add a row for as many of a request's next tokens as fit; returns how many these are."""
    start, end = request["computed"], len(request["prompt"]) + len(request["output"])
    num_tokens = min(end - start, left)
    if num_tokens:
        rows.append(engine.row(request, start, num_tokens, 0, slot, blocks))
        request["computed"] += num_tokens
    return num_tokens


def paged(
    num_requests: int = 9,
    max_tokens: int = 40,
    max_num_seqs: int = 4,
    budget: int = 64,
    num_blocks: int = 24,
    n: int = 1,
    reserve: int = 1,
    seed: int = 0,
    size: int = 16,
    stage: str = "stage05_paged",
):
    """From stage 5 on: blocks, a prefix cache, preemption."""
    options = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, block_size=size)
    engine = Engine(stage, seed, num_requests, max_tokens, n, **options)
    engine.header["num_blocks"] = num_blocks
    held, free, found = {}, list(range(num_blocks)), {}  # found: tokens of a whole prefix -> block
    for i, request in enumerate(engine.requests):
        request["place"] = [0, i]
        engine.queue(request, request["place"])
    waiting, running = engine.requests[:], []

    def sequence(request: dict) -> list:
        return request["prompt"] + request["output"]

    def get() -> int:
        block = free.pop(0)
        held[block] = 1
        for key in [key for key, other in found.items() if other == block]:
            del found[key]
            engine.before.append(dict(kind="evicted", block=block))
        engine.before.append(dict(kind="taken", block=block))
        return block

    def release(request: dict, events: list) -> None:
        for block in reversed(request["blocks"]):
            held[block] -= 1
            if not held[block]:
                del held[block]
                findable = block in found.values()
                free.insert(len(free) if findable else 0, block)
                events.append(dict(kind="released", block=block, cached=findable))
        request["blocks"], request["computed"] = [], 0

    def cached(request: dict) -> list:
        tokens, blocks = sequence(request), []
        while (len(blocks) + 1) * size < len(tokens) and tuple(tokens[: (len(blocks) + 1) * size]) in found:
            blocks.append(found[tuple(tokens[: (len(blocks) + 1) * size])])
        return blocks

    def enter(request: dict) -> None:
        for i in range(request["computed"] // size):
            key = tuple(sequence(request)[: (i + 1) * size])
            if key not in found and request["blocks"][i] not in found.values():
                found[key] = request["blocks"][i]

    while waiting or running:
        preempted = False
        for request in sorted(running, key=lambda r: r["place"]):
            while request in running and len(request["blocks"]) * size < len(sequence(request)):
                if not free:
                    last = max(running, key=lambda r: r["place"])
                    running.remove(last)
                    release(last, engine.before)
                    waiting = sorted([*waiting, last], key=lambda r: r["place"])
                    engine.event("preempted", last, engine.before)
                    preempted = True
                else:
                    request["blocks"].append(get())
        left, rows = budget, []
        for request in sorted(running, key=lambda r: not r["output"]):
            left -= take(engine, request, left, rows, blocks=list(request["blocks"]))
            enter(request)
        while waiting:
            request = waiting[0]
            blocks = cached(request)
            needed = -(-len(sequence(request)) // size) - len(blocks) + sum(b not in held for b in blocks)
            spare = reserve if running else 0
            why = None
            if len(running) == max_num_seqs:
                why = dict(reason="running", most=max_num_seqs)
            elif preempted:
                why = dict(reason="preempted")
            elif not left:
                why = dict(reason="budget")
            elif needed + spare > len(free):
                why = dict(reason="blocks", needed=needed, free=len(free), reserve=spare)
            if why:
                engine.event("refused", request, engine.before, **why)
                break
            waiting.pop(0)
            for block in blocks:
                if block in free:
                    free.remove(block)
                    engine.before.append(dict(kind="taken", block=block))
                held[block] = held.get(block, 0) + 1
            request["computed"] = len(blocks) * size
            engine.event("admitted", request, engine.before, num_cached_tokens=request["computed"])
            request["blocks"] = blocks + [get() for _ in range(-(-len(sequence(request)) // size) - len(blocks))]
            running.append(request)
            left -= take(engine, request, left, rows, blocks=list(request["blocks"]))
            enter(request)
        shared = [count for count in held.values() if count > 1]
        used = sum(r["computed"] for r in running) - sum((count - 1) * size for count in shared)
        memory = dict(
            kv_tokens_reserved=len(held) * size,
            kv_tokens_used=max(0, used),
            num_blocks_shared=len(shared),
            num_blocks_saved=sum(shared) - len(shared),
        )
        for request in [r for r in running if r["computed"] == len(sequence(r))]:
            if engine.sample(request):
                engine.event("finished", request, engine.after, reason="length")
                running.remove(request)
                release(request, engine.after)
        engine.record(rows, **memory)
    return engine.header, engine.steps


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
