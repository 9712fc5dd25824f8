"""Collect what one script is to do: all of it, or nothing if a condition no longer holds. A change
that was computed from the state of a resource is made again as long as others write to it
meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from om_proxy.common.errors import StorageError, UnopenedText
from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.model import Key
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.encryption.row_cipher import PLAIN, RowCipher, WrappedKey
from om_proxy.storage.redis.rows import (
    ThreadRow,
    encode,
    encode_new_event,
    encode_wrapped_key,
    has_look_ups,
)
from om_proxy.storage.redis.session import Argument, Session, pair_fields
from om_proxy.storage.shared.difference import NewQuotes
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.values.changes import WrittenRow
from om_proxy.storage.values.records import MAX_EVENTS

# of one command: Lua holds no more than some thousands of values on its stack
MAX_FIELDS = 500


T = TypeVar("T")
# of a resource that others write to all the time
MAX_ATTEMPTS = 50
MAX_UNOPENED_ATTEMPTS = 10
FIRST_PAUSE_S, MAX_PAUSE_S = 0.001, 0.05


class Applied(NamedTuple):
    """The outcome of changes."""

    failed: int | None  # the first condition that did not hold, counted from 0; None: all held
    rows: tuple[WrittenRow, ...] = ()  # in the order in which they were written


class Changes:
    """Conditions and steps of one script. The steps happen in the order in which they are added."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.names = session.keys
        self._conditions: list[Argument] = []
        self._condition_count = 0
        self._steps: list[Argument] = []

    # ── conditions ──

    def expect_version(self, key: Key, version: int) -> None:
        self._expect("version", *key, version)

    def expect_revision(self, tenant: str, resource: str, revision: int) -> None:
        """Expect that nothing of the resource was written since. 0: nothing of it is stored."""
        self._expect("revision", tenant, resource, revision)

    def expect_key(self, key: Key, key_id: bytes | None) -> None:
        """Expect that the memory has this data key. A server that lost its newest commits may give
        a version out again, to a state with another key."""
        self._expect("key", *key, key_id or b"")

    def expect_unforgotten(self, tenant: str, quotes: NewQuotes) -> None:
        """Expect that no thread that is quoted was forgotten since."""
        labels, since = quotes
        self._expect("unforgotten", tenant, Forgotten.TYPE, since, len(labels), *labels, 0)

    def expect_name_kept(self, turn: FirstTurn) -> None:
        """Expect that no name of the thread was forgotten after the turn began."""
        self._expect("names", turn.began_at, len(turn.digests), *turn.digests, "true")

    def _expect(self, *condition: Argument) -> None:
        self._conditions += condition
        self._condition_count += 1

    # ── steps ──

    def add_keys(self, keys: Iterable[WrappedKey]) -> None:
        """Store new data keys, before the rows that name them."""
        for key in keys:
            self._steps += ("key", key.id, encode_wrapped_key(key))

    def call(self, *command: Argument) -> None:
        self._steps += ("call", len(command), *command)

    def call_in_parts(self, head: Sequence[Argument], arguments: Sequence[Argument]) -> None:
        """Add a command that takes many arguments, some at a time."""
        for first in range(0, len(arguments), MAX_FIELDS):
            self.call(*head, *arguments[first : first + MAX_FIELDS])

    def write_field(self, name: str, field: Argument, value: str | bytes | None) -> None:
        """Set a field of a hash, or remove it if there is no value."""
        self.call(*(("HSET", name, field, value) if value else ("HDEL", name, field)))

    def set_fields(self, name: str, values: Mapping[int, str | bytes]) -> None:
        self.call_in_parts(("HSET", name), [part for pair in values.items() for part in pair])

    def set_marks(self, key: Key, marks: Mapping[int, bytes]) -> None:
        """Write marks of messages. A thread with look-ups is listed, so that forgetting finds it."""
        names = self.names
        self.set_fields(names.of_thread("marks", key), marks)
        if any(map(has_look_ups, marks.values())):
            self.call("SADD", names.of_resource("quoting", key.tenant, key.resource), key.thread)

    def write_row(
        self, key: Key, row: ThreadRow, due: float | None, *, is_rewound: bool = False
    ) -> None:
        """Write a thread's own row. `is_rewound`: what is stored of it besides has not only grown."""
        waiting = f"{row.fresh} {int(row.parked)} {row.retry_at!r}"
        self._steps += (
            "row",
            *key,
            encode(row),
            row.coverage,
            row.generation,
            "" if due is None else due,
            int(row.needs_caller),
            int(row.shared),
            "" if row.turn_at is None else float(row.turn_at),
            waiting if row.shared and row.pending > 0 else "",
            int(bool(row.others)),
            int(is_rewound),
            row.key_ids,
        )

    def rewind(self, key: Key) -> None:
        """Have the thread read in full by those who hold an older state of it."""
        self._steps += ("rewind", *key)

    def raise_version(self, key: Key) -> None:
        """Give a thread a new version, and have it read in full."""
        self._steps += ("raise_version", *key)

    def supersede_missing(self, key: Key, coverage: int, kept_seqs: Sequence[int]) -> None:
        self._steps += ("supersede", *key, coverage, len(kept_seqs), *kept_seqs)

    def set_due(self, key: Key, at: float) -> None:
        self._steps += ("due", *key, at)

    def replace_field(self, name: str, field: Argument, value: str | bytes) -> None:
        """Set a field of a hash if it is still there."""
        self._steps += ("replace", name, field, value)

    def add_events(self, key: Key, events: Iterable[Event], cipher: RowCipher = PLAIN) -> None:
        """Store events of a thread; with an empty resource, of one that is forgotten."""
        encoded = [encode_new_event(key, event, cipher) for event in events][-MAX_EVENTS:]
        if encoded:
            self._steps += ("events", *key, len(encoded), *encoded)

    def drop_event(self, event_id: int) -> None:
        self._steps += ("drop_event", event_id)

    def wake_resource(self, key: Key, now: float, tokens: int) -> None:
        self._steps += ("wake", key.tenant, key.resource, now, tokens)

    def delete_thread(self, key: Key) -> None:
        self._steps += ("delete", *key)

    def drop_leases(self, tenant: str, resource: str | None) -> None:
        self._steps += ("drop_leases", tenant, resource or "")

    def ask_for_erasure(self) -> None:
        """Ask for the server's log to be rewritten."""
        self.call("HINCRBY", self.names.of_store("erasure"), "asked", 1)

    def move_thread(self, key: Key, tenant: str) -> None:
        self._steps += ("move", *key, tenant)

    def fold_ledger(self, tenant: str, resource: str) -> None:
        self._steps += ("fold", tenant, resource)

    def move_ledger(self, tenant: str, resource: str, new_tenant: str) -> None:
        self._steps += ("move_ledger", tenant, resource, new_tenant, resource)

    async def apply(self) -> Applied:
        failed, *values = await self.session.run(
            "apply", MAX_EVENTS, self._condition_count, *self._conditions, *self._steps
        )
        if failed:
            return Applied(failed - 1)
        numbers = [int(value) for value in values]
        return Applied(None, tuple(map(WrittenRow, numbers[::2], numbers[1::2])))


