"""Write what a streamed reply may tell before its first byte (`X-OM-Events: inline`), as comments of
server-sent events: the state of the memory, and what happened while the request waited. They are
prepared while the model server is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from om_proxy.engine.event_feed.envelope import write_ascii, write_data
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.parts import Event, OperationType
from om_proxy.memory.events.status import make_status
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.observability.facts import Facts
from om_proxy.storage.shared.event_encoding import encode_event
from om_proxy.storage.values.records import StoredEvent

MAX_INLINE_BYTES = 16 * 2**10
MAX_INLINE_EVENTS = 100  # of one request


def parse_inline_choice(value: bytes | None) -> bool | None:
    """Return whether the header `X-OM-Events` asks for comments with text; None: for none. Any
    other value is ignored."""
    words = {word.strip() for word in (value or b"").lower().split(b",")}
    if words == {b"inline"}:
        return False
    return True if words == {b"inline", b"text"} else None


@dataclass(frozen=True, slots=True, eq=False)
class InlineEvents:
    """Writes comments for requests. `find_running` names the work under way on a thread."""

    memories: Memories
    find_running: Callable[[Key], OperationType | None] = lambda _: None

    def watch(self, key: Key, told: list[Event]) -> None:
        """Add to `told` what happens to a thread, or the log of its resource, in this process."""
        for watched_key in {key, resource_key(key)}:
            self.memories.events.watchers.setdefault(watched_key, []).append(told)

    def unwatch(self, key: Key, told: list[Event]) -> None:
        """Watch no longer. A second call does nothing."""
        watchers = self.memories.events.watchers
        for watched_key in {key, resource_key(key)}:
            others = [other for other in watchers.get(watched_key, ()) if other is not told]
            if others:
                watchers[watched_key] = others
            else:
                watchers.pop(watched_key, None)

    def write(
        self, memory: Memory, limits: Limits, told: Sequence[Event], *, with_text: bool
    ) -> bytes:
        """Return the comments. `memory`: with the request's own messages."""
        subject = self.memories.events.describe_subject(memory)
        status = make_status(memory, limits, subject, self.find_running(memory.key))
        events = [
            StoredEvent(0, memory.key, *encode_event(event)) for event in told[:MAX_INLINE_EVENTS]
        ]
        data = write_ascii(msgspec.to_builtins(status))
        return write_comments(write_part(status.TYPE, data), events, with_text=with_text)


class InlineComments:
    """The comments of one request. Make it before the turn is opened, and `close` it at the end."""

    def __init__(self, events: InlineEvents, facts: Facts, key: Key, *, with_text: bool) -> None:
        self._events = events
        self._facts = facts
        self._key = key
        self._with_text = with_text
        self._told: list[Event] = []  # grows while the request waits
        self._state: tuple[Memory, Limits] | None = None
        self._written: bytes | None = None
        events.watch(key, self._told)

    def begin(self, memory: Memory, limits: Limits) -> None:
        """Write the comments at the loop's next turn: by then the model server is asked. `memory`:
        with the request's own messages."""
        self._state = memory, limits
        asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> bytes:
        """Return the comments; empty without a memory."""
        if self._written is None:
            self.close()
            # without them the client gets its reply
            self._written = self._facts.try_extra("inline", self._key, b"", self._write)
        return self._written

    def _write(self) -> bytes:
        if self._state is None:
            return b""
        return self._events.write(*self._state, self._told, with_text=self._with_text)

    def close(self) -> None:
        """Watch no longer what happens."""
        self._events.unwatch(self._key, self._told)


def write_comments(status: str, events: Sequence[StoredEvent], *, with_text: bool) -> bytes:
    """Return the comments, at most MAX_INLINE_BYTES of them: without texts where those are too
    long, and then as many events as fit."""
    for has_text in (True, False) if with_text else (False,):
        parts = [write_part(e.type, write_data(e, with_text=has_text)) for e in events]
        comments = [write_comment(part) for part in (status, *parts)]
        if sum(map(len, comments)) <= MAX_INLINE_BYTES:
            break
    while sum(map(len, comments)) > MAX_INLINE_BYTES:
        comments.pop()
    return b"".join(comments)


def write_part(type_: str, data: str) -> str:
    return f'{{"type":{json.dumps(type_)},"data":{data}}}'


def write_comment(part: str) -> bytes:
    """Return one comment. It is an event of its own without a field, which readers pass over; the
    JSON is ASCII on one line."""
    return f": om {part}\n\n".encode()
