"""Let people's work wait in line, so that nobody's work takes the memory or the processor of others.

A piece of work takes a slot of its kind before it begins, and its time limit begins with it. The
table of kinds, with their bounds in one process, is also in docs/guides/capacity.md. Where no slot
is free the work waits. A free slot goes to the tenants in turns, however many requests of each wait.
It is refused, with 503 and `Retry-After`:

- at once, if as many requests of its tenant wait as may, or of all tenants;
- at once, if `limits.memory` has no room for what the work holds;
- if it has waited for `MAX_WAIT_S`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from starlette.types import Scope

from om_proxy.common.errors import Overloaded
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.disconnect import (
    ClientDisconnected,
    get_disconnect_future,
    run_unless_disconnected,
)

MAX_WAIT_S = 10.0
# with a small limits.memory, no slot is charged more than this part of it
MIN_CHARGES_IN_MEMORY = 8

_KIB, _MIB = 2**10, 2**20
# whose slots a request takes: a tenant's; None: the admin's
Share = str | None
# the share of all keys that nobody has verified: anybody can make up more of them than there are
# slots
UNKNOWN_KEYS = "unknown keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKind:
    """One kind of work. The last slot of `at_once` is kept for the admin."""

    name: str
    covers: str  # for the docs
    at_once: int  # slots
    of_tenant: int  # slots that one tenant may have, or the admin
    of_unknown: int | None = None  # slots of all unknown keys together; None: as of one tenant
    waiting: int  # requests of one tenant that may wait; the next one is refused
    held_bytes: int  # charged to limits.memory for each slot that is taken

    def find_max_slots(self, share: Share) -> int:
        """Return how many slots this share may have."""
        if share == UNKNOWN_KEYS and self.of_unknown is not None:
            return self.of_unknown
        return self.of_tenant

    @property
    def max_waiting(self) -> int:
        """How many requests of all tenants may wait."""
        return 8 * self.waiting


# 3 000 passages of 150 words, or the newest messages where there is no index
_SEARCH_BYTES = 32 * _MIB
LOOK_UP = WorkKind(
    name="look-up",
    covers="steps of look-ups that the actor model makes for a reply",
    at_once=4,
    of_tenant=2,
    waiting=32,
    held_bytes=_SEARCH_BYTES,
)
SEARCH = WorkKind(
    name="search",
    covers="searches of messages or notes, by the admin API or MCP",
    at_once=3,
    of_tenant=1,  # a second one makes none faster, and a neighbour's chat wait
    waiting=32,
    held_bytes=_SEARCH_BYTES,
)
PAGE = WorkKind(
    name="page",
    covers="everything else that the admin API, the dashboard or MCP reads or changes",
    at_once=16,
    of_tenant=6,  # a browser has as many connections to a host
    waiting=64,
    held_bytes=4 * _MIB,
)
PREVIEW = WorkKind(
    name="preview",
    covers="previews of a prompt",
    at_once=4,
    of_tenant=2,
    waiting=16,
    held_bytes=16 * _MIB,  # beside the body, which counts as any other
)
EXPORT = WorkKind(
    name="export",
    covers="exports, until the client has read them",
    at_once=4,
    of_tenant=1,  # a client that reads slowly holds its slot; two tenants leave one for a third
    waiting=4,
    held_bytes=8 * _MIB,  # a page of 50 messages, in three forms
)
IMPORT = WorkKind(
    name="import",
    covers="imports of exports and of conversations",
    at_once=3,
    of_tenant=1,
    waiting=4,
    held_bytes=0,  # the body counts as any other, three times its bytes
)
MEMORY_WORK = WorkKind(
    name="memory work",
    covers="observing, condensing and activating by hand, as long as the caller waits for it",
    at_once=16,
    of_tenant=4,
    waiting=4,
    held_bytes=_MIB,
)
EVENT_STREAM = WorkKind(
    name="event stream",
    covers="streams of events, until they end",
    at_once=64,
    of_tenant=16,
    of_unknown=4,
    waiting=0,
    held_bytes=256 * _KIB,  # 256 events that wait for a slow reader
)

WORK_KINDS = (LOOK_UP, SEARCH, PAGE, PREVIEW, EXPORT, IMPORT, MEMORY_WORK, EVENT_STREAM)


class Slot:
    """A slot that was taken. Use it in `with`."""

    __slots__ = ("_charge", "_queue", "_share")

    def __init__(self, queue: WorkQueue, share: Share, charge: int) -> None:
        self._queue = queue
        self._share = share
        self._charge = charge

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._queue.end(self._share, self._charge)


class WorkQueue:
    """The slots of one kind, and what waits for them."""

    def __init__(self, kind: WorkKind, memory: MemoryBudget) -> None:
        self._kind = kind
        self._memory = memory
        self._running: Counter[Share] = Counter()
        # the share whose turn is next comes first
        self._lines: dict[Share, deque[asyncio.Future[Slot]]] = {}

    @property
    def running_count(self) -> int:
        return self._running.total()

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._lines.values()))

    async def take(self, share: Share) -> Slot:
        """Take a slot, as soon as it is this share's turn. Raise Overloaded."""
        # whatever waits cannot begin now, so nothing is overtaken
        if self._can_begin(share):
            return self._begin(share)
        line = self._lines.get(share, ())
        if len(line) >= self._kind.waiting or self.waiting_count >= self._kind.max_waiting:
            raise Overloaded(f"too much work of this kind waits ({self._kind.name}); try again")
        return await self._wait(share)

    def end(self, share: Share, charge: int) -> None:
        """Give a slot back."""
        self._running[share] -= 1
        if not self._running[share]:
            del self._running[share]
        self._memory.change(-charge)
        self._begin_waiting()

    async def _wait(self, share: Share) -> Slot:
        waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(share, deque()).append(waiter)
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                return await waiter
        except BaseException as exc:
            self._leave(share, waiter)
            if isinstance(exc, TimeoutError):
                raise Overloaded(
                    f"no slot was free within {MAX_WAIT_S:g} s ({self._kind.name}); try again"
                ) from None
            raise

    def _leave(self, share: Share, waiter: asyncio.Future[Slot]) -> None:
        if waiter.done() and not waiter.cancelled():
            if waiter.exception() is None:  # its turn came while its caller left
                waiter.result().__exit__()
            return
        line = self._lines.get(share, deque())
        if waiter in line:
            line.remove(waiter)
        if not line:
            self._lines.pop(share, None)

    def _can_begin(self, share: Share) -> bool:
        kind, running = self._kind, self._running
        if running.total() >= kind.at_once or running[share] >= kind.find_max_slots(share):
            return False
        return share is None or running.total() - running[None] < kind.at_once - 1

    def _begin(self, share: Share) -> Slot:
        memory = self._memory
        charge = min(self._kind.held_bytes, memory.limit_bytes // MIN_CHARGES_IN_MEMORY)
        if charge and not memory.charge_copy(charge):
            raise Overloaded("limits.memory has no room for this work; try again shortly")
        self._running[share] += 1
        return Slot(self, share, charge)

    def _begin_waiting(self) -> None:
        """Give free slots to the shares in turns."""
        while ready := [share for share in self._lines if self._can_begin(share)]:
            share = ready[0]
            line = self._lines.pop(share)
            waiter = line.popleft()
            if line:
                self._lines[share] = line  # behind all others
            if waiter.done():  # its caller is leaving
                continue
            try:
                waiter.set_result(self._begin(share))
            except Overloaded as exc:
                waiter.set_exception(exc)


class WorkQueues:
    """The queues of one server, one for each kind of work."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._queues = {kind.name: WorkQueue(kind, memory) for kind in WORK_KINDS}

    def __getitem__(self, kind: WorkKind) -> WorkQueue:
        return self._queues[kind.name]

    async def take(self, kind: WorkKind, share: Share, scope: Scope) -> Slot:
        """Take a slot for a request. Raise Overloaded, and ClientDisconnected if its client leaves
        while it waits."""
        disconnect = get_disconnect_future(scope)
        slot = await run_unless_disconnected(disconnect, self[kind].take(share))
        if slot is None:
            raise ClientDisconnected
        return slot
