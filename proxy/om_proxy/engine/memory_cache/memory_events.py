"""Make the events of memories, for the store and for watchers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import structlog

from om_proxy.common.errors import ConfigError, StorageError
from om_proxy.engine.policy import PolicyInForce
from om_proxy.memory.events.changes import NO_CAUSE, Cause, Subject, list_events, may_have_events
from om_proxy.memory.events.parts import Event, MarkerConfig
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.contract.records import EventLog

logger = structlog.get_logger("memory")

ADD_EVENT_TIMEOUT_S = 4.5  # as long as a commit may take


def create_cycle_id() -> str:
    """Return an id that no other cycle has."""
    return uuid4().hex


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvents:
    """The events of memories. `label` names a thread in them."""

    store: EventLog
    policies: PolicyInForce
    label: Callable[[Key], str]
    clock: Callable[[], float]
    # by thread or shared log: lists that each event stored by this process is added to
    watchers: dict[Key, list[list[Event]]] = field(default_factory=dict)

    def list_of_change(self, before: Memory, after: Memory, cause: Cause) -> tuple[Event, ...]:
        """Return the events of a change. A turn has none, and costs three comparisons."""
        if cause is NO_CAUSE and not may_have_events(before, after):
            return ()
        subject = self.describe_subject(after)
        return list_events(before, after, cause, subject, self.clock(), create_cycle_id)

    async def add(self, key: Key, event: Event) -> None:
        """Store an event that no commit belongs to. The work that it describes goes on if that
        fails."""
        try:
            async with asyncio.timeout(ADD_EVENT_TIMEOUT_S):
                await self.store.add_events(key, (event,))
            self.tell_watchers(key, (event,))
        except (StorageError, TimeoutError) as exc:
            logger.warning("events.lost", error=type(exc).__name__, type=event.part.TYPE)

    def tell_watchers(self, key: Key, events: Sequence[Event]) -> None:
        """Pass on events that are stored."""
        if events:
            for told in self.watchers.get(key, ()):
                told.extend(events)

    def find_limits(self, memory: Memory) -> Limits:
        """Return the thresholds in force; the defaults if overrides contradict each other."""
        try:
            return self.policies.current.thread_settings(memory).limits
        except ConfigError:
            return Limits()  # each request of the thread reports it

    def describe_subject(self, memory: Memory) -> Subject:
        """Return what an event says of the thread it is about."""
        limits = self.find_limits(memory)
        config = MarkerConfig(limits.observe_from_tokens, limits.reflect_from_tokens, memory.scope)
        return Subject(self.label(memory.key), memory.key.thread, config)
