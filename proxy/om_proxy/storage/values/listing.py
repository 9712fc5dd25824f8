"""The lists that people page through: which threads and resources a store selects, in which order,
and where a page ends. Plain values; each backend finds the rows."""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple

from om_proxy.memory.ledger import EMPTY_LEDGER, ThreadLedger
from om_proxy.memory.model import Key

ThreadOrder = Literal["name", "recent"]
ThreadState = Literal["active", "failing", "parked", "observed"]

# of a resource; beyond it a list says that there are more
MAX_COUNTED_THREADS = 1_000

_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF


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
    row_id: int = 0
    has_notes: bool = False  # whether notes cover any of its messages
    pending_tokens: int = 0  # of its tail
    log_tokens: int = 0  # of the log that it reads, its own or its resource's
    model: str | None = None  # the actor's, of the newest turn
    overrides: bytes | None = None  # as in `Memory`
    ledger: ThreadLedger = EMPTY_LEDGER

    @property
    def active_at(self) -> float:
        """When its newest turn was; without one, when it was created."""
        return self.created_at if self.turn_at is None else self.turn_at


class ThreadSelection(NamedTuple):
    """Which threads a list holds, and in which order."""

    tenant: str | None  # None: the threads of all tenants (the operator's view)
    resource: str | None = None
    prefix: str | None = None  # of the name of the thread or its resource, or of the title
    state: ThreadState | None = None
    order: ThreadOrder = "name"
    searches_titles: bool = True  # by `prefix`; False for who may read no text


class ThreadPlace(NamedTuple):
    """A place in a list of threads, of either order."""

    key: Key
    active_at: float
    row_id: int


class ThreadPage(NamedTuple):
    """A page of a list. It may hold fewer threads than asked for, even none, and not be the last:
    a store looks at a bounded number of threads for each page."""

    threads: tuple[ThreadInfo, ...]
    end: ThreadPlace | None  # where the next page begins; None: this is the last page


class IdleThread(NamedTuple):
    """A thread whose newest turn was long ago."""

    key: Key
    version: int
    active_at: float  # as in `ThreadInfo`
    row_id: int
    shares_log: bool
    is_leased: bool  # it, or the log that it shares

    @property
    def place(self) -> ThreadPlace:
        return ThreadPlace(self.key, self.active_at, self.row_id)


class ResourceInfo(NamedTuple):
    """One resource in a list of resources."""

    tenant: str
    resource: str
    threads: int  # at most MAX_COUNTED_THREADS
    has_more_threads: bool
    shared_log: ThreadInfo | None  # None: its threads share no log


def is_selected(info: ThreadInfo, selection: ThreadSelection) -> bool:
    """Return whether the list holds this thread."""
    key = info.key
    return (
        selection.tenant in (None, key.tenant)
        and selection.resource in (None, key.resource)
        and (selection.state is None or has_state(info, selection.state))
        and (
            selection.prefix is None
            or key.thread.startswith(selection.prefix)
            or key.resource.startswith(selection.prefix)
            or (selection.searches_titles and (info.title or "").startswith(selection.prefix))
        )
    )


def has_state(info: ThreadInfo, state: ThreadState) -> bool:
    """Return whether the thread is in this state: `parked`: given up until it is revived;
    `failing`: failed since its last success, and tried again; `active`: neither; `observed`: notes
    cover some of its messages, in whatever state it is."""
    match state:
        case "parked":
            return info.parked
        case "failing":
            return info.failures > 0 and not info.parked
        case "active":
            return info.failures == 0 and not info.parked
        case "observed":
            return info.has_notes


def find_place(info: ThreadInfo) -> ThreadPlace:
    return ThreadPlace(info.key, info.active_at, info.row_id)


def find_prefix_end(prefix: str) -> str | None:
    """Return the first text, by code points, after all texts that begin with `prefix`; None if no
    text is."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    last = ord(kept[-1]) + 1
    if _FIRST_SURROGATE <= last <= _LAST_SURROGATE:
        last = _LAST_SURROGATE + 1  # which no stored name holds
    return kept[:-1] + chr(last)
