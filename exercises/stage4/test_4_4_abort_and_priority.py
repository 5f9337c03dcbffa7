"""Order, leaving, coming back; a plain list as a reference; and operations, counted instead of timed."""

from collections import Counter

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
    queue.add("a", 1)
    queue.add("b")
    expect("a of priority 1, then b without one, which is 0", drained(queue), ["b", "a"])
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
        {"names that left no longer wait": 3, "a name that was never there can't leave": 1},
    )
    expect("a, b, c without a", drained(queue), ["b", "c"], {"a name that left must not come up": ["a", "b"]})
    queue.abort("b")
    expect("b leaves after it was popped: how many wait", len(queue), 0, {"a name that does not wait is ignored": -1})


def test_again(work):
    queue = work.Queue()
    queue.add("a")
    queue.add("b")
    queue.abort("a")
    queue.add("a")
    said = {"a name that left and came back is at the end, not where its old entry was": ["a", "b"]}
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
        raise Wrong(
            "a is added while a waits", "ValueError", "nothing", "two requests with the same name can't be told apart"
        )
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
    said = {"a name that left must not come up": "a", "nobody is waiting: raise IndexError": None}
    expect("pop after the only one left", got, "IndexError", said)


def visited(queue, work, count, acts, parts=1):
    """A queue of this length to which `acts` names are added; then as many leave, and as many are popped. Each is
    measured in this many parts."""
    names = [f"n{i}" for i in range(count + acts)]
    work.each(queue, "add", [(name, i % 7) for i, name in enumerate(names[:count])])
    for what, name, calls in (
        ("adds", "add", [(name, i % 7) for i, name in enumerate(names[count:])]),
        ("calls of len", "__len__", [()] * acts),
        ("aborts", "abort", [(name,) for name in names[count - 1 : 0 : -2][:acts]]),
        ("pops", "pop", [()] * acts),
    ):
        for i in range(parts):
            with work.measured() as measured:
                work.each(queue, name, calls[i * acts // parts : (i + 1) * acts // parts])
            yield what, measured


SEARCHED = "don't search or copy the queue: a dictionary finds a name at once, and a heap the first"


def test_nothing_is_searched(work):
    """The answer's own instructions, and the memory that it takes: a search goes through all entries, a copy holds them."""
    for what, measured in visited(work.Queue(), work, 800, 400):
        for kind, number, most in (("instructions of Python", measured.instructions, 1000),
                                   ("bytes taken", measured.allocated, 3000)):  # fmt: skip
            require(number < most * 400, f"400 {what} in a queue of 800: {kind}", f"fewer than {most * 400}", number,
                    f"{what} that {SEARCHED}")  # fmt: skip


def test_nothing_is_searched_in_c(work):
    """The work of one instruction, `in` a list or `remove`, shows only in computing time: in a queue 100 times as long."""
    short, long = Counter(), Counter()
    for what, measured in visited(work.Queue(), work, 600, 600, parts=12):
        short[what] += measured.seconds
    for what, measured in visited(work.Queue(), work, 60_000, 600, parts=12):
        long[what] += measured.seconds
        seen = f"over {long[what]:.3f} seconds, and {short[what]:.3f} in a queue of 600"
        require(long[what] < 0.1 + 10 * short[what], f"600 {what} in a queue of 60,000: computing time",
                "about as long as in a short one", seen, f"{what} that {SEARCHED}")  # fmt: skip


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


def test_many_visitors(work):
    """Names of a thousand characters, priorities beyond 65,535, and a thousand names that come, leave and are popped."""
    queue, names = work.Queue(), [f"{i} " + "n" * (i % 7 * 170) for i in range(1100)]
    priorities = [i * i % 70_001 - 300 for i in range(1100)]
    for name, priority in zip(names, priorities, strict=True):
        queue.add(name, priority)
    for name in names[::2]:
        queue.abort(name)
    expect("how many of 1,100 wait after every second one has left", len(queue), 550)
    order = sorted(range(1, 1100, 2), key=lambda i: (priorities[i], i))
    expect("the order of the others", drained(queue), [names[i] for i in order])
