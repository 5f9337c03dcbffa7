"""4.1 The scheduler: steps worked out by hand, and crowds whose tokens are handed out one at a time."""

import random

import pytest


def told(scheduled):
    """The requests of a step and their numbers of tokens, like "A1 B4"."""
    return " ".join(f"{request.name}{num_tokens}" for request, num_tokens in scheduled)


@pytest.mark.parametrize(("max_num_seqs", "budget", "name_prompt_output", "expected"), [
    pytest.param(4, 100, [("A", 5, 3)], ["A5", "A1", "A1", ""], id="the whole prompt at first, then one token per step"),
    pytest.param(4, 100, [("C", 4, 1), ("A", 4, 1), ("B", 4, 1)], ["C4 A4 B4", ""], id="requests are admitted in order of arrival"),
    pytest.param(2, 100, [("A", 4, 2), ("B", 4, 2), ("C", 4, 1)], ["A4 B4", "A1 B1", "C4", ""],
                 id="at most max_num_seqs run at once"),
    pytest.param(2, 100, [("A", 4, 1), ("B", 4, 3), ("C", 4, 2)], ["A4 B4", "B1 C4", "B1 C1", ""],
                 id="when a request is done, another one runs in the next step"),
    pytest.param(4, 6, [("A", 10, 2)], ["A6", "A4", "A1", ""], id="a prefill that does not fit gets what is left of the budget"),
    pytest.param(4, 6, [("A", 4, 2), ("B", 4, 2)], ["A4 B2", "A1 B2", "B1", ""], id="the budget is for all requests of a step"),
    pytest.param(4, 4, [("A", 3, 9), ("B", 7, 1), ("C", 1, 1)], ["A3 B1", "A1 B3", "A1 B3", "A1 C1"],
                 id="no request overtakes an earlier one: with a stream of small ones, a big one would wait forever"),
])  # fmt: skip
def test_steps(work, max_num_seqs, budget, name_prompt_output, expected):
    """name_prompt_output: a request's name, tokens of the prompt, tokens of the output"""
    scheduler, left = work.Scheduler(max_num_seqs, budget), {}
    for name, num_tokens, output in name_prompt_output:
        request = work.Request(name, num_tokens)
        left[request] = output
        scheduler.add(request)
    got = []
    for _ in expected:
        scheduled = scheduler.schedule()
        got.append(told(scheduled))
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens == request.num_tokens:
                request.num_tokens += 1
                left[request] -= 1
                if not left[request]:
                    scheduler.finish(request)
    assert got == expected


def test_difference(work):
    """What a request has to compute is num_tokens - num_computed_tokens, also when it is admitted."""
    scheduler = work.Scheduler(2, 100)
    scheduler.add(work.Request("A", 8, 5))
    assert told(scheduler.schedule()) == "A3"


@pytest.mark.parametrize(("to_compute", "expected"), [
    pytest.param([(1, 1, 1)], ["A1 B1 C1"], id="decodes go in the order in which they were admitted"),
    pytest.param([(5, 1, 1)], ["B1 C1 A4"], id="requests that decode come before requests that still prefill"),
    pytest.param([(4, 2, 1)], ["C1 A4 B1"], id="prefills go in the order in which they were admitted, not the shorter first"),
    pytest.param([(9, 2, 1)], ["C1 A5"], id="no request is scheduled for 0 tokens"),
    pytest.param([(5, 1, 1), (1, 1, 1)], ["B1 C1 A4", "A1 B1 C1"], id="a prefill keeps its place for the time when it decodes"),
])  # fmt: skip
def test_running(work, to_compute, expected):
    """Six tokens a step. to_compute: how many tokens the running requests A, B, and C have to compute in each step"""
    scheduler, requests = work.Scheduler(3, 6), [work.Request(name, 2) for name in "ABC"]
    for request in requests:
        scheduler.add(request)
    scheduler.schedule()
    got = []
    for step in to_compute:
        for request, count in zip(requests, step, strict=True):
            request.num_computed_tokens = request.num_tokens
            request.num_tokens += count
        got.append(told(scheduler.schedule()))
    assert got == expected, "A, B, and C run, and the budget is 6"


@pytest.mark.parametrize(("leave", "expected"), [
    pytest.param("A", "B1 C1 D4", id="when a running request leaves, the others keep their order"),
    pytest.param("DA", "B1 C1 E4", id="an aborted request leaves the queue, and the others keep their order"),
    pytest.param("DEABC", "F4", id="when all but one leave, that one runs"),
])  # fmt: skip
def test_finish(work, leave, expected):
    """A, B, and C run; D, E, and F wait. leave: who leaves then, one after another"""
    scheduler, requests = work.Scheduler(3, 12), {name: work.Request(name, 4) for name in "ABCDEF"}
    for request in requests.values():
        scheduler.add(request)
    for request, num_tokens in scheduler.schedule():
        request.num_computed_tokens += num_tokens
        request.num_tokens += 1
    for name in leave:
        scheduler.finish(requests[name])
    assert told(scheduler.schedule()) == expected, "A, B, and C run, D, E, and F wait; some leave"


@pytest.mark.parametrize(("leave", "expected"), [
    pytest.param([1], [0, 2], id="requests may have equal fields: only the one that is finished leaves"),
    pytest.param([3, 0, 1], [2, 4], id="requests may have equal fields: only the one that is aborted leaves the queue"),
])  # fmt: skip
def test_equal_requests(work, leave, expected):
    """Five requests, two of which may run. leave: the numbers of the requests that leave"""
    scheduler, requests = work.Scheduler(2, 100), [work.Request("A", 4) for _ in range(5)]
    for request in requests:
        scheduler.add(request)
    scheduler.schedule()
    for number in leave:
        scheduler.finish(requests[number])
    got = [requests.index(request) for request, _ in scheduler.schedule()]
    assert got == expected, "of five equal requests, 0 to 4, the two that are in the step"


def test_any_crowd(work):
    """Random requests that come and leave at any time: a step's tokens are those of the line, one after another."""
    for seed in range(200):
        choose = random.Random(seed)
        max_num_seqs, budget = choose.randint(1, 1 + seed // 40), choose.randint(1, 4 + seed // 10)
        scheduler, running, waiting, calls = work.Scheduler(max_num_seqs, budget), [], [], []
        for number in range(5 + seed // 5):
            for name in choose.choices("ABC", k=choose.randint(0, 2)):
                waiting.append(work.Request(f"{name}{number}:", choose.randint(1, 3 + seed // 10)))
                scheduler.add(waiting[-1])
                calls.append(f"add {waiting[-1]}")
            line = sorted(running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1)
            line += waiting[: max_num_seqs - len(running)]
            tokens = [r for r in line for _ in range(r.num_tokens - r.num_computed_tokens)][:budget]
            expected = [(request, tokens.count(request)) for request in dict.fromkeys(tokens)]
            got = scheduler.schedule()
            assert told(got) == told(expected), f"Scheduler({max_num_seqs}, {budget}), {', '.join(calls)}"
            calls.append(told(expected))
            running += [request for request in waiting if request in tokens]
            waiting = [request for request in waiting if request not in tokens]
            for request, num_tokens in expected:
                request.num_computed_tokens += num_tokens
                if request.num_computed_tokens == request.num_tokens:
                    request.num_tokens += choose.choice((1, 1, 1, 4))
            for request in choose.sample(running, len(running) // 3) + choose.sample(waiting, len(waiting) // 5):
                scheduler.finish(request)
                (running if request in running else waiting).remove(request)
                calls.append(f"finish {request.name}")
