"""Milestone 4, slots: requests join and leave at every step."""

import heapq
import random
from collections.abc import Sequence

from exercises.grading import Wrong, expect, require

from .batch import AT_ONCE, LENGTHS, OUTPUTS, after_batches, in_order, static_batches
from .lab import END, Lab, Missing, greedy, prompts_of, seeded

NEEDED = ("add_request", "step", "has_unfinished_requests")


def slot_passes(outputs: Sequence[int], slots: int) -> int:
    """Forward passes if every request takes the first free slot, and keeps it for all its tokens."""
    free = [0] * slots
    for n in outputs:
        heapq.heappush(free, heapq.heappop(free) + n)
    return max(free)


def stepped(lab: Lab, **options):
    """An engine that is stepped by hand."""
    llm = lab.stepper(**options)
    for name in NEEDED:
        if not hasattr(llm, name):
            raise Missing(f"LLM has no `{name}`")
    return llm


class Run:
    """Requests in an engine that is stepped by hand.

    Attributes:
        tokens: request id -> its tokens so far; times: request id -> the step in which each of them came.
    """

    def __init__(self, lab: Lab, llm, case: str):
        self.lab, self.llm, self.case = lab, llm, case
        self.tokens: dict[str, list[int]] = {}
        self.times: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.num_steps = 0

    def add(self, name: str, prompt: list[int], settings: dict) -> None:
        with self.lab.case(self.case):
            self.llm.add_request(name, prompt, self.lab.params(settings))
        self.tokens[name], self.times[name] = [], []

    def step(self) -> None:
        with self.lab.case(self.case):
            outputs = self.llm.step()
        for output in outputs:
            name, ids = output.request_id, list(output.outputs[0].token_ids)
            if name in self.finished:
                raise Wrong(
                    self.case, f"no further results for request {name!r}", ids, "it was reported as finished before"
                )
            self.times[name] += [self.num_steps] * (len(ids) - len(self.tokens[name]))
            self.tokens[name] = ids
            self.finished |= {name} if output.finished else set()
        self.num_steps += 1

    def to_the_end(self, most: int = 2000) -> None:
        while self.llm.has_unfinished_requests():
            if self.num_steps == most:
                left = sorted(self.tokens.keys() - self.finished)
                raise Wrong(self.case, "all finished", f"{left} are not, after {most} steps", "a request is forgotten")
            self.step()


def check_passes(lab: Lab) -> None:
    """slots: a finished request leaves at once, and the next one joins"""
    case = f"outputs of {OUTPUTS}, {AT_ONCE} slots"
    (num_forwards,) = after_batches(lab, case, "num_forwards")
    enough = slot_passes(OUTPUTS, AT_ONCE)
    static = sum(max(OUTPUTS[i] for i in batch) for batch in static_batches())
    unsorted = sum(max(OUTPUTS[i] for i in batch) for batch in in_order())
    known = dict.fromkeys((static, unsorted), "a free slot stays empty until the last of its batch has ended")
    require(
        num_forwards <= enough,
        case,
        f"at most {enough} forward passes",
        f"you made {num_forwards} forward passes where {enough} suffice",
        known.get(num_forwards, ""),
    )


def check_padding(lab: Lab) -> None:
    """no padding: everything that is computed is needed"""
    case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}"
    computed, padding = after_batches(lab, case, "num_tokens_computed", "num_padding_tokens")
    expect(
        f"{case}: num_padding_tokens",
        padding,
        0,
        likely="a step's tokens need no rectangle: concatenate them, each with its position and its slot",
    )
    expect(f"{case}: num_tokens_computed", computed, sum(p + n - 1 for p, n in zip(LENGTHS, OUTPUTS, strict=True)))


def check_joining(lab: Lab) -> None:
    """requests that come while others run: the same tokens as alone"""
    prompts, rng = prompts_of(*LENGTHS), random.Random(0)
    settings = [greedy(n) if i % 2 else seeded(n, i) for i, n in enumerate(OUTPUTS)]
    arrivals = [rng.randrange(12) for _ in prompts]
    case = f"requests that arrive before the steps {arrivals}, 3 slots"
    run = Run(lab, stepped(lab, max_num_seqs=3), case)
    while run.num_steps <= max(arrivals):
        for i in (i for i, at in enumerate(arrivals) if at == run.num_steps):
            run.add(str(i), prompts[i], settings[i])
        run.step()
    run.to_the_end()
    for i, prompt in enumerate(prompts):
        alone = lab.run(f"request {i} alone", [prompt], settings[i])[0].token_ids
        expect(
            f"{case}: request {i}",
            run.tokens[str(i)],
            alone,
            likely="does it still read what the previous request left in its slot?"
            if arrivals[i] > min(arrivals)
            else "",
        )


