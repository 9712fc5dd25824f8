"""A uvicorn server that is told to end, and still serves for a while.

uvicorn stops listening at once. Whoever spreads requests over several servers may not know yet, and
sends requests that are refused. Here a server with requests under way goes on as before for some
seconds, and says meanwhile that it is not ready. Answers then close their connections, so that the
next request goes to another server. After that it stops listening, and what is under way may still
end.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import uvicorn

# the key in the ASGI lifespan state; an application may put its own ServerStop there
STOP_STATE_KEY = "om.stop"


LOOK_INTERVAL_S = 0.1
UNFINISHED = 1  # the exit status of a process that did not end by itself


class ServerStop:
    """Whether a server was told to end. `on_begin` is called when it is."""

    def __init__(self, on_begin: Callable[[], None] = lambda: None) -> None:
        self.has_begun = False
        self._on_begin = on_begin

    @classmethod
    def get_or_create(cls, state: dict[str, Any]) -> ServerStop:
        """Return the one in the server's state. If there is none, store one."""
        stop: ServerStop = state.setdefault(STOP_STATE_KEY, cls())
        return stop

    def begin(self) -> None:
        self.has_begun = True
        self._on_begin()


class StopTimes(NamedTuple):
    """How long the steps of an end may take, in seconds since the server was told to end."""

    listening: float = 10.0  # a server with requests under way still takes others
    # after that, for the requests of connections that were just accepted
    first_request: float = 0.5
    serving: float = 30.0  # requests under way may end by themselves
    process: float = 34.0  # what waits is stored, and leases are given back


STOP_TIMES = StopTimes()


def exit_now() -> None:
    """End this process at once, whatever its threads and tasks do."""
    print("om-proxy: it did not end in time, so it is cut off", file=sys.stderr, flush=True)  # noqa: T201 - no log can be relied on here
    os._exit(UNFINISHED)


class GracefulServer(uvicorn.Server):
    """A server that ends in these steps. `on_overrun` is called if it has not ended in time."""

    def __init__(
        self,
        config: uvicorn.Config,
        times: StopTimes = STOP_TIMES,
        on_overrun: Callable[[], None] = exit_now,
    ) -> None:
        super().__init__(config)
        self._times = times
        self._on_overrun = on_overrun
        self._overrun: threading.Timer | None = None
        self._is_interrupted = False  # by Ctrl-C
        self._is_announced = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            if self._overrun is not None:
                self._overrun.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; at a second Ctrl-C, cut off the requests under way. uvicorn would leave the
        application open with them, and its threads would keep the process."""
        super().handle_exit(sig, frame)
        self.force_exit = False
        if sig == signal.SIGINT:
            for task in list(self.server_state.tasks) if self._is_interrupted else ():
                task.get_loop().call_soon_threadsafe(task.cancel)
            for connection in list(self.server_state.connections) if self._is_interrupted else ():
                connection.loop.call_soon_threadsafe(connection.transport.abort)
            self._is_interrupted = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        # a thread: the event loop may be what is stuck
        self._overrun = threading.Timer(self._times.process, self._on_overrun)
        self._overrun.daemon = True
        self._overrun.start()
        ServerStop.get_or_create(self.lifespan.state).begin()
        for connection in list(self.server_state.connections):
            connection.end_endless_answer()  # type: ignore[union-attr] # all are BoundedProtocol
        while self._is_serving() and loop.time() - began_at < self._times.listening:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self._announce_wait()
        for server in self.servers:
            server.close()
        await self._wait_for_first_requests()
        left_s = self._times.serving - (loop.time() - began_at)
        self.config.timeout_graceful_shutdown = max(math.ceil(left_s), 1)  # whole seconds
        await super().shutdown(sockets)

    async def _wait_for_first_requests(self) -> None:
        """Wait for the requests of connections that were just accepted. uvicorn would close such a
        connection, and its client could not know whether the request was served."""
        for _ in range(math.ceil(self._times.first_request / LOOK_INTERVAL_S)):
            if not any(map(_is_new, self.server_state.connections)):
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _announce_wait(self) -> None:
        """Say once, to whoever pressed Ctrl-C, why the server has not ended yet."""
        if self._is_interrupted and self._is_serving() and not self._is_announced:
            self._is_announced = True
            print(  # noqa: T201 - the log may be off
                f"om-proxy: waiting up to {self._times.serving:.0f} s for open requests "
                f"({len(self.server_state.tasks)}); a second Ctrl-C cuts them off",
                file=sys.stderr,
                flush=True,
            )

    def _is_serving(self) -> bool:
        return bool(self.server_state.tasks)


def _is_new(connection: object) -> bool:
    """Return whether no request has come on the connection. All are BoundedProtocol."""
    return getattr(connection, "cycle", None) is None
