"""The server's life cycle: a port, uvicorn on it, and a shutdown that lets requests finish."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

import uvicorn

from .app import App
from .connection import BACKLOG, settings

TOLD_SECONDS = 1  # to tell clients that their requests were aborted


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError, naming the address, if it is not available."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(f"--host {host}: {error.strerror}") from None
    try:
        if os.name == "posix":  # otherwise a port is blocked for a minute after its use
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"port {port} on {host} is not available: {error.strerror}") from None
    return listener


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, with its own shutdown.

    After the first signal, new requests get 503, and running ones have `grace` seconds. Then the engine aborts what is
    left, and its clients are told so. A second signal ends the process at once.
    """

    def __init__(self, app: App, grace: float):
        more: dict[str, Any] = {"log_config": None, "access_log": False, "proxy_headers": False, "lifespan": "off"}
        more |= {"ws": "none", "timeout_graceful_shutdown": 1, **settings(app.limits)}
        # A warning is about a request.
        super().__init__(uvicorn.Config(app, log_level="warning" if app.log else "error", **more))
        self.app, self.grace = app, grace

    def handle_exit(self, sig: int, frame: object) -> None:
        if self.app.draining:
            self._end_now(sig)
        self.app.draining = self.should_exit = True

    @staticmethod
    def _end_now(sig: int) -> NoReturn:
        os._exit(128 + sig)  # the shell's exit status for this signal

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        connections: list[Any] = [*self.server_state.connections]
        for connection in connections:
            connection.check_time()
        return await super().on_tick(counter)

    async def main_loop(self) -> None:
        """Serve until a signal comes, and then until nothing runs; the caller closes the connections."""
        await super().main_loop()
        await self._until_idle(self.grace)
        await asyncio.to_thread(self.app.service.engine.close, abort=True)
        await self._until_idle(TOLD_SECONDS)
        await self._until(lambda: not self.app.audience.viewers, TOLD_SECONDS)
        connections: list[Any] = [*self.server_state.connections]
        for connection in connections:  # to clients that do not read, or never send the rest
            if connection.cycle is not None and not connection.cycle.response_complete:
                connection.transport.abort()
        await self._until_idle(TOLD_SECONDS)

    async def _until_idle(self, seconds: float) -> None:
        await self._until(lambda: not self.app.num_active, seconds)

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
