"""The feed hands completions to the engine, so that no client's requests hold up another's.

The engine serves in order of arrival. So a completion arrives there only when it has a seat: as many completions have
one as may run at once. A free seat goes to the call with the fewest seats. No call has the last quarter of them, so a
newcomer beside a single large call starts at the next step.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable


class Feed:
    """Seats in the engine, for the completions of calls.

    Args:
        num_seats: how many there are now.

    Attributes:
        taken: the seats of each call.
        waiting: the completions of each call that wait for a seat.
    """

    def __init__(self, num_seats: Callable[[], int]):
        self.num_seats = num_seats
        self.taken: Counter[object] = Counter()
        self.waiting: dict[object, deque[asyncio.Future]] = {}

    @contextlib.asynccontextmanager
    async def seat(self, call: object) -> AsyncIterator[None]:
        """A seat for one completion of a call, from its turn on."""
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(call, deque()).append(turn)
        self._hand_out()
        try:
            await turn  # a cancelled task cancels it
            yield
        finally:
            if not turn.cancelled():
                self.taken[call] -= 1
                self.taken += Counter()  # forget calls without seats
                self._hand_out()

    def _hand_out(self) -> None:
        """Give free seats to completions that wait."""
        seats = self.num_seats()
        most = seats - seats // 4  # of one call
        while self.taken.total() < seats:
            calls = [call for call in self.waiting if self.taken[call] < most]
            if not calls:
                return
            call = min(calls, key=self.taken.__getitem__)  # of equals the one that has waited longest
            queue = self.waiting.pop(call)
            turn = queue.popleft()
            if queue:
                self.waiting[call] = queue  # its next turn comes after the others'
            if not turn.cancelled():
                turn.set_result(None)
                self.taken[call] += 1
