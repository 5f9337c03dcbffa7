"""The server's feed: who gets the next seat in the engine."""

import asyncio

import pytest

from stagewise.serving.feed import Feed

pytestmark = pytest.mark.anyio


class Calls:
    """Completions that hold a seat until the test ends them. At the end nothing is left of them."""

    def __init__(self, num_seats):
        self.feed, self.tasks, self.running = Feed(lambda: num_seats), [], []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.running, self.feed.taken, self.feed.waiting) == ([], {}, {})

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


async def test_one_call_leaves_the_last_quarter_to_newcomers():
    async with Calls(8) as calls:
        await calls.start("large", 128)
        assert calls.seats() == {"large": 6}
        await calls.start("small")
        await calls.start("third", 5)
        assert calls.seats() == {"large": 6, "small": 1, "third": 1}


async def test_calls_take_turns():
    """A free seat goes to the call with the fewest, and of equals to the one that has waited longest."""
    async with Calls(4) as calls:
        for call in "abc":
            await calls.start(call, 9)
        assert calls.seats() == {"a": 3, "b": 1}
        for ended, a, b, c in (("a", 2, 1, 1), ("a", 2, 1, 1), ("a", 1, 2, 1), ("b", 1, 1, 2)):
            await calls.end_one(ended)
            assert calls.seats() == {"a": a, "b": b, "c": c}


@pytest.mark.parametrize("num_seats", [1, 2, 3])
async def test_few_seats_are_all_for_one(num_seats):
    async with Calls(num_seats) as calls:
        await calls.start("a", 5)
        assert calls.seats() == {"a": num_seats}


async def test_a_completion_that_leaves_gives_its_seat_back():
    """It leaves while it runs, while it waits, or in the moment in which it gets its seat."""
    async with Calls(1) as calls:
        for call in "abc":
            await calls.start(call)
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
        for call in "def":
            await calls.start(call)
        calls.running[0][1].set()
        calls.tasks[-2].cancel()  # before `d` gives its seat away
        await calls.settle()
        assert calls.seats() == {"f": 1}
