"""A store that keeps every commit to itself: what a request would change is seen by the request
alone, and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from om_proxy.common.errors import Unwritable
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.contract.memories import MemoryCommits, MemoryRows, ThreadLists, ThreadRows
from om_proxy.storage.forwarding_store import ForwardingStore, list_methods
from om_proxy.storage.spooling.merging_store import MergingStore
from om_proxy.storage.spooling.spooled_resource import SpooledTurn
from om_proxy.storage.spooling.spooled_turns import SpoolBudget, SpooledTurns
from om_proxy.storage.values.changes import Change, ResourceWakeup

# what a turn calls before its reply is asked for
CALLED_PARTS = (MemoryRows, MemoryCommits, ThreadRows, ThreadLists)
CALLED_METHODS = ("delivered_reply", "events", "forgotten_at", "resource_backlog", "close")


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. The methods that no turn needs before its reply raise Unwritable. They are made below,
    so that a new method of the protocol is refused too."""

    def __init__(
        self, inner: Store, find_cached: Callable[[Key], Memory | None] = lambda _: None
    ) -> None:
        """`find_cached`: returns what this process holds of a thread, to be refreshed."""
        # one request's own commits: its body is bounded already
        super().__init__(SpooledTurns(SpoolBudget(sys.maxsize)))
        self._inner = inner
        self._find_cached = find_cached

    @property
    def inner(self) -> Store:
        return self._inner

    async def refresh(self, held: Memory) -> Memory:
        return await super().refresh(self._choose_held(held))

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        return await super().refresh_shared(
            self._choose_held(thread), self._choose_held(shared_log)
        )

    def _choose_held(self, held: Memory) -> Memory:
        """Return what the process holds if the preview holds nothing yet."""
        return held if held.version else self._find_cached(held.key) or held

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        return self.spool.add(SpooledTurn(Change(before, after, interrupted)))[0]

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return self.spool.add(SpooledTurn(thread, shared_log, wakeup, is_shared=True))

    async def close(self) -> None:
        """Do nothing: the store behind goes on."""


async def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise Unwritable("a preview changes nothing")


def list_refused_methods() -> set[str]:
    called = {name for part in CALLED_PARTS for name in list_methods(part)}
    return {*list_methods(ForwardingStore)} - called - {*CALLED_METHODS}


for _name in list_refused_methods():
    setattr(PreviewStore, _name, _refuse)
