"""Pass stored events on to everybody who listens, as streams of server-sent events: first those that
a reader missed, then each new one. One poller in this process reads them, while anybody listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from om_proxy.common.errors import NotFound, OmError
from om_proxy.common.permanent_tasks import keep_running
from om_proxy.engine.event_feed.envelope import select_types, write_ascii, write_event
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.parts import Forgotten, OperationType
from om_proxy.memory.events.status import MemoryStatus, make_status
from om_proxy.memory.model import Key, resource_key
from om_proxy.storage.contract.memories import MemoryRows
from om_proxy.storage.contract.records import EventLog
from om_proxy.storage.values.records import StoredEvent

POLL_INTERVAL_S = 0.5
EVENTS_PER_POLL = 1_000
MAX_WAITING_EVENTS = 256  # of one listener
# How long stored events may be held back before the listeners are told.
MAX_HELD_BACK_S = 30.0
PING = b": ping\n\n"
PING_INTERVAL_S = 15.0
RETRY_MS = 2_000  # a reader that lost its connection comes back after this time
EVENTS_PER_PAGE = 100


class Listener:
    """The events that wait for one stream, oldest first."""

    def __init__(
        self, is_wanted: Callable[[StoredEvent], bool], watched_keys: tuple[Key, ...]
    ) -> None:
        self.is_wanted = is_wanted
        self.watched_keys = watched_keys
        self.waiting: deque[StoredEvent] = deque()
        # too many events waited here, or some have waited too long in the store
        self.is_behind = False
        self.has_moved = False  # a watched memory has another version
        self.versions: Mapping[Key, int] | None = None  # of the watched memories; None: not known
        self._news = asyncio.Event()

    def add(self, event: StoredEvent) -> None:
        if self.is_behind or not self.is_wanted(event):
            return
        if len(self.waiting) == MAX_WAITING_EVENTS:
            self.fall_behind()
        else:
            self.waiting.append(event)
            self._news.set()

    def fall_behind(self) -> None:
        """Take no more: the stream ends after what waits, and its reader comes back there."""
        self.is_behind = True
        self._news.set()

    def note_versions(self, versions: Mapping[Key, int]) -> None:
        if self.versions is not None and versions != self.versions:
            self.has_moved = True
            self._news.set()
        self.versions = versions

    async def wait(self, timeout_s: float) -> bool:
        """Wait for news. Return whether there are any."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True


class VersionedEvents(EventLog, MemoryRows, Protocol):
    """Events, and the versions of the memories that listeners watch."""


class EventFeed:
    """The poller and its listeners."""

    def __init__(
        self,
        store: VersionedEvents,
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._held_back_since: float | None = None
        self._poll_interval_s = poll_interval_s
        self._listeners: set[Listener] = set()
        self._poller: asyncio.Task[None] | None = None
        self._cursor = 0  # of the poller

    @property
    def is_polling(self) -> bool:
        return self._poller is not None

    @asynccontextmanager
    async def listen(self, listener: Listener) -> AsyncIterator[int]:
        """Pass each event to the listener whose id is greater than the one given here, the newest
        so far."""
        self._listeners.add(listener)
        try:
            # the listener is there already: a running poller passes on what comes meanwhile
            position = await self._store.event_position()
            if self._poller is None:
                self._cursor, self._held_back_since = position, None
                self._poller = asyncio.create_task(keep_running("events", self._poll_forever))
            yield position
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._poller:
                self._poller.cancel()
                self._poller = None

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.poll()
            except OmError:
                # the store is away: its events are read once it is back, from the same cursor
                await asyncio.sleep(self._poll_interval_s)
            await asyncio.sleep(self._poll_interval_s)

    async def poll(self) -> None:
        """Read what is new, once, and pass it on."""
        is_full = True
        while is_full:
            page = await self._store.events(None, None, self._cursor, EVENTS_PER_POLL)
            self._cursor, is_full = page.cursor, len(page.events) == EVENTS_PER_POLL
            for listener in self._listeners:
                if page.has_gap:  # before its events: a reader that has one misses the gap
                    listener.fall_behind()
                for event in page.events:
                    listener.add(event)
        self._note_held_back(page.is_held_back)
        for listener in list(self._listeners):
            if listener.watched_keys:
                listener.note_versions(await self.read_versions(listener.watched_keys))

    def _note_held_back(self, is_held_back: bool) -> None:
        """Tell the listeners once events have been held back for long: what they see is old."""
        if not is_held_back:
            self._held_back_since = None
        elif self._held_back_since is None:
            self._held_back_since = self._clock()
        elif self._clock() - self._held_back_since > MAX_HELD_BACK_S:
            self._held_back_since = None
            for listener in self._listeners:
                listener.fall_behind()

    async def read_versions(self, keys: Sequence[Key]) -> Mapping[Key, int]:
        return {key: await self._store.version(key) for key in keys}


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
    """Streams of events, all of this process from one poller. `find_running` names the work under
    way on a thread in this process."""

    feed: EventFeed
    memories: Memories
    find_running: Callable[[Key], OperationType | None] = lambda _: None

    async def find_keys(self, key: Key) -> tuple[Key, ...]:
        """Return the keys whose events are a thread's: its own, and that of the log it shares.
        Raise NotFound for a thread without a memory."""
        memory = await self.memories.load_known(key)
        return (key, resource_key(key)) if memory.shared_log_ref else (key,)

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
                yield await self._write_status(selection.key)
            while not listener.is_behind:
                if not await listener.wait(PING_INTERVAL_S):
                    yield PING
                    continue
                while listener.waiting:
                    event = listener.waiting.popleft()
                    if event.id > sent:
                        sent = event.id
                        yield write_piece(event, with_text=selection.with_text)
                if listener.has_moved:
                    listener.has_moved = False
                    yield await self._write_status(selection.key)
            yield write_notice("om-behind", sent)

    async def _catch_up(
        self, selection: Selection, after: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield what is stored after this id, with the id up to which that is everything."""
        is_full = True
        while is_full:
            page = await self.memories.store.events(
                selection.tenant, selection.keys, after, EVENTS_PER_PAGE
            )
            pieces = [write_notice("om-gap", after)] if page.has_gap else []
            pieces += [
                write_piece(event, with_text=selection.with_text)
                for event in select_types(page.events, selection.types)
            ]
            after, is_full = page.cursor, len(page.events) == EVENTS_PER_PAGE
            yield after, b"".join(pieces)

    async def _write_status(self, key: Key | None) -> bytes:
        """Return the state of the thread; nothing if it was forgotten."""
        assert key is not None  # of a stream about one thread
        try:
            memory = await self.memories.load_known(key)
        except NotFound:
            return b""
        limits = self.memories.events.find_limits(memory)
        subject = self.memories.events.describe_subject(memory)
        status = make_status(memory, limits, subject, self.find_running(key))
        data = write_ascii(
            {
                "tenant": key.tenant,
                "resource": key.resource,
                "thread": key.thread,
                "type": status.TYPE,
                "data": msgspec.to_builtins(status),
            }
        )
        return f"event: {status.TYPE}\ndata: {data}\n\n".encode()


def write_piece(event: StoredEvent, *, with_text: bool) -> bytes:
    """Return the event as the stream has it. Its JSON is ASCII on one line."""
    data = write_event(event, with_text=with_text)
    return f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n".encode()


def write_notice(name: str, cursor: int) -> bytes:
    """Return a notice about the stream itself. Without an id: a reader resumes where it was."""
    return f"event: {name}\ndata: {write_ascii({'cursor': str(cursor)})}\n\n".encode()
