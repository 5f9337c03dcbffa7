"""Steps by hand, and a crowd."""

import random

from exercises.grading import Wrong, expect, require


class Engine:
    """Does what the scheduler says: computes tokens, makes outputs, ends requests."""

    def __init__(self, work, max_num_seqs, budget):
        self.work, self.scheduler, self.outputs = work, work.Scheduler(max_num_seqs, budget), {}

    def add(self, name, prompt, output):
        request = self.work.Request(name, prompt)
        self.outputs[name] = output
        self.scheduler.add(request)
        return request

    def step(self):
        scheduled = self.scheduler.schedule()
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens == request.num_tokens:
                request.num_tokens += 1
                self.outputs[request.name] -= 1
                if self.outputs[request.name] == 0:
                    self.scheduler.finish(request)
        return [(request.name, num_tokens) for request, num_tokens in scheduled]


def test_prefill_then_decode(work):
    engine = Engine(work, 4, 100)
    engine.add("A", 5, 3)
    said = {"after the prefill only the new token is computed": [[("A", 5)], [("A", 6)], [("A", 6)], [("A", 6)]]}
    expect(
        "a prompt of 5, three tokens", [engine.step() for _ in range(4)], [[("A", 5)], [("A", 1)], [("A", 1)], []], said
    )


def test_admits_and_retires(work):
    engine = Engine(work, 2, 100)
    for name, output in (("A", 1), ("B", 3), ("C", 2)):
        engine.add(name, 4, output)
    expected = [[("A", 4), ("B", 4)], [("B", 1), ("C", 4)], [("B", 1), ("C", 1)], []]
    said = {
        "at most max_num_seqs run at once": [[("A", 4), ("B", 4), ("C", 4)], [("B", 1), ("C", 1)], [("B", 1)], []],
        "the place of a request that is done is free at the next step":
            [[("A", 4), ("B", 4)], [("B", 1)], [("B", 1)], [("C", 4)]],
        "who comes first is served first": [[("C", 4), ("B", 4)], [("C", 1), ("B", 1)], [("B", 1), ("A", 4)], []],
    }  # fmt: skip
    expect("outputs 1, 3, 2 in two places", [engine.step() for _ in range(4)], expected, said)


def test_nobody_overtakes(work):
    engine = Engine(work, 4, 4)
    engine.add("A", 3, 9)
    engine.add("big", 7, 1)
    engine.add("small", 1, 1)
    got = [engine.step() for _ in range(3)]
    said = {"the budget is for all tokens of a step": [[("A", 3), ("big", 7), ("small", 1)], [("A", 1)], [("A", 1)]],
            "a prompt that does not fit is cut, not left waiting": [[("A", 3)], [("A", 1)], [("A", 1)]]}  # fmt: skip
    expected = [[("A", 3), ("big", 1)], [("A", 1), ("big", 3)], [("A", 1), ("big", 3)]]
    overtaken = "who came first is not overtaken: with a stream of small ones a big one would wait for ever"
    empty = any(n == 0 for step in got for _, n in step)
    expect("3, 7 and 1 tokens, four a step, at most four requests", got, expected, said,
           likely="do not schedule a request for no tokens" if empty else overtaken)  # fmt: skip


def test_budget(work):
    engine = Engine(work, 4, 6)
    engine.add("A", 10, 2)
    engine.add("B", 4, 2)
    expected = [[("A", 6)], [("A", 4), ("B", 2)], [("A", 1), ("B", 2)], [("B", 1)]]
    said = {
        "the budget is for all tokens of a step": [[("A", 10), ("B", 4)], [("A", 1), ("B", 1)], [], []],
        "a prompt that does not fit is cut, not left waiting": [[], [], [], []],
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
    said = {"a running prefill took the place of a decode: its user sees text that stutters": [("prefill", 4)]}
    expect(
        "four a step; nine tokens for who was admitted first, one for who was second",
        got,
        [("late", 1), ("prefill", 3)],
        said,
    )
    late.num_tokens += 9
    got = [(request.name, n) for request, n in scheduler.schedule()]
    said = {"do not schedule a request for no tokens": [("prefill", 4), ("late", 0)]}
    expect("both have more to compute than the budget", got, [("prefill", 4)], said)


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


def test_a_crowd(work):
    """Two hundred requests at random moments: limits hold, all are served, and whoever runs decodes in every step."""
    rng, engine = random.Random(0), Engine(work, 8, 32)
    names, waiting_since, step = iter(range(200)), {}, 0
    unfinished = {}
    while step < 30 or unfinished:
        if step < 30:
            for _ in range(rng.randrange(0, 13)):
                name = next(names, None)
                if name is not None:
                    unfinished[name] = engine.add(name, rng.randrange(1, 60), rng.randrange(1, 20))
                    waiting_since[name] = step
        scheduled = engine.step()
        require(
            sum(n for _, n in scheduled) <= 32, f"tokens of step {step}", "at most 32", sum(n for _, n in scheduled)
        )
        require(len(scheduled) <= 8, f"requests of step {step}", "at most 8", len(scheduled))
        require(all(n > 0 for _, n in scheduled), f"tokens of each request of step {step}", "at least 1", scheduled,
                "do not schedule a request for no tokens")  # fmt: skip
        require(
            bool(scheduled) or not unfinished,
            f"step {step}, {len(unfinished)} requests are not done",
            "some tokens",
            "none",
        )
        for name in [name for name in unfinished if engine.outputs[name] == 0]:
            del unfinished[name]
        step += 1
        require(step < 3000, "a crowd of 200", "all served within 3,000 steps", f"{len(unfinished)} still there")
