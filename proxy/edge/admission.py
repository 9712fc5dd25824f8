"""How much is served at once: places for requests, and bytes of bodies held for them. In this order, as it gets more:

- from `BUSY` of `limits.in_flight` on, memory is neither made nor waited for (background.py asks); turns are still kept, and
  prompts still shortened by what there is: neither takes long, and a raw prompt may be one the model cannot take;
- at the limit a request is answered 503, before its body if there is no place then, else behind it;
- so is one whose body would make the bodies held more than `HELD` of the largest.

A request has its place from the end of its body on: a thousand bodies that trickle in take none from others. Bodies that are
passed on as they come do hold a connection to the model server while they trickle; they have half of the places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Message, Receive, Scope

from proxy.edge.headers import Header, content_length, header
from proxy.errors import Overloaded, TooLarge

BUSY = 0.8  # of the places
UPLOADS = 0.5  # of the places
HELD = 16  # times limits.body


class Limits(Protocol):
    """Of settings/service.py."""

    @property
    def body(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Admission:
    """The counts of one server. `limits`: those that hold now."""

    def __init__(self, limits: Callable[[], Limits]) -> None:
        self.limits = limits
        self.in_flight = 0
        self.uploads = 0  # of them: whose bodies are passed on and still come
        self.held = 0  # bytes

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

    __slots__ = ("_admission", "_begun", "_bytes", "_headers", "_receive", "_served")

    def __init__(self, admission: Admission, scope: Scope, receive: Receive) -> None:
        self._admission = admission
        self._headers: Sequence[Header] = scope["headers"]
        self._receive = receive
        self._bytes = 0
        self._begun = self._served = False

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._admission.held -= self._bytes
        self._admission.in_flight -= self._served

    async def receive(self) -> Message:
        if not self._begun:
            self._begun = True
            self._admission.check()
            self._check_announced()
        message = await self._receive()
        if message["type"] == "http.request" and not self._served:
            self._hold(len(message.get("body", b"")))
            if not message.get("more_body"):
                self._admission.check()
                self._admission.in_flight += 1
                self._served = True
        return message

    def _check_announced(self) -> None:
        for name, value in self._headers:  # in lower case, as ASGI has them
            if name == b"content-length" and value.isdigit() and int(value) > (limit := self._admission.limits().body):
                raise TooLarge(f"the request body is larger than limits.body ({limit} bytes); send less or raise it")

    def _hold(self, size: int) -> None:
        admission = self._admission
        self._bytes += size
        admission.held += size
        if admission.held > HELD * admission.limits().body:
            raise Overloaded("too many large requests are being served; try again shortly")


class Passing:
    """`with`: a request that is passed on as it comes; `receive` is to be asked in place of its own. Raises Overloaded."""

    __slots__ = ("_admission", "_receive", "_uploading")

    def __init__(self, admission: Admission, scope: Scope, receive: Receive) -> None:
        headers = scope["headers"]
        self._admission = admission
        self._receive = receive
        self._uploading = bool(content_length(headers)) or header(headers, b"transfer-encoding") is not None
        admission.check()
        if self._uploading and admission.uploads >= UPLOADS * admission.limits().in_flight:
            raise Overloaded("too many uploads are under way; try again shortly")

    def __enter__(self) -> Passing:
        self._admission.in_flight += 1
        self._admission.uploads += self._uploading
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._has_come()
        self._admission.in_flight -= 1

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            self._has_come()
        return message

    def _has_come(self) -> None:
        self._admission.uploads -= self._uploading
        self._uploading = False
