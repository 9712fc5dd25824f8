"""Let people's work wait in line, so that nobody's work takes the memory or the processor of others.

A piece of work takes a slot of its kind (work_kinds.py) before it begins, and its time limit begins
with it. Where no slot is free it waits. A free slot goes to the tenants in turns, however many
requests of each wait. It is refused, with 503 and `Retry-After`:

- at once, if as many requests of its tenant wait as may, or of all tenants;
- at once, if `limits.memory` has no room for what the work holds;
- if it has waited for `MAX_WAIT_S`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from starlette.types import Scope

from om_proxy.common.errors import Overloaded
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.capacity.work_kinds import WORK_KINDS, Share, WorkKind
from om_proxy.wire.server.disconnect import get_disconnect_future, run_unless_disconnected
from om_proxy.wire.server.request_body import ClientDisconnected

MAX_WAIT_S = 10.0
# with a small limits.memory, no slot is charged more than this part of it
MIN_CHARGES_IN_MEMORY = 8


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
