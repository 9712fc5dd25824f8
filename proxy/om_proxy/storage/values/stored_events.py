"""Events as they are stored, as plain values, and how many are kept."""

from __future__ import annotations

from typing import NamedTuple

from om_proxy.memory.model import Key

# events are kept until there are so many newer ones, or so long
MAX_EVENTS = 10_000
# of a tenant, the newest: among them a commit that keeps quotes looks for the forgetting of what it
# quotes. The turn has read all events a moment before.
MAX_EVENTS_BEFORE_COMMIT = 1_000
MAX_EVENT_AGE_S = 7 * 86_400.0


class StoredEvent(NamedTuple):
    """An event as it is stored."""

    id: int
    # of the thread; with an empty thread, of a shared log; with an empty resource too, of a thread
    # that is forgotten
    key: Key
    at: float  # unix seconds
    type: str
    data: str  # JSON in ASCII


class EventPage(NamedTuple):
    """Some events, in order."""

    events: tuple[StoredEvent, ...]
    cursor: int  # the id after which the next page begins
    has_gap: bool  # whether events that should come before these are no longer kept
    # whether events are stored that no reader may have yet: a transaction before them still runs
    is_held_back: bool = False
    # those of them that tell of forgotten threads, with this tenant: they come again in their order
    held_back_forgettings: tuple[StoredEvent, ...] = ()


class WebhookState(NamedTuple):
    """How far a webhook has got."""

    cursor: int  # id of the last event that its receiver took
    failures: int  # in a row
    cause: str  # of the last failure: our words
    at: float  # of the last attempt, in unix seconds
