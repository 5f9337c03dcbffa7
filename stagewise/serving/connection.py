"""A client's connection, with limits of size, number and time."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

TURN = 2**10  # bytes of one client that are parsed before others have their turn


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection, whose HTTP h11 reads.

    Size: h11 keeps at most 16 kB of an incomplete head, and parses one request at a time; while that is answered,
    nothing more is read. uvicorn pauses reading at 64 kB of a body, and pauses the answer at 64 kB that the client has
    not read. (uvicorn's other parser, httptools, keeps headers and pipelined requests without a limit.)

    Number: when there are too many, the one that has waited longest for its client is closed.

    Time: a request must be complete `timeout_keep_alive` seconds after its first byte, and that must come as long after
    the connection began, or after the last answer.

    Attributes:
        since: when it began to wait for its client.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since, self._part = self.loop.time(), bytearray(TURN)
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:
            others = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.waits]
            if others:  # if not, uvicorn answers 503
                longest = min(others, key=lambda one: one.since)
                self.connections.discard(longest)
                longest.transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.since = self.loop.time()  # a request begins
        self.data_received(bytes(self._part[:nbytes]))

    @property
    def is_asked(self) -> bool:
        """Whether a complete request is being answered."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    @property
    def waits(self) -> bool:
        """For its client, to send a request or to read the answer."""
        return not self.is_asked or self.flow.write_paused

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self.transport.close()  # requests that are sent ahead
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.since = self.loop.time()
        super().pause_writing()

    def check_time(self) -> None:
        """Give up a request that takes too long to arrive. uvicorn's own timer stops at a request's first byte."""
        if self.is_asked or self.transport.is_closing() or self.loop.time() < self.since + self.timeout_keep_alive:
            return
        if self.conn.our_state is h11.SEND_RESPONSE or self.conn.trailing_data[0]:
            self.send_400_response(f"The request was not complete after {self.timeout_keep_alive:g} seconds.")
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # the app must not answer, too
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()  # what follows an answer is no request
