"""Tell the parts of a server that it ends soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# the key in the ASGI lifespan state; an application may put its own ServerStop there
STOP_STATE_KEY = "om.stop"


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
