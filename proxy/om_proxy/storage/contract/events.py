"""The part of the Store protocol that keeps the events of memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.storage.values.stored_events import EventPage, WebhookState


class EventLog(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        """Store events of a thread that no commit belongs to. The version stays. A thread that is
        not stored has no events."""

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        """Return the events with an id above `after`, in order. Ids grow in the order in which
        events become visible, so none ever appears below one that was returned.

        `tenant=None`: those of all tenants. `keys`: those of these threads and shared logs; None:
        of all. `after=None`: from the oldest that is kept. `has_gap`: events after `after` are gone
        because of their number or age, or `after` is of another database; then the page begins with
        the oldest that is kept.
        """

    async def event_position(self, before: int = 0) -> int:
        """Return the id of the newest event that was ever stored; 0: there was none. `before`: the
        id after which at most so many events are. Ids may have gaps, so they do not count
        events."""

    async def prune_events(self, now: float) -> None:
        """Remove the events and the forgotten names that are older than MAX_EVENT_AGE_S by the clock
        of the caller. Each write of events removes all but the newest MAX_EVENTS, and none by its
        age."""

    async def webhook_state(self, name: str) -> WebhookState | None:
        """Return how far this webhook has got; None: it has sent nothing yet."""

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        """Record how far this webhook has got. A state with a cursor below the stored one changes
        nothing: its sender stood still, and another one has sent more. A stored cursor that is
        above the newest event is of another database, and any state takes its place."""