class ResourceState(NamedTuple):
    """The stored state of a resource."""

    revision: int  # 0: nothing
    threads: dict[str, bool]  # whether each shares the log; the shared log itself stands under ''
    told: frozenset[str]  # the threads whose prompts tell of others
    quoting: frozenset[str]  # the threads with look-ups


async def read_resource(session: Session, tenant: str, resource: str) -> ResourceState:
    """Read the revision first: what is written after it makes the changes fail."""
    names = session.keys
    revision, threads, told, quoting = await session.call_many(
        [
            ("GET", names.of_resource("revision", tenant, resource)),
            ("HGETALL", names.of_resource("threads", tenant, resource)),
            ("SMEMBERS", names.of_resource("told", tenant, resource)),
            ("SMEMBERS", names.of_resource("quoting", tenant, resource)),
        ]
    )
    pairs = pair_fields(threads)
    return ResourceState(
        int(revision or 0),
        {decode_text(name): is_shared == b"1" for name, is_shared in pairs},
        frozenset(map(decode_text, told)),
        frozenset(map(decode_text, quoting)),
    )


async def try_until_applied(attempt: Callable[[], Awaitable[T | None]]) -> T:
    """Try again as long as an attempt returns None: others wrote in between. A text that does not
    open may be of a memory that has got another key meanwhile."""
    pause_s = FIRST_PAUSE_S
    unopened_left = MAX_UNOPENED_ATTEMPTS
    for _ in range(MAX_ATTEMPTS):
        try:
            result = await attempt()
        except UnopenedText:
            unopened_left -= 1
            if not unopened_left:
                raise
            result = None
        if result is not None:
            return result
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    raise StorageError("the resource is written to all the time; try again")
