"""Write events as a stream of server-sent events: first those that a reader missed, then each new
one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from om_proxy.common.errors import NotFound
from om_proxy.engine.event_feed.envelope import select_types, write_ascii, write_event
from om_proxy.engine.event_feed.feed import EventFeed, EventReader, Listener
from om_proxy.memory.events.parts import Forgotten
from om_proxy.memory.events.status import MemoryStatus
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import StoredEvent

PING = b": ping\n\n"
PING_INTERVAL_S = 15.0
RETRY_MS = 2_000  # a reader that lost its connection comes back after this time
EVENTS_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The events that a reader wants and may see."""

    tenant: str | None  # None: those of all tenants
    key: Key | None = None  # of the thread that the stream is about
    keys: Sequence[Key] | None = None  # the thread, and the log it shares; None: all
    types: frozenset[str] = frozenset()  # empty: all
    with_text: bool = True
    label: str = ""  # of the thread, as the event of its forgetting names it

    def is_wanted(self, event: StoredEvent) -> bool:
        if self.tenant is not None and event.key.tenant != self.tenant:
            return False
        if self.types and event.type not in self.types:
            return False
        if self.keys is None or event.key in self.keys:
            return True
        return event.type == Forgotten.TYPE and json.loads(event.data)["label"] == self.label

    def wants_status(self) -> bool:
        return self.key is not None and (not self.types or MemoryStatus.TYPE in self.types)


@dataclass(frozen=True, slots=True, eq=False)
class EventStream:
    """Streams of events, all of this process from one poller."""

    feed: EventFeed
    reader: EventReader
    ping_interval_s: float = PING_INTERVAL_S

    async def stream(self, selection: Selection, after: int | None) -> AsyncGenerator[bytes, None]:
        """Yield events until the reader falls behind. `after`: the id of the last event that the
        reader has; None: it wants new ones only. Raise Overloaded before the first piece if too
        many listen."""
        watched = tuple(selection.keys or ()) if selection.wants_status() else ()
        listener = Listener(selection.is_wanted, watched)
        async with self.feed.listen(listener) as position:
            # the listener gets what comes after `position`; to catch up reads at least up to it
            sent = position if after is None else after
            yield b"retry: %d\n\n" % RETRY_MS
            if after is not None:
                async for cursor, pieces in self._catch_up(selection, after):
                    sent = cursor
                    yield pieces
            if watched:
                listener.note_versions(await self.feed.read_versions(watched))
                yield await self._write_status(selection)
            while not listener.is_behind:
                if not await listener.wait(self.ping_interval_s):
                    yield PING
                    continue
                while listener.waiting:
                    event = listener.waiting.popleft()
                    if event.id > sent:
                        sent = event.id
                        yield write_piece(event, with_text=selection.with_text)
                if listener.has_moved:
                    listener.has_moved = False
                    yield await self._write_status(selection)
            yield write_notice("om-behind", sent)

    async def _catch_up(
        self, selection: Selection, after: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield what is stored after this id, with the id up to which that is everything."""
        is_full = True
        while is_full:
            page = await self.reader.read(selection.tenant, selection.keys, after, EVENTS_PER_PAGE)
            pieces = [write_notice("om-gap", after)] if page.has_gap else []
            pieces += [
                write_piece(event, with_text=selection.with_text)
                for event in select_types(page.events, selection.types)
            ]
            after, is_full = page.cursor, len(page.events) == EVENTS_PER_PAGE
            yield after, b"".join(pieces)

    async def _write_status(self, selection: Selection) -> bytes:
        """Return the state of the thread; nothing if it was forgotten."""
        assert selection.key is not None  # of a stream about one thread
        try:
            status = await self.reader.write_status(selection.key)
        except NotFound:
            return b""
        return b"event: %s\ndata: %s\n\n" % (MemoryStatus.TYPE.encode(), status.encode())


def write_piece(event: StoredEvent, *, with_text: bool) -> bytes:
    """Return the event as the stream has it. Its JSON is ASCII on one line."""
    data = write_event(event, with_text=with_text)
    return f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n".encode()


def write_notice(name: str, cursor: int) -> bytes:
    """Return a notice about the stream itself. Without an id: a reader resumes where it was."""
    return f"event: {name}\ndata: {write_ascii({'cursor': str(cursor)})}\n\n".encode()
