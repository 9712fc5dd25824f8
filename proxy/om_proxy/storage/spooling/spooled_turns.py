"""Turns that could not be written because the store is unavailable. They are kept in memory, by
resource and within a byte budget, and written later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple

import structlog

from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.spooling.spooled_resource import SpooledResource, SpooledTurn

logger = structlog.get_logger("storage")


class SpooledTurns:
    """The waiting turns of all resources. Only this class adds and removes resources; the flusher
    writes the turns of one resource and removes them from it."""

    def __init__(self, budget: SpoolBudget) -> None:
        self._budget = budget
        # spooled versions are negative and count down: no stored memory has one
        self._last_version = 0
        # by the key of the shared log; oldest first, but for those that could not be written
        self.resources: dict[Key, SpooledResource] = {}
        # the name of a thread in the service's log lines; set again with each new secret
        self.name_for_log: Callable[[Key], str | None] = lambda _: None

    @property
    def turn_count(self) -> int:
        return sum(len(resource.turns) for resource in self.resources.values())

    def find_resource(self, key: Key) -> SpooledResource | None:
        # usually nothing waits: then no key is built
        return self.resources.get(resource_key(key)) if self.resources else None

    def find_thread(self, key: Key) -> SpooledResource | None:
        """Return the resource of this thread if this very thread has waiting turns."""
        resource = self.find_resource(key)
        return resource if resource and key in resource.current else None

    def add(self, turn: SpooledTurn) -> tuple[Memory, Memory | None]:
        """Add a turn. Return the thread and its shared log as the store would return them, but with
        negative versions."""
        shared_log_key = resource_key(turn.thread.after.key)
        resource = self.resources.get(shared_log_key) or SpooledResource()
        self._last_version -= 1
        thread, shared_log, size_bytes = resource.add(turn, self._last_version)
        self.resources[shared_log_key] = resource
        # this may drop the resource at once, with the turn just added; the caller does not notice
        self._budget.charge(
            shared_log_key, size_bytes, partial(self.drop, shared_log_key, "SpoolFull")
        )
        return thread, shared_log

    def forget(self, key: Key) -> None:
        """Remove the waiting turns of a forgotten thread."""
        if resource := self.find_resource(key):
            resource.forget(key)
            if not resource.threads:
                self.remove_resource(resource_key(key))

    def forget_all(self, tenant: str, resource: str | None) -> None:
        """Remove the waiting turns of a forgotten resource; None: of all the tenant's."""
        for shared_log_key in list(self.resources):
            if shared_log_key.tenant == tenant and resource in (None, shared_log_key.resource):
                for key in self.resources[shared_log_key].threads:
                    self.forget(key)

    def drop(self, shared_log_key: Key, cause: str) -> None:
        """Discard the waiting turns of this resource. One error line per thread is all that remains
        of them. `cause`: a word for that line, or the name of an error."""
        resource = self.resources[shared_log_key]
        for key in resource.threads:
            turns = sum(turn.thread.after.key == key for turn in resource.turns)
            thread = self.name_for_log(key)
            logger.error("memory.uncommitted", error=cause, thread=thread, turns=turns)
        self.remove_resource(shared_log_key)

    def drop_all(self, cause: str) -> None:
        for shared_log_key in list(self.resources):
            self.drop(shared_log_key, cause)

    def move_to_end(self, shared_log_key: Key) -> None:
        """Let the other resources be written before this one."""
        if resource := self.resources.pop(shared_log_key, None):
            self.resources[shared_log_key] = resource

    def remove_resource(self, shared_log_key: Key) -> None:
        """Remove the resource and let the replies that wait for it continue."""
        if resource := self.resources.pop(shared_log_key, None):
            resource.replies_released.set()
        self._budget.refund(shared_log_key)

    def release_replies(self) -> None:
        """Let all waiting replies continue although their turns are not stored yet."""
        for resource in self.resources.values():
            resource.replies_released.set()

    def mark_other_database(self) -> None:
        """Note that the store now opens another database. It may lack what was stored before the
        waiting turns."""
        for resource in self.resources.values():
            resource.is_append_only = resource.is_other_database = True


MAX_SPOOLED_BYTES = 64 * 2**20  # for each process


class _Charge(NamedTuple):
    held_bytes: int
    drop: Callable[[], None]
    goes_first: bool


class SpoolBudget:
    """A byte budget that several queues share. Turns are charged to an owner, such as a resource.
    An owner larger than the whole budget loses only its own turns."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners: OrderedDict[Hashable, _Charge] = OrderedDict()  # oldest first
        self.held_bytes = 0

    def charge(
        self,
        owner: Hashable,
        size_bytes: int,
        drop: Callable[[], None],
        *,
        goes_first: bool = False,
    ) -> None:
        """Charge the owner, and drop owners until the rest fits.

        `drop` is called at most once, for all that the owner holds. It need not call `refund`.
        `goes_first`: drop this owner before any whose turns nobody sends again.
        """
        earlier = self._owners.get(owner)
        owner_bytes = size_bytes + (earlier.held_bytes if earlier else 0)
        goes_first = goes_first and (earlier is None or earlier.goes_first)
        self._owners[owner] = _Charge(owner_bytes, drop, goes_first)
        self.held_bytes += size_bytes
        if owner_bytes > self._max_bytes:  # it would not fit even alone
            self.refund(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            victim, charge = self._find_victim()
            self.refund(victim)
            charge.drop()

    def _find_victim(self) -> tuple[Hashable, _Charge]:
        oldest = next(iter(self._owners.items()))
        return next((item for item in self._owners.items() if item[1].goes_first), oldest)

    def release(self, owner: Hashable, size_bytes: int) -> None:
        """Take back a part of what the owner was charged; of one that was dropped, nothing."""
        if charge := self._owners.get(owner):
            self._owners[owner] = charge._replace(held_bytes=charge.held_bytes - size_bytes)
            self.held_bytes -= size_bytes

    def refund(self, owner: Hashable) -> None:
        """Remove the owner: it holds no turns any more."""
        if charge := self._owners.pop(owner, None):
            self.held_bytes -= charge.held_bytes
