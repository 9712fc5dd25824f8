"""om-proxy as it is, on a clock that a test moves. It also says when no work is under way.

    python launcher.py CLOCK serve --config om-proxy.yaml

CLOCK holds a time in unix seconds, as one double. `GET /test/idle` is answered once this process
has stored every turn and has no work of a memory model under way.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from om_proxy import cli
from om_proxy.app import app
from om_proxy.app.app import App
from om_proxy.edge import chat
from om_proxy.wire.server import responses

IDLE_PATH = "/test/idle"
TIME = struct.Struct("d")


def open_clock(file: Path) -> Callable[[], float]:
    """Open a clock that reads the file. Eight bytes are read and written in one piece."""
    descriptor = os.open(file, os.O_RDONLY)

    def read_time() -> float:
        (now,) = TIME.unpack(os.pread(descriptor, TIME.size, 0))
        return float(now)

    return read_time


class WatchedApp:
    """The app, and a page of the test's beside it."""

    def __init__(self, served: App) -> None:
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == IDLE_PATH:
            await self._served.background.wait_idle()
            await responses.send_json(send, 200, {"status": "idle"})
        else:
            await self._served(scope, receive, send)


def take_clock(file: Path) -> None:
    """Let the server that is created next use this clock."""
    create, clock = app.App, open_clock(file)

    def create_watched_app(*arguments: Any, **named: Any) -> Any:
        return WatchedApp(create(*arguments, clock=clock, **named))

    app.App = create_watched_app
    chat.MAX_OPEN_S = 60.0  # a busy machine fails no test (tests/conftest.py)


if __name__ == "__main__":
    take_clock(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
