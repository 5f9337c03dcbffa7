"""Steps worked out by hand, and a large number of requests."""

import random
from dataclasses import dataclass

from exercises.examples import Example, at_random
from exercises.grading import OneOf, Wrong, expect


class Engine:
    """Does what the scheduler says: computes tokens, makes outputs, ends requests."""

    def __init__(self, work, max_num_seqs, budget):
        self.work, self.scheduler = work, work.Scheduler(max_num_seqs, budget)
        self.requests, self.outputs = [], {}  # in order of arrival; request -> tokens still to generate

    def add(self, name, prompt, output):
        request = self.work.Request(name, prompt)
        self.requests.append(request)
        self.outputs[request] = output
        self.scheduler.add(request)
        return request

    def abort(self, number):
        """The request that arrived as number 0, 1, …"""
        self.scheduler.finish(self.requests[number])

    def step(self):
        scheduled = self.scheduler.schedule()
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens == request.num_tokens:
                request.num_tokens += 1
                self.outputs[request] -= 1
                if self.outputs[request] == 0:
                    self.scheduler.finish(request)
        return [(request.name, num_tokens) for request, num_tokens in scheduled]


def test_prefill_then_decode(work):
    engine = Engine(work, 4, 100)
    engine.add("A", 5, 3)
    said = {"after the prefill only the new token is computed": [[("A", 5)], [("A", 6)], [("A", 6)], [("A", 6)]]}
    expect(
        "a prompt of 5, three tokens", [engine.step() for _ in range(4)], [[("A", 5)], [("A", 1)], [("A", 1)], []], said
    )


def test_a_request_that_comes_with_computed_tokens(work):
    request = work.Request("A", 8)
    request.num_computed_tokens = 5
    scheduler = work.Scheduler(2, 100)
    scheduler.add(request)
    got = [(one.name, count) for one, count in scheduler.schedule()]
    said = {"what it has to compute is the difference: num_tokens - num_computed_tokens": [("A", 8)]}
    expect("a request of 8 tokens, of which 5 are computed, is admitted", got, [("A", 3)], said)


def test_admits_and_retires(work):
    engine = Engine(work, 2, 100)
    for name, output in (("A", 1), ("B", 3), ("C", 2)):
        engine.add(name, 4, output)
    expected = [[("A", 4), ("B", 4)], [("B", 1), ("C", 4)], [("B", 1), ("C", 1)], []]
    said = {
        "at most max_num_seqs run at once": [[("A", 4), ("B", 4), ("C", 4)], [("B", 1), ("C", 1)], [("B", 1)], []],
        "a finished request's place is free at the next step":
            [[("A", 4), ("B", 4)], [("B", 1)], [("B", 1)], [("C", 4)]],
        "first come, first served": [[("C", 4), ("B", 4)], [("C", 1), ("B", 1)], [("B", 1), ("A", 4)], []],
    }  # fmt: skip
    expect("outputs 1, 3, 2 in two places", [engine.step() for _ in range(4)], expected, said)


def test_nobody_overtakes(work):
    engine = Engine(work, 4, 4)
    engine.add("A", 3, 9)
    engine.add("big", 7, 1)
    engine.add("small", 1, 1)
    got = [engine.step() for _ in range(3)]
    said = {"the budget is for all tokens of a step": [[("A", 3), ("big", 7), ("small", 1)], [("A", 1)], [("A", 1)]],
            "a prompt that does not fit is split, not left waiting": [[("A", 3)], [("A", 1)], [("A", 1)]]}  # fmt: skip
    expected = [[("A", 3), ("big", 1)], [("A", 1), ("big", 3)], [("A", 1), ("big", 3)]]
    likely = ""
    if any(n == 0 for step in got for _, n in step):
        likely = "do not schedule a request for 0 tokens"
    elif any(name == "small" for step in got for name, _ in step):
        likely = "no request may overtake an earlier one: with a stream of small ones a big one would wait forever"
    expect("3, 7 and 1 tokens, four a step, at most four requests", got, expected, said, likely=likely)


def test_budget(work):
    engine = Engine(work, 4, 6)
    engine.add("A", 10, 2)
    engine.add("B", 4, 2)
    expected = [[("A", 6)], [("A", 4), ("B", 2)], [("A", 1), ("B", 2)], [("B", 1)]]
    said = {
        "the budget is for all tokens of a step": [[("A", 10), ("B", 4)], [("A", 1), ("B", 1)], [], []],
        "a prompt that does not fit is split, not left waiting": [[], [], [], []],
    }
    expect("prompts 10 and 4, six tokens a step", [engine.step() for _ in range(4)], expected, said)


