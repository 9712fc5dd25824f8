"""Record what happened to turns and memories, as values.

A fact is emitted once, where it happens. app.py attaches the subscribers: telemetry/fact_lines.py
writes each fact as a line of the log. A subscriber runs on the request's path, inside `emit`: it
must be quick, and must not raise.

A fact holds no text of a message, a header or an exception. It names a thread by its key. A
subscriber replaces the key by the thread's label before it shows the fact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from om_proxy.memory.model import Key
from om_proxy.reasons import Reason, Status


class TurnEnded(Struct, frozen=True):
    """A chat request has its answer, or has ended without one."""

    key: Key | None  # None: the request names no thread
    status: int
    memory: Status
    reason: Reason | None
    model: str | None  # as the client names it
    tokens_received: int | None
    tokens_sent: int | None
    case: str | None  # how the request stood against its memory
    end: str  # how the reply ended, or the code of the error that the client got
    overhead_ms: float
    total_ms: float


class UnreachedTurnEnded(Struct, frozen=True):
    """A request that names a thread has ended, on a route without memory."""

    key: Key | None
    status: int
    route: str
    end: str
    total_ms: float


class Bypassed(Struct, frozen=True):
    """Memory failed, and the client's original request goes upstream."""

    key: Key | None
    reason: Reason | None
    error: str  # the exception's class
    at: str  # where it was raised: errors.raise_site


class Uncommitted(Struct, frozen=True):
    """A turn could not be stored, and is lost."""

    key: Key | None
    error: str  # the exception's class, or why turns were given up
    at: str | None = None
    turns: int | None = None


class Observed(Struct, frozen=True):
    """The observer has made notes of some messages."""

    key: Key
    source_tokens: int
    tokens: int
    kept: bool  # False: the memory has changed meanwhile, and the notes are not stored
    model: str | None


class Reflected(Struct, frozen=True):
    """The reflector has condensed notes."""

    key: Key
    source_tokens: int
    tokens: int
    model: str | None


class MemoryWorkFailed(Struct, frozen=True):
    """A memory model has given nothing usable."""

    key: Key
    work: Literal["observe", "reflect"]
    error: str  # the error's code
    failures: int  # in a row, this one included
    advice: str  # what the operator can do; may be empty


class Forgotten(Struct, frozen=True):
    """A thread and everything kept of it are removed."""

    key: Key
    messages: int
    bytes: str  # what the store reports about the bytes on disk


class ForgottenMeanwhile(Struct, frozen=True):
    """Work under way ended after its thread had been forgotten, so nothing of it is stored."""

    key: Key


Fact = (
    TurnEnded
    | UnreachedTurnEnded
    | Bypassed
    | Uncommitted
    | Observed
    | Reflected
    | MemoryWorkFailed
    | Forgotten
    | ForgottenMeanwhile
)
Subscriber = Callable[[Fact], None]


class Facts:
    """Passes each fact to every subscriber, in the order of subscription, before `emit` returns."""

    __slots__ = ("_subscribers",)

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def emit(self, fact: Fact) -> None:
        for notify in self._subscribers:
            notify(fact)