def check_budget(lab: Lab) -> None:
    """a long prompt comes in pieces, and delays no other request's tokens"""
    case = "one request runs, a prompt of 40 tokens joins it, max_num_batched_tokens=8"
    run = Run(lab, stepped(lab, max_num_batched_tokens=8, max_num_seqs=4), case)
    run.add("short", prompts_of(3)[0], greedy(30))
    run.step()
    run.add("long", prompts_of(40)[0], greedy(4))
    computed = []
    while not run.tokens["long"] and run.num_steps < 30:
        before = lab.counted(run.llm, "num_tokens_computed")[0]
        run.step()
        computed.append(lab.counted(run.llm, "num_tokens_computed")[0] - before)
    require(
        max(computed) <= 8,
        f"{case}: tokens computed in each step",
        "at most 8",
        computed,
        "the budget is for the whole step: decodes count too",
    )
    steps = list(range(run.num_steps))
    expect(
        f"{case}: the steps in which the running request gets a token",
        run.times["short"],
        steps,
        likely="decodes come first; a prompt gets what is left of the budget",
    )
    enough = -(-40 // 7)
    require(
        len(computed) <= enough,
        f"{case}: steps until its first token",
        enough,
        len(computed),
        "a piece is as large as the budget leaves room for",
    )
    run.to_the_end()
    for name, prompt, num in (("short", prompts_of(3)[0], 30), ("long", prompts_of(40)[0], 4)):
        right = lab.expected([prompt], greedy(num))[0].token_ids
        lab.same_tokens(
            f"{case}: the {name} one",
            prompt,
            run.tokens[name],
            right,
            likely=lambda at: "a piece continues where the previous one ended: position, slot, what it reads",
        )


def check_abort(lab: Lab) -> None:
    """an aborted request leaves, and its slot is free for the next step"""
    case = "2 slots, a and b run, c waits; a is aborted after 3 steps, d (waiting too) before it began"
    run = Run(lab, stepped(lab, max_num_seqs=2), case)
    if not hasattr(run.llm, "abort_request"):
        raise Missing("LLM has no `abort_request`")
    prompts = dict(zip("abcd", prompts_of(4, 6, 5, 3), strict=True))
    for name, prompt in prompts.items():
        run.add(name, prompt, greedy(10))
    for _ in range(3):
        run.step()
    with lab.case(case):
        run.llm.abort_request("a")
        run.llm.abort_request("d")
        run.llm.abort_request("nobody")
    seen = len(run.tokens["a"])
    run.finished -= {"a", "d"}  # whether an abort is reported is the engine's choice
    run.to_the_end()
    require(
        len(run.tokens["a"]) == seen and not run.tokens["d"],
        f"{case}: tokens of a and d",
        [seen, 0],
        [len(run.tokens["a"]), len(run.tokens["d"])],
        "they got tokens after they were aborted",
    )
    expect(
        f"{case}: the step of c's first token", run.times["c"][:1], [3], likely="c had to wait although a slot was free"
    )
    for name in "bc":
        right = lab.expected([prompts[name]], greedy(10))[0].token_ids
        lab.same_tokens(f"{case}: request {name}", prompts[name], run.tokens[name], right)


def check_bad_request(lab: Lab) -> None:
    """a bad request is refused when it is added, and running ones go on"""
    run = Run(lab, stepped(lab, max_num_seqs=2), "a request runs, and a bad one comes")
    prompt = prompts_of(4)[0]
    run.add("good", prompt, greedy(8))
    run.step()
    bad = {
        "an empty prompt": [],
        f"token {END + 1}, which does not exist": [END + 1],
        "65 tokens, the context 64": [1] * 65,
    }
    for what, tokens in bad.items():
        lab.refused(
            f"a request runs, and one with {what} is added",
            lambda tokens=tokens: run.llm.add_request("bad", tokens, lab.params(greedy(4))) and None,
            "",
            "add_request must refuse what can't be computed; in a step it would cost all requests their work",
        )
    run.to_the_end()
    lab.same_tokens(run.case, prompt, run.tokens["good"], lab.expected([prompt], greedy(8))[0].token_ids)


def check_crowd(lab: Lab) -> None:
    """sixty requests in four slots: each ends once, none is lost"""
    rng = random.Random(1)
    lengths = [rng.randrange(1, 30) for _ in range(60)]
    outputs = [rng.randrange(1, 12) for _ in lengths]
    case = "60 requests, 4 slots, a budget of 16 tokens"
    run = Run(lab, stepped(lab, max_num_seqs=4, max_num_batched_tokens=16), case)
    prompts = prompts_of(*lengths)
    for i, (prompt, n) in enumerate(zip(prompts, outputs, strict=True)):
        run.add(str(i), prompt, greedy(n))
    run.to_the_end()
    right = lab.expected(prompts, [greedy(n) for n in outputs])
    for i, prompt in enumerate(prompts):
        lab.same_tokens(f"{case}: request {i}", prompt, run.tokens[str(i)], right[i].token_ids)
    firsts = [run.times[str(i)][0] for i in range(60)]
    late = next((i for i in range(1, 60) if firsts[i] < firsts[i - 1]), None)
    order = "request i gets its first token no later than request i + 1"
    require(
        late is None, f"{case}: the step in which each got its first token", order, firsts, "the queue is not in order"
    )