def test_decodes_come_first(work):
    engine = Engine(work, 4, 6)
    engine.add("long", 15, 2)
    engine.add("short", 2, 9)
    got = [engine.step() for _ in range(3)]
    expect("prompts of 15 and 2, six tokens a step", got, [[("long", 6)], [("long", 6)], [("long", 3), ("short", 2)]])
    engine.add("late", 12, 2)
    got = [engine.step() for _ in range(3)]
    expected = [[("long", 1), ("short", 1), ("late", 4)], [("short", 1), ("late", 5)], [("short", 1), ("late", 3)]]
    expect("then a third of 12", got, expected)
    prefill, late = work.Request("prefill", 6), work.Request("late", 1)
    scheduler = work.Scheduler(3, 4)
    scheduler.add(prefill)
    scheduler.add(late)
    for _ in range(2):
        for request, n in scheduler.schedule():
            request.num_computed_tokens += n
    late.num_tokens += 1
    prefill.num_tokens += 9
    got = [(request.name, n) for request, n in scheduler.schedule()]
    said = {"a running prefill took the place of a decode: that user's text stutters": [("prefill", 4)]}
    expect(
        "four a step; the first to be admitted has nine tokens, the second one",
        got,
        [("late", 1), ("prefill", 3)],
        said,
    )
    late.num_tokens += 9
    got = [(request.name, n) for request, n in scheduler.schedule()]
    said = {"do not schedule a request for 0 tokens": [("prefill", 4), ("late", 0)]}
    expect("both have more to compute than the budget", got, [("prefill", 4)], said)
    late.num_computed_tokens = late.num_tokens - 2
    got = [(request.name, n) for request, n in scheduler.schedule()]
    said = {
        "running prefills go in the order in which they were admitted, not the shorter one first": [
            ("late", 2),
            ("prefill", 2),
        ]
    }
    expect("the same, and the second has two tokens left", got, [("prefill", 4)], said)


def test_abort(work):
    engine = Engine(work, 1, 10)
    engine.add("A", 2, 9)
    waiting = engine.add("B", 2, 1)
    engine.add("C", 2, 1)
    running = engine.step
    running()
    leaves = "a request that was aborted while it waited must leave the queue"
    try:
        engine.scheduler.finish(waiting)
    except (ValueError, KeyError) as error:
        raise Wrong("finish(B), while B waits", "it leaves the queue", repr(error), leaves) from None
    a = engine.scheduler.schedule()[0][0]
    engine.scheduler.finish(a)
    got = engine.step()
    expect("B was aborted while it waited, A while it ran", got, [("C", 2)],
           {"a request that was aborted while it waited must leave the queue": [("B", 2)]})  # fmt: skip


def test_who_leaves_changes_no_order(work):
    engine = Engine(work, 3, 100)
    for name, output in (("A", 1), ("B", 2), ("C", 2), ("D", 1), ("E", 1), ("F", 1)):
        engine.add(name, 4, output)
    engine.abort(3)
    got = [engine.step() for _ in range(3)]
    swapped = "removing a request must not reorder the others: the last one took its place"
    expected = [[("A", 4), ("B", 4), ("C", 4)], [("B", 1), ("C", 1), ("E", 4)], [("F", 4)]]
    expect("A to F in three places; D leaves the queue, A is done after a step", got, expected, {swapped: OneOf([
        [expected[0], [("C", 1), ("B", 1), ("E", 4)], [("F", 4)]], [expected[0], [("C", 1), ("B", 1), ("F", 4)], [("E", 4)]],
        [expected[0], [("B", 1), ("C", 1), ("F", 4)], [("E", 4)]]])})  # fmt: skip


def test_equal_names(work):
    engine = Engine(work, 2, 100)
    engine.add("A", 4, 3)
    engine.add("A", 4, 1)
    got = [engine.step() for _ in range(4)]
    said = "two requests may have the same name: only the finished one leaves, not the other, and not both"
    expected = [[("A", 4), ("A", 4)], [("A", 1)], [("A", 1)], []]
    expect("two requests named A, outputs 3 and 1", got, expected, {said: OneOf([
        [expected[0], [("A", 1)], [("A", 1)], [("A", 1)]], [expected[0], [], [], []]])})  # fmt: skip


