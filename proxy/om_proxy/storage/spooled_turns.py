"""The turns that wait for the store, by resource, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooled_resource import SpooledResource, Step

log = structlog.get_logger("storage")


class SpooledTurns:
    def __init__(self, budget: SpoolBudget) -> None:
        self._budget = budget
        self._last_version = 0
        self.resources: dict[Key, SpooledResource] = {}  # by shared log, the oldest first
        self.label: Callable[[Key], str | None] = lambda _: None  # names a thread in a log

    @property
    def turns(self) -> int:
        return sum(len(resource.steps) for resource in self.resources.values())

    def find_resource(self, key: Key) -> SpooledResource | None:
        return self.resources.get(resource_key(key)) if self.resources else None

    def find_thread(self, key: Key) -> SpooledResource | None:
        """Return the resource of this thread, if the thread itself has turns that wait."""
        resource = self.find_resource(key)
        return resource if resource and key in resource.current else None

    def add(self, step: Step) -> tuple[Memory, Memory | None]:
        """Return what the store would have returned, with versions of the spool."""
        shared_log = resource_key(step.thread.after.key)
        resource = self.resources.get(shared_log) or SpooledResource()
        self._last_version -= 1
        thread, log_after, size = resource.add(step, self._last_version)
        self.resources[shared_log] = resource
        self._budget.charge(shared_log, size, partial(self.drop, shared_log))
        return thread, log_after

    def forget(self, key: Key) -> None:
        """Take this thread's turns out."""
        if resource := self.find_resource(key):
            resource.forget(key)
            if not resource.threads:
                self.release(resource_key(key))

    def drop(self, shared_log: Key, cause: str = "SpoolFull") -> None:
        """Give up the turns of this resource: only the log still tells of them."""
        resource = self.resources[shared_log]
        for key in resource.threads:
            turns = sum(step.thread.after.key == key for step in resource.steps)
            log.error("memory.uncommitted", error=cause, thread=self.label(key), turns=turns)
        self.release(shared_log)

    def drop_all(self, cause: str) -> None:
        for shared_log in list(self.resources):
            self.drop(shared_log, cause)

    def release(self, shared_log: Key) -> None:
        """Nothing of this resource waits any more."""
        if resource := self.resources.pop(shared_log, None):
            resource.released.set()
        self._budget.release(shared_log)

    def release_waiters(self) -> None:
        """Let every reply go on whose turn is not stored yet."""
        for resource in self.resources.values():
            resource.released.set()

    def mark_other_database(self) -> None:
        """The store behind is another database: what was stored before the turns that wait may be
        missing there."""
        for resource in self.resources.values():
            resource.must_append = resource.is_other_database = True
