"""The Store protocol: its docstrings are the contract, tests/storage/contract.py holds every backend to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from om_proxy.memory.gathering import Waiting
from om_proxy.memory.model import Key, Mark, Memory, Message, Observation


class Outline(NamedTuple):
    """Every message of a thread without its text: the slow path of reconciling."""

    live: tuple[Mark, ...]  # the active branch, by seq
    dead: tuple[
        tuple[Mark, int], ...
    ]  # superseded or interrupted ones, by seq, each with the seq of its parent (0: none)


class Change(NamedTuple):
    """Two states of one thread, as `Store.commit` takes them."""

    before: Memory
    after: Memory
    aside: Sequence[Message] = ()


class Stir(NamedTuple):
    """Makes the hub of a resource due at `now` if its threads hold `tokens` that are observed by nobody: where it is due later, if
    those hold as many that may be asked about now."""

    now: float
    tokens: int


class ThreadInfo(NamedTuple):
    """A line of a list of threads."""

    key: Key
    created_at: float
    turn_at: float | None
    messages: int  # live ones
    generation: int
    title: str | None
    failures: int
    parked: bool
    cause: str = ""  # of the last failure, as in `Trouble`


Bytes = Literal["gone", "pending"]  # of what was forgotten: overwritten, or waiting for a reader that still holds them


class Forgotten(NamedTuple):
    """What went with a thread. Nothing: there was no memory of it."""

    threads: int = 0
    messages: int = 0  # live or not
    observations: int = 0  # notes: in its logs, buffered, and entries of a shared log that said anything of it
    generations: int = 0  # of logs, its own and the shared one's, that held any of them
    reflections: int = 0  # made and not yet swapped in
    database: Bytes = "gone"  # its bytes in the database itself
    log: Bytes = "gone"  # and in the log the database writes ahead


class Moved(NamedTuple):
    """What went over to another tenant."""

    threads: int = 0
    messages: int = 0
    in_the_way: int = 0  # threads and shared logs that both tenants have: nothing has moved then


class Store(Protocol):
    """Durable memories. Every method may raise `StorageError`; none blocks the event loop.

    Everything is keyed by the whole Key, tenant first: no method reaches another tenant's rows.
    """

    async def load(self, key: Key) -> Memory:
        """The memory as last committed; `Memory(key=key)` with version 0 for an unknown thread. Bounded: `recent` holds at
        most RECENT_MARKS, the messages before them are not read."""

    async def version(self, key: Key) -> int:
        """The committed version, 0 for an unknown thread: what a cached memory is checked against. One point read."""

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        """Write the difference between two states of one thread, in one durable transaction, and return `after` with its new version.

        Raises `Conflict`, having written nothing, unless the stored version still is `before.version`. Durable means: once
        this returns, neither a killed process nor a power cut loses it. `born` is the row's in what is returned, whatever `after` says.

        The difference: messages of `after.tail` unknown to the store are inserted; changed items are replaced; live messages
        with `seq > after.coverage` that are missing from `after.tail` are superseded (kept, no longer live); superseded ones
        that appear in `after.tail` are live again. `aside` is inserted as not live (an interrupted reply). A message's parent is the live
        message before it. Entries new to the log are added to `after.generation`; if that differs from `before.generation`
        the old generation stays readable and the new one is `after.log`. Chunks that are in neither `after.chunks` nor
        `after.log` are deleted. Writes grow with the difference, never with the thread.
        """

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        """Like `commit`, for a thread that shares its resource's log and, where that changes too, the hub that keeps it: both are
        written in one transaction, or neither; `Conflict` if the version of either has moved on. A hub that does not differ is not
        written, but must stand all the same."""

    async def waiting(self, hub: Key) -> tuple[Waiting, ...]:
        """The threads that share this hub's log and have anything in their tails, the longest left alone first."""

    async def elsewhere(self, key: Key, threads: int, messages: int) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        """Of the `threads` other threads of the resource that share its log and spoke last, the latest first, the newest `messages`
        of the tail by seq; those without a tail are left out."""

    async def outline(self, key: Key) -> Outline:
        """All marks of the thread. Grows with it; called only where the bounded memory does not suffice."""

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        """Live messages with `after < seq <= through`, by seq."""

    async def by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        """These messages, live or not, by seq; unknown ones are left out."""

    async def generations(self, key: Key, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        """Older generations `(number, log)` with `number < before`, newest first, as far as retention kept them."""

    async def due(self, now: float, limit: int) -> tuple[Key, ...]:
        """Threads with `due <= now` that are not leased, the longest due first, tenants taking turns."""

    async def look_again(self, key: Key, at: float | None) -> None:
        """Say when this thread is due, whatever was said before; None: not until something is said. No new version."""

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        """Say that of these threads the reply at this seq went out to its last byte, all in one transaction. It only grows; unknown
        threads are left out. No new version."""

    async def delivered(self, key: Key) -> int | None:
        """seq of the newest reply that is known to have gone out whole; None where nobody has said so of any."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        """Take or prolong the right to work on a thread; False while another holder has it. It only saves money: correctness
        is in `commit`. Expires by itself."""

    async def release(self, key: Key, holder: str) -> None:
        """Give a lease back; nothing happens if it is not ours."""

    async def threads(
        self, tenant: str | None, resource: str | None = None, cursor: Key | None = None, limit: int = 100
    ) -> tuple[ThreadInfo, ...]:
        """Threads in key order, from after `cursor`, hubs left out. `tenant=None`: of all tenants (the operator's view)."""

    async def forget(self, key: Key) -> Forgotten:
        """Remove every row of the thread; what went. Work in flight on it conflicts and cannot bring it back: a thread made anew under
        the same key has another `born`.

        What says anything of it goes too, in the same transaction: its part of the log it shared, as `forgetting.without` has it, in
        every generation; what other threads' prompts tell of it (`Memory.others`). Of threads of which the log covers less by that,
        the messages are in the tail again. With the last thread that shares a log its hub goes. A thread's name in the log is
        `identity.label` of it under the store's own secret.

        The bytes of what went leave the storage too. Where a reader still holds them (a backup, a shell), the rows are gone at once and
        the bytes are `pending`: the store tries again by itself until nothing of them is left, also after a restart.
        """

    async def wait_erased(self) -> None:
        """Return once no bytes of what was forgotten wait for a reader any more."""

    async def move_tenant(self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]) -> Moved:
        """Make everything of the tenant `old` that of `new`, as if it had been from the start: with fingerprints by `fingerprint` of a
        message's JSON (None keeps the one there is), chains, recorded attempts, and labels under the store's own secret.

        Nothing moves where both have a thread or a shared log of the same name. Else one resource after the other, each as a whole or
        not at all, so that a move which was broken off can be gone on with. Work in flight on what moves finds its thread gone.
        """

    async def secret(self, proposed: bytes | None = None) -> bytes:
        """32 random bytes, made once (of `proposed`, where that is given) and kept with the data: what tenants and fingerprints are
        keyed with. Every caller of one store gets the same ones, also when two processes ask first at the same time."""

    async def park(self, key: Key, parked: bool) -> bool:
        """Mark a thread as given up, or revive it with a clean slate (failures 0, due now); False for an unknown thread."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""

    async def close(self) -> None: ...
