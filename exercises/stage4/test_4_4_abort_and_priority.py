"""Order, leaving, coming back; a model that is a plain list; and what is done, counted instead of seconds."""

import sys

from exercises.examples import Example, at_random
from exercises.grading import Wrong, expect, require


def drained(queue):
    return [queue.pop() for _ in range(len(queue))]


def test_order(work):
    queue = work.Queue()
    for name, priority in (("a", 1), ("b", 1), ("c", 0), ("d", 1), ("e", -2)):
        queue.add(name, priority)
    said = {"lower numbers go first": ["a", "b", "d", "c", "e"], "priorities are ignored": ["a", "b", "c", "d", "e"],
            "equal priorities go in order of arrival": ["e", "c", "d", "b", "a"]}  # fmt: skip
    expect("a 1, b 1, c 0, d 1, e -2", drained(queue), ["e", "c", "a", "b", "d"], said)
    queue = work.Queue()
    for name in ("z", "y", "x"):
        queue.add(name)
    expect("z, y, x, all of priority 0", drained(queue), ["z", "y", "x"],
           {"equal priorities go in order of arrival, not of names": ["x", "y", "z"]})  # fmt: skip


def test_abort(work):
    queue = work.Queue()
    for name in ("a", "b", "c"):
        queue.add(name)
    queue.abort("a")
    try:
        queue.abort("nobody")
    except KeyError as error:
        raise Wrong(
            "abort of a name that never waited", "nothing happens", repr(error), "it may have been popped a moment ago"
        ) from None
    expect(
        "how many wait after one of three left",
        len(queue),
        2,
        {"those who left do not wait": 3, "who was never there can't leave": 1},
    )
    expect("a, b, c without a", drained(queue), ["b", "c"], {"who left must not come up": ["a", "b"]})
    queue.abort("b")
    expect("b leaves after it was popped: how many wait", len(queue), 0, {"a name that does not wait is ignored": -1})


def test_again(work):
    queue = work.Queue()
    queue.add("a")
    queue.add("b")
    queue.abort("a")
    queue.add("a")
    said = {"who left and came back stands at the end, not where its old entry is": ["a", "b"]}
    expect("a, b; a leaves and comes back", drained(queue), ["b", "a"], said)
    queue.add("a")
    queue.abort("a")
    queue.add("a", 5)
    queue.add("b", 1)
    expect("the same with another priority", drained(queue), ["b", "a"])
    queue = work.Queue()
    queue.add("a")
    try:
        queue.add("a")
    except ValueError:
        pass
    else:
        raise Wrong("a is added while a waits", "ValueError", "nothing", "two requests of one name can't be told apart")
    queue.pop()
    queue.add("a")
    expect("a was popped and comes again", drained(queue), ["a"])


def test_empty(work):
    queue = work.Queue()
    queue.add("a")
    queue.abort("a")
    try:
        got = queue.pop()
    except IndexError:
        return
    said = {"who left must not come up": "a", "nobody waits any more, which is an IndexError": None}
    expect("pop after the only one left", got, "IndexError", said)


def test_nothing_is_searched(work):
    """Names and priorities that count how often they are compared, and the answer's own instructions: a search compares
    with all of them, or passes all of them by without a comparison."""
    compared, instructions = 0, 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        def __ne__(self, other):
            return not self == other

    class Priority(int):
        __hash__ = int.__hash__

        def __lt__(self, other):
            nonlocal compared
            compared += 1
            return int.__lt__(self, other)

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return int.__eq__(self, other)

    def trace(frame, event, arg):
        nonlocal instructions
        if frame.f_code.co_filename != work.__file__:
            return None
        frame.f_trace_opcodes = True
        instructions += event == "opcode"
        return trace

    def add_all():
        for i in range(count):
            queue.add(Name(i), Priority(i % 7))

    def abort_half():
        for i in range(count - 1, 0, -2):
            queue.abort(Name(i))

    count, queue = 800, work.Queue()  # as many as a search is told by; what searches takes the square of it
    for what, act, calls in (
        ("adds", add_all, count),
        ("aborts", abort_half, count // 2),
        ("pops", lambda: drained(queue), count // 2),
    ):
        compared = instructions = 0
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            act()
        finally:
            sys.settrace(before)
        for kind, number, most in (("comparisons", compared, 100), ("instructions of Python", instructions, 1000)):
            require(number < most * calls, f"{calls} {what} in a queue of {count}: {kind}", f"fewer than {most * calls}", number,
                    f"{what} that search the queue; a dictionary finds a name at once, a heap the first")  # fmt: skip


def test_any_visitors(work):
    """Against a plain list: three names that come, leave, come back, come twice, and leave without being there."""

    def check(choose):
        example = Example(work, __file__, "from exercises.examples import raised")
        example.do("queue = work.Queue()")
        waiting = []  # (priority, number of arrival, name)
        for number, action in enumerate(choose.each(lambda: choose.upto(3), 30, least=1)):
            name = choose.one_of(["a", "b", "c", ""])
            there = [other for other in waiting if other[2] == name]
            if action < 2:
                priority = choose.one_of([0, 1, -1, 30, 31])
                if there:
                    example.expect(f"raised(lambda: queue.add({name!r}, {priority}), ValueError)", "ValueError")
                else:
                    example.do(f"queue.add({name!r}, {priority})")
                    waiting.append((priority, number, name))
            elif action == 2:
                example.do(f"queue.abort({name!r})")
                waiting = [other for other in waiting if other not in there]
            else:
                first = min(waiting, default=None)
                example.expect("raised(queue.pop, IndexError)", first[2] if first else "IndexError")
                waiting = [other for other in waiting if other is not first]
            example.look("len(queue)", len(waiting))

    at_random(check, 300)
