"""How much is served at once: places for requests, and room for their bodies. In this order, as it gets more:

- from `BUSY` of `limits.in_flight` on, memory is neither made nor waited for (background.py asks); turns are still kept, and
  prompts still shortened by what there is: neither takes long, and a raw prompt may be one the model cannot take;
- at the limit a request is answered 503, before its body if there is no place then, else behind it;
- so is, where bodies are read before they are served, one that there is no room for, or that gives way to another.

A request that is read first has its place from the end of its body on: a thousand bodies that trickle in take none from others.
Bodies that are passed on as they come have it from their first piece on, for they hold a connection to the model server while they
trickle: those that the first piece is not all of have half of the places.

Room: a body is charged to the budget of all memory (budget.py) with `BODY_WEIGHT` times its bytes, and less once it is known what it
needs (`weigh`). A large one that says how long it is waits in order, before any of it is read, until all of it has room. What has come
whole keeps its room. While others wait, one that comes too slowly (`KEEPS`) loses what was kept for its rest, and then, if that is not
enough, one that does not get on for `STALLED` gives way: it is refused. For anything else too little may be left: then, of those of its
kind that still come, the one gives way that has not got on by a small body's size for longest. So large bodies that stop short keep no
large one out that gets on. Small ones (at most limits.body / `SMALL`) find room beside all large ones, as many bytes as every place
could be given to.

Nothing is counted by client: behind another proxy all have one address, and whose credential is right only the model server knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Message, Receive, Scope

from om_proxy.edge.budget import BODY_WEIGHT, MemoryBudget
from om_proxy.edge.disconnect import told, while_there
from om_proxy.errors import Overloaded, TooLarge

BUSY = 0.8  # of the places
UPLOADS = 0.5  # of the places
SMALL = 64  # of them are as large as limits.body
LOOK_EVERY = 0.25  # seconds, at large bodies that come while others wait
STALLED = 4  # looks at which a body has not got on
KEEPS = 128  # looks in which all of a body would come that keeps its room: half a minute
CREEPS = (
    256  # parts of a small size; one that has come by less at a look (16 KiB a second, as it is shipped) has not got on
)
FULL = "too many request bodies are held at once (limits.memory); try again shortly"


class Limits(Protocol):
    """Of settings/service.py."""

    @property
    def body(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def body_timeout(self) -> float: ...


class Room:
    """For bodies of one kind. `is_over`: whether they hold too much now."""

    def __init__(self, is_over: Callable[[Room], bool]) -> None:
        self._is_over = is_over
        self.held = 0  # bytes
        self.coming: dict[Held, None] = {}  # whose bodies still come, first the one that has not got on for longest

    def make(self, newcomer: Held) -> None:
        """Have others give way to this one, which is in here already. Raises Overloaded where it is the first that should."""
        while self._is_over(self):
            first = next(iter(self.coming), newcomer)
            if first is newcomer:
                raise Overloaded(FULL)
            first.give_way()


class Admission:
    """The counts of one server. `limits`: those that hold now."""

    def __init__(self, limits: Callable[[], Limits]) -> None:
        self.limits = limits
        self.in_flight = 0
        self.uploads = 0  # of them: whose bodies are passed on and still come
        self.budget = MemoryBudget(lambda: limits().memory)
        self.large = Room(lambda _: self.budget.held > self.budget.large_limit)
        self.small = Room(self._is_full_of_small)
        self._looks: asyncio.TimerHandle | None = None  # only while a body waits

    @property
    def held(self) -> int:
        """Bytes."""
        return self.small.held + self.large.held

    @property
    def small_size(self) -> int:
        return max(1, self.limits().body // SMALL)

    def _is_full_of_small(self, room: Room) -> bool:
        limits = self.limits()
        return room.held > limits.in_flight * max(1, limits.body // SMALL) or self.budget.held > limits.memory

    async def wait_for_room(self, size: int) -> None:
        """Charge a large body before it is read. Raises TooLarge where it can never have room, and Overloaded where it has none in time."""
        if self.budget.let_in_at_once(size):
            return
        if size > self.budget.large_limit:
            raise TooLarge("the request body needs more memory than limits.memory allows; send less or raise it")
        self._look_at_coming()
        try:
            async with asyncio.timeout(self.limits().body_timeout):
                await self.budget.let_in(size)
        except TimeoutError:
            raise Overloaded(FULL) from None

    def _look_at_coming(self) -> None:
        if self._looks is None:
            self._looks = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looks = None
        for held in list(self.large.coming):
            held.look()
        while self.budget.is_awaited and (stalled := next(filter(Held.is_stalled, self.large.coming), None)):
            stalled.give_way()
        if self.budget.is_awaited:
            self._look_at_coming()

    def busy(self) -> bool:
        """Whether what can wait should."""
        return self.in_flight >= BUSY * self.limits().in_flight

    def check(self) -> None:
        """Raises Overloaded where there is no place."""
        if self.in_flight >= (most := self.limits().in_flight):
            raise Overloaded(f"{most} requests are being served (limits.in_flight); try again shortly")


class Held:
    """`with`: a request whose body is read before it is served. `receive` is to be asked in place of its own, and raises
    TooLarge for an announced body above limits.body, before anything of it is read, and Overloaded."""

    __slots__ = (
        "_admission",
        "_begun",
        "_bytes",
        "_charged",
        "_given_up",
        "_looked",
        "_receive",
        "_room",
        "_scope",
        "_served",
        "_small",
    )

    def __init__(self, admission: Admission, scope: Scope, receive: Receive) -> None:
        self._admission = admission
        self._scope = scope
        self._receive = receive
        self._room = admission.small
        self._bytes = self._charged = 0
        self._small = 0  # bytes, from its first `receive` on: up to so many it is a small one
        self._looked = (-1, 0)  # the bytes at the last look, and how many looks have seen as many
        self._given_up: asyncio.Future[None] | None = None  # None: its body comes in one piece
        self._begun = self._served = False

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._release()
        self._admission.in_flight -= self._served

    async def receive(self) -> Message:
        if not self._begun:
            self._begun = True
            self._admission.check()
            self._small = self._admission.small_size
            if (size := self._announced()) > self._small and not await self._has_room(size):
                return {"type": "http.disconnect"}
        message = await (self._receive() if self._given_up is None else self._unless_given_up(self._given_up))
        if message["type"] == "http.request" and not self._served:
            self._take(len(message.get("body", b"")), whole=not message.get("more_body"))
        return message

    def weigh(self, weight: int) -> None:
        """Of a body that has come whole: charge this many times its bytes from now on."""
        self._charge(weight * self._bytes)

    def give_way(self) -> None:
        """Its room is another's; `receive`, where it waits, raises Overloaded."""
        self._release()
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(None)

    def look(self) -> None:
        """Others wait: what is kept for the rest of this body is theirs while it comes too slowly. A byte now and then keeps nothing."""
        size, looks = self._looked
        came = self._bytes - size
        creeps = size >= 0 and came < max(1, self._admission.small_size // CREEPS)
        self._looked = (self._bytes, looks + 1 if creeps else 0)
        if creeps or (size >= 0 and came < self._charged // (BODY_WEIGHT * KEEPS)):
            self._charge(BODY_WEIGHT * self._bytes)

    def is_stalled(self) -> bool:
        return self._looked[1] >= STALLED

    def _announced(self) -> int:
        """Bytes; 0 where it does not say."""
        for name, value in self._scope["headers"]:  # in lower case, as ASGI has them
            if name == b"content-length" and value.isdigit():
                if (size := int(value)) > (limit := self._admission.limits().body):
                    raise TooLarge(
                        f"the request body is larger than limits.body ({limit} bytes); send less or raise it"
                    )
                return size
        return 0

    async def _has_room(self, size: int) -> bool:
        """Once all of it has; False: its client left meanwhile."""
        charge = BODY_WEIGHT * size
        if await while_there(told(self._scope), self._admitted(charge)) is None:
            return False
        self._charged, self._room = charge, self._admission.large
        self._given_up = asyncio.get_running_loop().create_future()
        self._room.coming[self] = None
        return True

    async def _admitted(self, charge: int) -> bool:
        await self._admission.wait_for_room(charge)
        return True

    async def _unless_given_up(self, given_up: asyncio.Future[None]) -> Message:
        message = await while_there(given_up, self._next())
        if message is None or given_up.done():
            raise Overloaded(FULL)
        return message

    async def _next(self) -> Message:
        return await self._receive()

    def _take(self, size: int, *, whole: bool) -> None:
        """Room for a piece, and a place for what is whole."""
        if whole:
            self._admission.check()  # first: nobody gives way to one that is refused
        self._hold(size, whole=whole)
        if whole:
            self._admission.in_flight += 1
            self._served = True

    def _hold(self, size: int, *, whole: bool) -> None:
        before, now, small = self._bytes, self._bytes + size, self._small
        is_large = now > small or (self._room is self._admission.large and not whole)
        room = self._admission.large if is_large else self._admission.small
        if whole or room is not self._room or now // small > before // small:
            self._room.coming.pop(self, None)  # it has got on; if it still comes, it is the last to give way
        self._room.held -= before
        room.held += now
        self._room, self._bytes = room, now
        charge, kept = BODY_WEIGHT * now, self._charged
        self._charge(charge if whole else max(charge, kept))
        if not whole:
            self._given_up = self._given_up or asyncio.get_running_loop().create_future()
            room.coming.setdefault(self)
        if charge > kept:
            room.make(self)

    def _charge(self, charge: int) -> None:
        if change := charge - self._charged:
            self._charged = charge
            self._admission.budget.change(change)

    def _release(self) -> None:
        self._room.held -= self._bytes
        self._room.coming.pop(self, None)
        self._bytes = 0
        self._charge(0)


class Passing:
    """`with`: a request that is passed on as it comes; `receive` is to be asked in place of its own. Raises Overloaded; `receive`
    does so for the first piece of a body only, when nothing has been passed on yet."""

    __slots__ = ("_admission", "_receive", "_served", "_uploading")

    def __init__(self, admission: Admission, receive: Receive) -> None:
        self._admission = admission
        self._receive = receive
        self._served = self._uploading = False
        admission.check()

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._has_come()
        self._admission.in_flight -= self._served

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._served:
            self._take(uploading=bool(message.get("more_body")))
        elif not message.get("more_body"):
            self._has_come()
        return message

    def _take(self, *, uploading: bool) -> None:
        admission = self._admission
        admission.check()
        if uploading and admission.uploads >= UPLOADS * admission.limits().in_flight:
            raise Overloaded("too many uploads are under way; try again shortly")
        admission.in_flight += 1
        admission.uploads += uploading
        self._served, self._uploading = True, uploading

    def _has_come(self) -> None:
        self._admission.uploads -= self._uploading
        self._uploading = False