@dataclass(eq=False)
class Line:
    """A request in the slow engine's queue: `missing` tokens to compute, and when it was admitted, if it was."""

    name: str
    missing: int
    output: int
    admitted: int = 0


class SlowEngine:
    """Hands out the tokens of a step one at a time, each to the first in the queue that still has something to compute."""

    def __init__(self, max_num_seqs, budget):
        self.max_num_seqs, self.budget, self.line, self.arrived = max_num_seqs, budget, [], []

    def add(self, name, prompt, output):
        self.line.append(Line(name, prompt, output))
        self.arrived.append(self.line[-1])

    def step(self):
        running = [one for one in self.line if one.admitted]
        order = sorted(running, key=lambda one: (one.missing > 1, one.admitted))
        order += [one for one in self.line if not one.admitted]
        places = []
        for _ in range(self.budget):
            full = sum(one.admitted > 0 for one in self.line) == self.max_num_seqs
            first = next((o for o in order if places.count(o) < o.missing and (o.admitted or not full)), None)
            if first is None:
                break
            first.admitted = first.admitted or 1 + max(one.admitted for one in self.line)
            places.append(first)
        counts = {one: places.count(one) for one in places}
        for one, count in counts.items():
            one.output -= count == one.missing
            one.missing = one.missing - count or 1
        self.line = [one for one in self.line if one.output]
        return [(one.name, count) for one, count in counts.items()]


def test_any_crowd(work):
    """Requests that come and leave between steps, some with the same name, with few places and small budgets."""

    def check(choose):
        sizes = choose.between(1, 4), choose.between(1, 12)
        example = Example(work, __file__, "from exercises.stage4.test_4_1_scheduler import Engine")
        example.do(f"engine = Engine(work, {sizes[0]}, {sizes[1]})")
        slow = SlowEngine(*sizes)
        for action in choose.each(lambda: choose.upto(5), 40, least=1):
            if action < 3:
                example.expect("engine.step()", slow.step())
            elif action < 5 or not slow.line:
                arguments = choose.one_of("ABC"), choose.between(1, 30), choose.between(1, 4)
                slow.add(*arguments)
                example.do(f"_ = engine.add{arguments}")
            else:
                gone = choose.one_of(slow.line)
                slow.line.remove(gone)
                example.do(f"engine.abort({slow.arrived.index(gone)})")

    at_random(check)


def test_a_crowd(work):
    """Two hundred requests, long ones among them, until all are done."""
    rng, engine, slow = random.Random(0), Engine(work, 8, 32), SlowEngine(8, 32)
    for step in range(300):
        for _ in range(rng.randrange(0, 13) if step < 30 else 0):
            arguments = f"s{len(slow.arrived)}", rng.randrange(1, 60), rng.randrange(1, 20)
            engine.add(*arguments)
            slow.add(*arguments)
        expect(
            f"{len(slow.arrived)} requests, 8 at once and 32 tokens a step: step {step}",
            engine.step(),
            slow.step(),
        )
    expect("requests not finished after 300 steps", sum(n > 0 for n in engine.outputs.values()), 0)


def test_what_came_back_stays(work):
    """The engine keeps a step's list while it computes, and the scheduler makes the next one in the meantime."""
    engine = Engine(work, 2, 8)
    engine.add("A", 4, 3)
    step = engine.scheduler.schedule()
    engine.add("B", 4, 1)
    engine.scheduler.schedule()
    expect("the list of the first step, after the second", [(r.name, n) for r, n in work.reread(step)], [("A", 4)],
           likely="the steps share one list: make a new one for each step")  # fmt: skip


def test_long_queues(work):
    """A thousand waiting requests, prompts longer than 65,535, and as many in each step as fit."""
    engine = Engine(work, 1000, 100_000)
    for i in range(1200):
        engine.add(f"r{i}", 90, 2)
    got = engine.step()
    expect(
        "the first step of 1,200 prompts of 90, 1,000 places, 100,000 tokens", got, [(f"r{i}", 90) for i in range(1000)]
    )
    got = engine.step()
    expect("the second", got, [(f"r{i}", 1) for i in range(1000)])
    got = engine.step()
    expect("the third", got, [(f"r{i}", 90) for i in range(1000, 1200)])
    engine = Engine(work, 300, 70_000)
    engine.add("long", 150_000, 1)
    expect(
        "a prompt of 150,000",
        [engine.step() for _ in range(4)],
        [[("long", 70_000)], [("long", 70_000)], [("long", 10_000)], []],
    )
