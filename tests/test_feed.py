"""The server's feed: who gets the next seat in the engine."""

import asyncio
import contextlib

import pytest

from stagewise.serving.feed import Feed


class Calls:
    """Completions that hold a seat until the test ends them."""

    def __init__(self, num_seats):
        self.feed, self.tasks, self.running = Feed(lambda: num_seats), [], []

    async def complete(self, call):
        end = asyncio.Event()
        async with self.feed.seat(call):
            self.running.append((call, end))
            try:
                await end.wait()
            finally:
                self.running.remove((call, end))

    async def start(self, call, number=1):
        self.tasks += [asyncio.create_task(self.complete(call)) for _ in range(number)]
        await self.settle()

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def end_one(self, call):
        next(end for other, end in self.running if other == call).set()
        await self.settle()

    def seats(self):
        names = [call for call, _ in self.running]
        return {call: names.count(call) for call in names}

    async def cancel_all(self):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_one_call_leaves_the_last_quarter_to_newcomers():
    async def go():
        calls = Calls(8)
        await calls.start("large", 128)
        assert calls.seats() == {"large": 6}
        await calls.start("small")
        assert calls.seats() == {"large": 6, "small": 1}
        await calls.start("third", 5)
        assert calls.seats() == {"large": 6, "small": 1, "third": 1}
        await calls.cancel_all()
        assert (calls.running, calls.feed.taken, calls.feed.waiting) == ([], {}, {})

    asyncio.run(go())


def test_calls_take_turns():
    """A free seat goes to the call with the fewest, and of equals to the one that has waited longest."""

    async def go():
        calls = Calls(4)
        await calls.start("a", 9)
        await calls.start("b", 9)
        await calls.start("c", 9)
        assert calls.seats() == {"a": 3, "b": 1}
        await calls.end_one("a")
        assert calls.seats() == {"a": 2, "b": 1, "c": 1}
        for ended, expected in (
            ("a", {"a": 2, "b": 1, "c": 1}),
            ("a", {"a": 1, "b": 2, "c": 1}),
            ("b", {"a": 1, "b": 1, "c": 2}),
        ):
            await calls.end_one(ended)
            assert calls.seats() == expected
        await calls.cancel_all()

    asyncio.run(go())


@pytest.mark.parametrize("num_seats", [1, 2, 3])
def test_few_seats_are_all_for_one(num_seats):
    async def go():
        calls = Calls(num_seats)
        await calls.start("a", 5)
        assert calls.seats() == {"a": num_seats}
        await calls.cancel_all()

    asyncio.run(go())


def test_a_completion_that_leaves_gives_its_seat_back():
    """It leaves while it runs, while it waits, or in the moment in which it gets its seat."""

    async def go():
        calls = Calls(1)
        await calls.start("a")
        await calls.start("b")
        await calls.start("c")
        running, waiting, last = calls.tasks
        waiting.cancel()
        await calls.settle()
        assert list(calls.feed.waiting) == ["c"]
        calls.running[0][1].set()
        await asyncio.sleep(0)  # `a` gives its seat to `c`, which has not noticed yet
        last.cancel()
        await calls.settle()
        assert running.done()
        assert calls.running == []
        await calls.start("d")
        assert calls.seats() == {"d": 1}
        await calls.cancel_all()

    asyncio.run(go())


def test_more_seats_are_handed_out():
    async def go():
        calls = Calls(1)
        await calls.start("a", 3)
        calls.feed.num_seats = lambda: 4
        calls.feed.hand_out()
        await calls.settle()
        assert calls.seats() == {"a": 3}
        await calls.cancel_all()

    asyncio.run(go())
