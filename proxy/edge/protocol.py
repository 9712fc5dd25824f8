"""uvicorn's HTTP/1.1 protocol, and a word to the application when its connection is gone.

ASGI tells of a client's leaving only to who waits in `receive`: a task for every request, which costs as much as reading it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

GONE = "om.gone"  # of a scope's `extensions`: its `future` is done once the connection is gone


class Protocol(HttpToolsProtocol):
    """To be named as `http` in a uvicorn.Config."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gone: asyncio.Future[None] = self.loop.create_future()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {GONE: {"future": self._gone}}

    def on_message_complete(self) -> None:
        """A large body has paused reading until somebody asks for more of it; nobody will, and who does not read sees no end."""
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._gone.done():
            self._gone.set_result(None)
