"""Prepare the comments before a streamed reply (`X-OM-Events: inline`), while the model server is
asked."""

from __future__ import annotations

import asyncio

from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.engine.turns.turn import OpenedTurn
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts


class InlineComments:
    """The comments of one request. Make it before the turn is opened, and `close` it at the end."""

    def __init__(self, events: InlineEvents, facts: Facts, key: Key, *, with_text: bool) -> None:
        self._events = events
        self._facts = facts
        self._key = key
        self._with_text = with_text
        self._told: list[Event] = []  # grows while the request waits
        self._turn: OpenedTurn | None = None
        self._written: bytes | None = None
        events.watch(key, self._told)

    def begin(self, turn: OpenedTurn) -> None:
        """Write the comments at the loop's next turn: by then the model server is asked."""
        self._turn = turn
        asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> bytes:
        """Return the comments; empty without a memory."""
        if self._written is None:
            self.close()
            # without them the client gets its reply
            self._written = self._facts.try_extra("inline", self._key, b"", self._write)
        return self._written

    def _write(self) -> bytes:
        if self._turn is None:
            return b""
        projected = self._turn.reconciled.projected
        limits = self._turn.context.effective.limits
        return self._events.write(projected, limits, self._told, with_text=self._with_text)

    def close(self) -> None:
        """Watch no longer what happens."""
        self._events.unwatch(self._key, self._told)
