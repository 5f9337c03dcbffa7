"""4.4 A queue with priorities and aborts: who comes first, a sorted list as the model, and comparisons, counted."""

import random

import pytest


def filled(work, calls):
    """A queue after these calls: "a" or "a 3" adds, "-a" aborts, "pop" pops."""
    queue = work.Queue()
    for call in calls:
        name, *priority = call.split()
        if name == "pop":
            queue.pop()
        elif name.startswith("-"):
            queue.abort(name[1:])
        else:
            queue.add(name, *map(int, priority))
    return queue


@pytest.mark.parametrize(("calls", "expected"), [
    pytest.param(["a 1", "b 0", "c -2"], "c b a", id="lower numbers go first"),
    pytest.param(["a 1", "b"], "b a", id="without a priority it is 0"),
    pytest.param(["z", "x", "y"], "z x y", id="equal priorities go in order of arrival, not of names"),
    pytest.param(["a", "b", "c", "-a"], "b c", id="a name that left does not come up, and is not counted"),
    pytest.param(["a", "-nobody"], "a", id="an abort of a name that is not waiting is ignored"),
    pytest.param(["a", "b", "pop", "-a"], "b", id="an abort of a name that was popped is ignored"),
    pytest.param(["a", "b", "-a", "a"], "b a", id="a name that left and is added again is at the end"),
    pytest.param(["a 5", "b 1", "-a", "a 0"], "a b", id="a name that is added again has its new priority"),
    pytest.param(["a", "pop", "a"], "a", id="a name that was popped may be added again"),
    pytest.param(["a", "b", "c", "-b", "d"], "a c d", id="later ones go last, also after an abort"),
])  # fmt: skip
def test_order(work, calls, expected):
    queue = filled(work, calls)
    assert len(queue) == len(expected.split()), "how many are waiting"
    assert " ".join(queue.pop() for _ in expected.split()) == expected
    assert len(queue) == 0, "how many are waiting after all were popped"


def test_twice(work):
    """A name that is already waiting raises ValueError, and keeps its place."""
    queue = filled(work, ["a", "b"])
    with pytest.raises(ValueError):
        queue.add("a")
    assert [queue.pop(), queue.pop()] == ["a", "b"]


def test_empty(work):
    """pop raises IndexError if no name is waiting."""
    for calls in ([], ["a", "-a"], ["a", "pop"]):
        queue = filled(work, calls)
        with pytest.raises(IndexError):
            queue.pop()


def test_any_calls(work):
    """Random calls: the same as a list that is sorted each time."""
    for seed in range(300):
        choose = random.Random(seed)
        queue, waiting, calls = work.Queue(), [], []  # waiting: (priority, number, name)
        for number in range(2 + seed // 10):
            name, action = choose.choice("abcd"), choose.choice(["add", "add", "abort", "pop"])
            there = any(name == other for *_, other in waiting)
            if action == "add" and not there:
                waiting.append((choose.choice((0, 1, -1, 30, 31)), number, name))
                calls.append(f"add({name}, {waiting[-1][0]})")
                queue.add(name, waiting[-1][0])
            elif action == "abort":
                calls.append(f"abort({name})")
                queue.abort(name)
                waiting = [other for other in waiting if other[2] != name]
            elif action == "pop" and waiting:
                waiting.sort()
                expected = waiting.pop(0)[2]
                calls.append("pop()")
                assert queue.pop() == expected, ", ".join(calls)
            assert len(queue) == len(waiting), f"waiting after {', '.join(calls)}"


def counting(base, compared):
    """A type like this one that counts its comparisons in `compared`."""

    def counted(operator):
        def compare(self, other):
            compared[0] += 1
            return getattr(base, operator)(self, other)

        return compare

    operators = {operator: counted(operator) for operator in ("__eq__", "__ne__", "__lt__", "__gt__")}
    return type("Counting", (base,), {"__hash__": base.__hash__, **operators})


def test_nothing_is_searched(work):
    """A call does not search the queue: comparisons of names and priorities in a queue of 2,000, at most 100 for each call."""
    compared = [0]
    name, priority, queue = counting(str, compared), counting(int, compared), work.Queue()
    for i in range(2000):
        queue.add(name(f"n{i}"), priority(i * 7 % 11))
    for what, call in (
        ("add", lambda i: queue.add(name(f"m{i}"), priority(i % 5))),
        ("abort", lambda i: queue.abort(name(f"n{1900 - i}"))),
        ("pop", lambda i: queue.pop()),
    ):
        compared[0] = 0
        for i in range(100):
            call(i)
        assert compared[0] <= 100 * 100, f"100 calls of {what} search the queue; a heap and a dictionary compare little"
