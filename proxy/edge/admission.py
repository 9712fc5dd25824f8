"""How much is served at once: places for requests, and room for their bodies. In this order, as it gets more:

- from `BUSY` of `limits.in_flight` on, memory is neither made nor waited for (background.py asks); turns are still kept, and
  prompts still shortened by what there is: neither takes long, and a raw prompt may be one the model cannot take;
- at the limit a request is answered 503, before its body if there is no place then, else behind it;
- so is, where bodies are read before they are served, one that there is no room for, or that gives way to another.

A request that is read first has its place from the end of its body on: a thousand bodies that trickle in take none from others.
Bodies that are passed on as they come have it from their first piece on, for they hold a connection to the model server while they
trickle: those that the first piece is not all of have half of the places.

Room: large bodies hold `HELD` of the largest together, and small ones (at most limits.body / `SMALL`) what every place could be
given to, in_flight × limits.body / SMALL. The sum bounds the bytes of all bodies; by default it is 2 GiB. What has come whole keeps
its room. For anything else too little may be left: then, of those that still come, the one gives way that has not got on by a small
body's size for longest. So a small body is refused for want of a place only, unless all the room for small ones was filled behind it
while it came; and large ones that stop short keep no large one out that gets on.

Nothing is counted by client: behind another proxy all have one address, and whose credential is right only the model server knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Message, Receive, Scope

from proxy.edge.disconnect import while_there
from proxy.edge.headers import Header
from proxy.errors import Overloaded, TooLarge

BUSY = 0.8  # of the places
UPLOADS = 0.5  # of the places
HELD = 16  # times limits.body
SMALL = 64  # of them are as large as limits.body
FULL = "too many request bodies are held at once; try again shortly"


class Limits(Protocol):
    """Of settings/service.py."""

    @property
    def body(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Room:
    """For bodies of one kind. `most`: the bytes it has now."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self.held = 0  # bytes
        self.coming: dict[Held, None] = {}  # whose bodies still come, first the one that has not got on for longest

    def make(self, newcomer: Held) -> None:
        """Have others give way to this one, which is in here already. Raises Overloaded where it is the first that should."""
        while self.held > self._most():
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
        self.large = Room(lambda: HELD * limits().body)
        self.small = Room(lambda: limits().in_flight * self.small_size)

    @property
    def held(self) -> int:
        """Bytes."""
        return self.small.held + self.large.held

    @property
    def small_size(self) -> int:
        return max(1, self.limits().body // SMALL)

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

    __slots__ = ("_admission", "_begun", "_bytes", "_given_up", "_headers", "_receive", "_room", "_served")

    def __init__(self, admission: Admission, scope: Scope, receive: Receive) -> None:
        self._admission = admission
        self._headers: Sequence[Header] = scope["headers"]
        self._receive = receive
        self._room = admission.small
        self._bytes = 0
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
            self._check_announced()
        message = await (self._receive() if self._given_up is None else self._unless_given_up(self._given_up))
        if message["type"] == "http.request" and not self._served:
            self._take(len(message.get("body", b"")), whole=not message.get("more_body"))
        return message

    def give_way(self) -> None:
        """Its room is another's; `receive`, where it waits, raises Overloaded."""
        self._release()
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(None)

    def _check_announced(self) -> None:
        for name, value in self._headers:  # in lower case, as ASGI has them
            if name == b"content-length" and value.isdigit() and int(value) > (limit := self._admission.limits().body):
                raise TooLarge(f"the request body is larger than limits.body ({limit} bytes); send less or raise it")

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
        before, now, small = self._bytes, self._bytes + size, self._admission.small_size
        room = self._admission.large if now > small else self._admission.small
        if whole or room is not self._room or now // small > before // small:
            self._room.coming.pop(self, None)  # it has got on; if it still comes, it is the last to give way
        self._room.held -= before
        room.held += now
        self._room, self._bytes = room, now
        if not whole:
            self._given_up = self._given_up or asyncio.get_running_loop().create_future()
            room.coming.setdefault(self)
        room.make(self)

    def _release(self) -> None:
        self._room.held -= self._bytes
        self._room.coming.pop(self, None)
        self._bytes = 0


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
