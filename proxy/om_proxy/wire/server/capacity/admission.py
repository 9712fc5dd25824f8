"""Limit what is served at once: slots for requests, and memory for their bodies.

As load grows:

- from `BUSY_SHARE` of `limits.in_flight` on, no memory is made, and no request waits for memory
  (engine/background/scheduler.py asks). Turns are still stored, and prompts are still shortened by
  the stored memory: both are quick, and a model may refuse the raw prompt;
- at the limit, a request is answered 503: before its body if no slot is free then, else after it;
- where bodies are read before they are served, a request is also answered 503 if there is no room
  for its body, or if its body is evicted for another one.

Slots: a request whose body is read first takes its slot at the end of the body, so a thousand
bodies that trickle in take no slots. A request whose body is forwarded as it comes takes its slot
at the first piece, because it holds a connection to the model server. Forwarded bodies of more than
one piece may take half of the slots.

Room: a body is charged to the budget of all memory (budget.py) with `BODY_WEIGHT` times its bytes,
and with less once its need is known (`set_copies`). A large body with an announced length waits in
order, before any of it is read, until all of it has room. A complete body keeps its room.

An unfinished body can lose its room:

- while others wait, a body that comes too slowly (`MAX_CHECKS_PER_BODY`) loses the room for its
  missing part. If that is not enough, a body without progress for `MAX_STALLED_CHECKS` is evicted:
  its request is refused;
- if any other charge finds too little room, one unfinished body of the same kind is evicted: the
  one that has not grown by a small body's size for longest. So a large body that stops short keeps
  out no large body that makes progress.

Small bodies (at most limits.body / `SMALL_BODY_DIVISOR`) have room beside all large ones, one for
every slot.

Nothing is counted by client: behind another proxy all clients have one address, and only the model
server knows whose credential is valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Message, Receive, Scope

from om_proxy.common.errors import Overloaded, TooLarge
from om_proxy.wire.server.capacity.budget import BODY_WEIGHT, MemoryBudget
from om_proxy.wire.server.disconnect import (
    get_disconnect_future,
    make_too_large,
    run_unless_disconnected,
)
from om_proxy.wire.server.headers import parse_content_length

BUSY_SHARE = 0.8  # of the slots
UPLOAD_SHARE = 0.5  # of the slots
SMALL_BODY_DIVISOR = 64  # so many small bodies are as large as limits.body
CHECK_INTERVAL_S = 0.25  # between checks of unfinished large bodies, while others wait
MAX_STALLED_CHECKS = 4  # without progress
# at its present speed, a body that keeps its room is complete after so many checks: half a minute
MAX_CHECKS_PER_BODY = 128
# progress means this part of a small body's size: 16 KiB a second with the shipped limits
MIN_PROGRESS_DIVISOR = 256
NO_ROOM_MESSAGE = "too many request bodies are held at once (limits.memory); try again shortly"


class AdmissionLimits(Protocol):
    """The part of `limits` in settings/config/sections/service.py that admission reads."""

    @property
    def body(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def body_timeout(self) -> float: ...


def find_max_small_bytes(limits: AdmissionLimits) -> int:
    """Return the size of the largest small body."""
    return max(1, limits.body // SMALL_BODY_DIVISOR)


class BodyPool:
    """The bodies of one kind, large or small. `is_overfull`: whether they hold too much now."""

    def __init__(self, is_overfull: Callable[[BodyPool], bool]) -> None:
        self._is_overfull = is_overfull
        self.held_bytes = 0
        # unfinished bodies; the first is the one that made no progress for longest
        self.unfinished: dict[BufferedBodyPermit, None] = {}

    def make_room(self, newcomer: BufferedBodyPermit) -> None:
        """Evict other bodies until the newcomer, which is counted already, has room. Raises
        Overloaded if the newcomer is the first to evict."""
        while self._is_overfull(self):
            first = next(iter(self.unfinished), newcomer)
            if first is newcomer:
                raise Overloaded(NO_ROOM_MESSAGE)
            first.evict()


class Admission:
    """The counts of one server. `limits` returns the limits in force."""

    def __init__(self, limits: Callable[[], AdmissionLimits]) -> None:
        self.limits = limits
        self.in_flight = 0
        self.uploads = 0  # those of `in_flight` whose forwarded body is unfinished
        self.budget = MemoryBudget(lambda: limits().memory)
        self.large_bodies = BodyPool(lambda _: self.budget.held_bytes > self.budget.max_large_bytes)
        self.small_bodies = BodyPool(self._has_too_many_small)
        self._check_timer: asyncio.TimerHandle | None = None  # only while a body waits

    @property
    def held_bytes(self) -> int:
        return self.small_bodies.held_bytes + self.large_bodies.held_bytes

    def _has_too_many_small(self, pool: BodyPool) -> bool:
        limits = self.limits()
        return (
            pool.held_bytes > limits.in_flight * find_max_small_bytes(limits)
            or self.budget.held_bytes > limits.memory
        )

    async def wait_for_room(self, charge: int) -> None:
        """Charge a large body before it is read. Raises TooLarge if it can never have room, and
        Overloaded if it has none in time."""
        if self.budget.try_charge_large(charge):
            return
        if charge > self.budget.max_large_bytes:
            raise TooLarge(
                "the request body needs more memory than limits.memory allows;"
                " send less or raise it"
            )
        self._schedule_check()
        try:
            async with asyncio.timeout(self.limits().body_timeout):
                await self.budget.wait_and_charge_large(charge)
        except TimeoutError:
            raise Overloaded(NO_ROOM_MESSAGE) from None

    def _schedule_check(self) -> None:
        if self._check_timer is None:
            loop = asyncio.get_running_loop()
            self._check_timer = loop.call_later(CHECK_INTERVAL_S, self._check_unfinished)

    def _check_unfinished(self) -> None:
        self._check_timer = None
        for permit in list(self.large_bodies.unfinished):
            permit.check_progress()
        for permit in list(self.large_bodies.unfinished):
            if self.budget.has_waiters and permit.is_stalled():
                permit.evict()
        if self.budget.has_waiters:
            self._schedule_check()

    def is_busy(self) -> bool:
        """Return whether the server has so many requests that background work should wait."""
        return self.in_flight >= BUSY_SHARE * self.limits().in_flight

    def check_capacity(self) -> None:
        """Raise Overloaded if no slot is free."""
        limit = self.limits().in_flight
        if self.in_flight >= limit:
            raise Overloaded(
                f"{limit} requests are being served (limits.in_flight); try again shortly"
            )


class BufferedBodyPermit:
    """The slot and the room of a request whose body is read before it is served. Use it in `with`.

    Call `receive` in place of the request's own. It raises Overloaded. It raises TooLarge, before
    it reads any of the body, if the announced length is above limits.body.
    """

    __slots__ = (
        "_admission",
        "_bytes",
        "_charged",
        "_checked_bytes",
        "_evicted",
        "_has_begun",
        "_has_slot",
        "_max_small_bytes",
        "_pool",
        "_receive",
        "_scope",
        "_stalled_checks",
    )

    def __init__(self, admission: Admission, scope: Scope, receive: Receive) -> None:
        self._admission = admission
        self._scope = scope
        self._receive = receive
        self._pool = admission.small_bodies
        self._bytes = 0
        self._charged = 0
        self._max_small_bytes = 0  # read at the first `receive`
        self._checked_bytes: int | None = None  # at the last check; None before the first one
        self._stalled_checks = 0  # the last checks, one after another, that saw no progress
        self._evicted: asyncio.Future[None] | None = None  # None: the body comes in one piece
        self._has_begun = False
        self._has_slot = False

    def __enter__(self) -> BufferedBodyPermit:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._release()
        self._admission.in_flight -= self._has_slot

    async def receive(self) -> Message:
        if not self._has_begun:
            self._has_begun = True
            limits = self._admission.limits()
            self._admission.check_capacity()
            self._max_small_bytes = find_max_small_bytes(limits)
            size = self._read_announced_size(limits.body)
            is_large = size > self._max_small_bytes
            if is_large and not await self._reserve_room(size):
                return {"type": "http.disconnect"}
        if self._evicted is None:
            message = await self._receive()
        else:
            message = await self._receive_unless_evicted(self._evicted)
        if message["type"] == "http.request" and not self._has_slot:
            is_complete = not message.get("more_body")
            self._add_piece(len(message.get("body", b"")), is_complete=is_complete)
        return message

    def set_copies(self, copies: int) -> None:
        """Charge this many times the bytes of a complete body from now on."""
        self._set_charge(copies * self._bytes)

    def evict(self) -> None:
        """Release the room for another body. A `receive` that waits raises Overloaded."""
        self._release()
        if self._evicted is not None and not self._evicted.done():
            self._evicted.set_result(None)

    def check_progress(self) -> None:
        """Release the room for the missing part of this body if the body comes too slowly, because
        others wait. A byte now and then does not keep the room."""
        bytes_before = self._checked_bytes
        self._checked_bytes = self._bytes
        if bytes_before is None:
            return
        received = self._bytes - bytes_before
        min_progress = max(1, self._max_small_bytes // MIN_PROGRESS_DIVISOR)
        has_progress = received >= min_progress
        self._stalled_checks = 0 if has_progress else self._stalled_checks + 1
        is_fast_enough = received >= self._charged // (BODY_WEIGHT * MAX_CHECKS_PER_BODY)
        if not (has_progress and is_fast_enough):
            self._set_charge(BODY_WEIGHT * self._bytes)

    def is_stalled(self) -> bool:
        return self._stalled_checks >= MAX_STALLED_CHECKS

    def _read_announced_size(self, limit: int) -> int:
        """Return the announced length in bytes; 0 if none is announced."""
        size = parse_content_length(self._scope["headers"]) or 0
        if size > limit:
            raise make_too_large(limit)
        return size

    async def _reserve_room(self, size: int) -> bool:
        """Wait until all of the body has room. Return False if its client has left."""
        charge = BODY_WEIGHT * size
        waiting = self._wait_for_room(charge)
        if await run_unless_disconnected(get_disconnect_future(self._scope), waiting) is None:
            return False
        self._charged = charge
        self._pool = self._admission.large_bodies
        self._evicted = asyncio.get_running_loop().create_future()
        self._pool.unfinished[self] = None
        return True

    async def _wait_for_room(self, charge: int) -> bool:
        await self._admission.wait_for_room(charge)
        return True

    async def _receive_unless_evicted(self, evicted: asyncio.Future[None]) -> Message:
        message = await run_unless_disconnected(evicted, self._receive_next())
        if message is None or evicted.done():
            raise Overloaded(NO_ROOM_MESSAGE)
        return message

    async def _receive_next(self) -> Message:
        return await self._receive()

    def _add_piece(self, piece_bytes: int, *, is_complete: bool) -> None:
        """Take room for a piece, and a slot for a complete body."""
        if is_complete:
            self._admission.check_capacity()  # first: a refused body must not evict another one
        self._charge_piece(piece_bytes, is_complete=is_complete)
        if is_complete:
            self._admission.in_flight += 1
            self._has_slot = True

    def _charge_piece(self, piece_bytes: int, *, is_complete: bool) -> None:
        admission = self._admission
        max_small = self._max_small_bytes
        size_before = self._bytes
        size = size_before + piece_bytes
        is_counted_large = self._pool is admission.large_bodies and not is_complete
        is_large = size > max_small or is_counted_large
        pool = admission.large_bodies if is_large else admission.small_bodies
        has_grown = size // max_small > size_before // max_small
        if is_complete or has_grown or pool is not self._pool:
            # progress: if the body is unfinished, it is now the last to be evicted
            self._pool.unfinished.pop(self, None)
        self._pool.held_bytes -= size_before
        pool.held_bytes += size
        self._pool = pool
        self._bytes = size
        charge_before = self._charged
        charge = BODY_WEIGHT * size
        self._set_charge(charge if is_complete else max(charge, charge_before))
        if not is_complete:
            self._evicted = self._evicted or asyncio.get_running_loop().create_future()
            pool.unfinished.setdefault(self)
        if charge > charge_before:
            pool.make_room(self)

    def _set_charge(self, charge: int) -> None:
        if change := charge - self._charged:
            self._charged = charge
            self._admission.budget.change(change)

    def _release(self) -> None:
        self._pool.held_bytes -= self._bytes
        self._pool.unfinished.pop(self, None)
        self._bytes = 0
        self._set_charge(0)


class StreamedBodyPermit:
    """The slot of a request whose body is forwarded as it comes. Use it in `with`.

    Call `receive` in place of the request's own. It raises Overloaded for the first piece only,
    when nothing has been forwarded yet.
    """

    __slots__ = ("_admission", "_has_slot", "_is_uploading", "_receive")

    def __init__(self, admission: Admission, receive: Receive) -> None:
        self._admission = admission
        self._receive = receive
        self._has_slot = False
        self._is_uploading = False
        admission.check_capacity()

    def __enter__(self) -> StreamedBodyPermit:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end_upload()
        self._admission.in_flight -= self._has_slot

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._has_slot:
            self._take_slot(is_uploading=bool(message.get("more_body")))
        elif not message.get("more_body"):
            self._end_upload()
        return message

    def _take_slot(self, *, is_uploading: bool) -> None:
        admission = self._admission
        admission.check_capacity()
        if is_uploading and admission.uploads >= UPLOAD_SHARE * admission.limits().in_flight:
            raise Overloaded("too many uploads are under way; try again shortly")
        admission.in_flight += 1
        admission.uploads += is_uploading
        self._has_slot = True
        self._is_uploading = is_uploading

    def _end_upload(self) -> None:
        self._admission.uploads -= self._is_uploading
        self._is_uploading = False
