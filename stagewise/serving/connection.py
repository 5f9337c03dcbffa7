"""uvicorn's connection, with limits: how many there are, how long each may take, and what the end of its input means.

A client that says no more may have gone, or may have shut down its side only and wait for its answer; TCP tells both
in the same way. Whoever is gone refuses what it is sent. So a client that says no more is sent something that changes
nothing, again and again: before its answer the status "100 Continue", within an event stream a comment.
"""

import logging
import os
import socket
import time
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import APIError
from .events import to_json
from .limits import Limits

FIRST_PROBE, LONGEST_PAUSE = 0.02, 15.0  # seconds from one such word to the next; the pauses double
LOG_PAUSE = 60.0  # seconds between two lines of the log about connections
logger = logging.getLogger(__name__)


def most_connections(limits: Limits) -> int:
    """What `max_connections` comes to: the process opens other files too, and many connections come at once."""
    if os.name != "posix":
        return limits.max_connections
    import resource  # elsewhere there is none

    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.max_connections if most_files < 0 else max(1, min(limits.max_connections, most_files // 2))


class Doorkeeper:
    """Closes connections when there are too many, and says so in the log now and then. One for all connections."""

    def __init__(self, limits: Limits):
        self.limits, self.most = limits, most_connections(limits)
        self._num_closed, self._told = 0, -LOG_PAUSE
        self._connections: dict[Connection, None] = {}  # in the order in which they came, or their last answer ended

    def leave(self, connection: "Connection") -> None:
        self._connections.pop(connection, None)

    def enter(self, connection: "Connection") -> None:
        """A connection is new, or has had its answer; it is the last one now.

        Of too many those to which no answer is due are closed, the oldest first; else the newest. Whoever opens
        hundreds a second must not have all of them looked at each time: the oldest is mostly the one.
        """
        self.leave(connection)
        self._connections[connection] = None
        while len(self._connections) > self.most:
            victim = next((one for one in self._connections if not one.is_due), connection)
            if victim is connection:
                victim.refuse(503, f"{self.most} connections are open already")
            else:
                victim.transport.abort()
            self.leave(victim)
            self._num_closed += 1
        if self._num_closed and time.monotonic() - self._told >= LOG_PAUSE:
            logger.warning("%d connections were closed: there were more than %d", self._num_closed, self.most)
            self._num_closed, self._told = 0, time.monotonic()


class Connection(H11Protocol):
    """A connection."""

    def __init__(self, doorkeeper: Doorkeeper, **arguments: Any):
        super().__init__(**arguments)
        self._doorkeeper, self.limits = doorkeeper, doorkeeper.limits
        self._timer = self._unread_timer = None  # for the header, and for what is to be read

    @property
    def has_header(self) -> bool:
        """Whether a request has begun that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_due(self) -> bool:
        """Whether a request has come, all of it, and is not answered yet."""
        return self.has_header and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_header()
        self._doorkeeper.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._doorkeeper.leave(self)
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.has_header:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._await_header()  # the beginning of another request

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._doorkeeper.enter(self)

    def _await_header(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_seconds, self._no_header)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _no_header(self) -> None:
        if not self.transport.is_closing() and not self.has_header:
            self.refuse(408, f"no header came within {self.limits.header_seconds:g} seconds")

    def refuse(self, status: int, why: str) -> None:
        """Close a connection that has no request yet, and say why."""
        body = to_json(APIError(status, why).to_dict())
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.limits.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def eof_received(self) -> bool:
        """The client says no more. True keeps the connection for an answer that is due."""
        if not self.is_due:
            return False
        self.cycle.keep_alive = False
        self._probe(FIRST_PROBE)
        return True

    def _probe(self, pause: float) -> None:
        if self.transport.is_closing() or not self.is_due:
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()  # it has refused the last word: it is gone
            return
        if self.cycle.response_started:
            if comment := self.scope.get("comment"):
                self.transport.write(self.conn.send(h11.Data(comment)))
        elif self.scope["http_version"] != "1.0":  # where that status is not known yet
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])))
        self.loop.call_later(pause, self._probe, min(2 * pause, LONGEST_PAUSE))
