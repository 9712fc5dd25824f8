"""The Store protocol. Its docstrings are the contract; tests/storage/contract.py holds every
backend to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.model import Generation, Key, Mark, Memory, Message

Backlog = tuple[ThreadBacklog, ...]  # the threads of a resource whose tails are not empty


class Outline(NamedTuple):
    """All messages of a thread without their texts, for the slow path of reconciling."""

    live: tuple[Mark, ...]  # the active branch, by seq
    # superseded and interrupted messages, by seq, each with the seq of its parent (0: none)
    superseded: tuple[tuple[Mark, int], ...]


class Change(NamedTuple):
    """Two states of one thread: the arguments of `Store.commit`."""

    before: Memory
    after: Memory
    interrupted: Sequence[Message] = ()


class ResourceWakeup(NamedTuple):
    """The condition that makes the shared log of a resource due at `now`: its threads hold at least
    `tokens` unobserved tokens. If the log is due later already, only threads that are not in
    back-off count."""

    now: float
    tokens: int


class ThreadInfo(NamedTuple):
    """One thread in a list of threads."""

    key: Key
    created_at: float
    turn_at: float | None
    messages: int  # live ones
    generation: int
    title: str | None
    failures: int
    parked: bool
    cause: str = ""  # of the last failure, as in `Failures`


# forgotten bytes are overwritten, or kept until a reader ends
ErasureState = Literal["gone", "pending"]


class ForgetResult(NamedTuple):
    """The number of rows that were removed with a thread; all 0 if there was no memory of it."""

    threads: int = 0
    messages: int = 0  # live or not
    # notes in its logs, buffered notes, and entries of a shared log that mention it
    observations: int = 0
    generations: int = 0  # of its own log and the shared one, that held any of these
    reflections: int = 0  # made and not yet swapped in
    database: ErasureState = "gone"  # the bytes in the database itself
    log: ErasureState = "gone"  # the bytes in the write-ahead log


class MoveResult(NamedTuple):
    """The number of rows that moved to another tenant."""

    threads: int = 0
    messages: int = 0
    name_conflicts: int = 0  # threads and shared logs that both tenants have; then nothing moved


class Store(Protocol):
    """The durable memories. Every method may raise `StorageError`; none blocks the event loop.

    Every row is keyed by the whole Key, tenant first: no method reaches another tenant's rows.
    """

    async def load(self, key: Key) -> Memory:
        """Return the memory as last committed; `Memory(key=key)` with version 0 for an unknown
        thread. The memory is bounded: `recent` holds at most RECENT_MARKS, and earlier messages are
        not read."""

    async def version(self, key: Key) -> int:
        """Return the committed version, 0 for an unknown thread. This is one point read, to check a
        cached memory."""

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        """Write the difference between two states of one thread, in one durable transaction, and
        return `after` with its new version.

        Raise `Conflict`, and write nothing, unless the stored version still is `before.version`.
        Durable means: after this returns, neither a killed process nor a power cut loses the
        commit. The returned `row_id` is that of the row, whatever `after` says.

        The difference: messages of `after.tail` unknown to the store are inserted; changed items
        are replaced. Live messages with `seq > after.coverage` that are missing from `after.tail`
        are superseded: kept, no longer live. Superseded messages that appear in `after.tail` are
        live again. `interrupted` is inserted as not live (an interrupted reply). A message's parent
        is the live message before it. Entries new to the log are added to `after.log.generation`.
        If that differs from `before.log.generation`, the old generation stays readable and the new
        one is `after.log`. Chunks that are in neither `after.chunks` nor `after.log` are deleted.
        Writes grow with the difference, never with the thread.
        """

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        """Commit a thread that shares its resource's log and, if that changes too, the shared log:
        both in one transaction, or neither. Raise `Conflict` if the version of either has changed.
        A shared log that does not differ is not written, but its version is checked."""

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        """Return the threads that share this log and whose tails are not empty, the longest idle
        first."""

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        """Return the newest `messages` of the tail, by seq, of up to `threads` other threads that
        share the resource's log: those with the latest turns, the latest first. Threads without a
        tail are left out."""

    async def outline(self, key: Key) -> Outline:
        """Return all marks of the thread. The outline grows with the thread, so it is read only if
        the bounded memory does not suffice."""

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        """Return the live messages with `after < seq <= through`, by seq."""

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        """Return these messages, live or not, by seq. Unknown seqs are left out."""

    async def generations(self, key: Key, before: int) -> tuple[Generation, ...]:
        """Return the generations `(number, log)` with `number < before` that retention kept, newest
        first."""

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        """Return threads with `due <= now` that are not leased, the longest due first, tenants
        taking turns. For the doctor and tests; `claim` takes up work."""

    async def claim(
        self, now: float, limit: int, holder: str, seconds: float, *, skip: Collection[Key] = ()
    ) -> tuple[Key, ...]:
        """Lease to `holder`, for `seconds`, the first `limit` threads of `due_threads` that are not
        in `skip`. Return them in that order.

        This is one step: two claims at once never get the same thread, and none gets a leased
        thread, not even one leased to `holder`. If nothing is due, nothing is written. The holder
        prolongs such a lease with `lease` and gives it back with `release`.
        """

    async def set_due(self, key: Key, at: float | None) -> None:
        """Set when this thread is due; None: not until it is set again. The version stays."""

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        """Record, in one transaction, the seq of each thread's newest reply that was sent to its
        last byte. The recorded seq only grows; unknown threads are left out. The version stays."""

    async def delivered_reply(self, key: Key) -> int | None:
        """Return the seq of the newest reply that `mark_delivered` recorded; None if there is
        none."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        """Take or prolong the right to work on a thread. Return False while another holder has it.
        The lease expires by itself. It only saves money: `commit` keeps the memory correct."""

    async def release(self, key: Key, holder: str) -> None:
        """Give a lease back; do nothing if another holder has it."""

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        """Return threads in key order, beginning after `cursor`, without shared logs.
        `tenant=None`: the threads of all tenants (the operator's view)."""

    async def forget(self, key: Key) -> ForgetResult:
        """Remove every row of the thread. Return what was removed. Work in flight on the thread
        conflicts and cannot bring it back: a new thread under the same key has another `row_id`.

        The same transaction removes what mentions the thread: its part of the log it shared, in
        every generation (`forgetting.remove_thread`), and what other threads' prompts tell of it
        (`Memory.other_threads_text`). If the log then covers less of another thread, the messages
        that are no longer covered are in that thread's tail again. The shared log is removed with
        the last thread that shares it. A thread's name in the log is its `label_thread` under the
        store's own secret.

        The bytes leave the storage too. If a reader still holds them (a backup, a shell), the rows
        are gone at once and the bytes are `pending`: the store tries again by itself until none are
        left, also after a restart.
        """

    async def wait_erased(self) -> None:
        """Return once no forgotten bytes are `pending`."""

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        """Move all rows of the tenant `old` to the tenant `new`, as if they had been there from the
        start: with new fingerprints, chains, recorded attempts, and labels under the store's own
        secret. `fingerprint` takes a message's JSON; if it returns None, the old fingerprint stays.

        If both tenants have a thread or a shared log of the same name, nothing moves. Otherwise one
        resource moves after the other, each as a whole or not at all, so that a second call
        finishes a move that was interrupted. Work in flight on a moved thread finds it gone.
        """

    async def secret(self, proposed: bytes | None = None) -> bytes:
        """Return the 32 random bytes that tenants and fingerprints are keyed with. The bytes are
        made once (`proposed`, if given) and kept with the data. Every caller gets the same bytes,
        also when two processes ask first at the same time."""

    async def park(self, key: Key, parked: bool) -> bool:
        """Mark a thread as given up, or revive it with 0 failures and due now. Return False for an
        unknown thread."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""

    async def close(self) -> None: ...
