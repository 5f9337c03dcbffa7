"""The feed hands completions to the engine, so that no client's requests hold up another's.

The engine serves in order of arrival. So a completion of a call arrives there only when it has a seat: as many have one
as may run at once. A free seat goes to the call with the fewest seats. No call has the last quarter of them, so a
newcomer beside a single large call gets a seat at once.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable


class Feed:
    """Seats in the engine, for the completions of calls.

    Args:
        num_seats: how many there are now.

    Attributes:
        taken: the seats of each call.
        waiting: the completions of each call that wait for a seat, in order.
    """

    def __init__(self, num_seats: Callable[[], int]):
        self.num_seats = num_seats
        self.taken: Counter[object] = Counter()
        self.waiting: dict[object, dict[asyncio.Future, None]] = {}

    @contextlib.asynccontextmanager
    async def seat(self, call: object) -> AsyncIterator[None]:
        """A seat for one completion of a call, from its turn on."""
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(call, {})[turn] = None
        self.hand_out()
        try:
            await turn  # a cancelled task cancels it
            yield
        finally:
            if turn.cancelled():
                self._forget(call, turn)
            else:
                self.taken[call] -= 1
                self.taken += Counter()  # forget calls without seats
                self.hand_out()

    def hand_out(self) -> None:
        """Give free seats to completions that wait."""
        seats = self.num_seats()
        most = seats - seats // 4  # of one call
        while self.taken.total() < seats:
            calls = [call for call in self.waiting if self.taken[call] < most]
            if not calls:
                return
            call = min(calls, key=self.taken.__getitem__)  # of equals the one that has waited longest
            turn = next(iter(self.waiting[call]))
            self._forget(call, turn)
            if not turn.cancelled():
                turn.set_result(None)
                self.taken[call] += 1

    def _forget(self, call: object, turn: asyncio.Future) -> None:
        """Let a completion wait no longer. The next one of its call waits behind those of others."""
        others = self.waiting.pop(call, {})
        others.pop(turn, None)
        if others:
            self.waiting[call] = others
