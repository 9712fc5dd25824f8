"""A store that keeps every commit to itself: what a request would change is seen by the request
alone, and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from om_proxy.errors import Unwritable
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Change, ForgetResult, MoveResult, ResourceWakeup, Store
from om_proxy.storage.merging_store import MergingStore
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooled_resource import SpooledTurn
from om_proxy.storage.spooled_turns import SpooledTurns


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. Methods that no preview needs raise Unwritable."""

    def __init__(self, inner: Store) -> None:
        # one request's own commits: its body is bounded already
        super().__init__(SpooledTurns(SpoolBudget(sys.maxsize)))
        self._inner = inner

    @property
    def inner(self) -> Store:
        return self._inner

    async def load(self, key: Key) -> Memory:
        if spooled := self.spool.find_thread(key):
            return spooled.current[key]
        return await super().load(key)

    async def version(self, key: Key) -> int:
        if spooled := self.spool.find_thread(key):
            return spooled.current[key].version
        return await super().version(key)

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        return self.spool.add(SpooledTurn(Change(before, after, interrupted)))[0]

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return self.spool.add(SpooledTurn(thread, shared_log, wakeup, is_shared=True))

    async def set_due(self, key: Key, at: float | None) -> None:
        raise _refuse()

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        raise _refuse()

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        raise _refuse()

    async def forget(self, key: Key) -> ForgetResult:
        raise _refuse()

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        raise _refuse()

    async def park(self, key: Key, parked: bool) -> bool:
        raise _refuse()

    async def close(self) -> None:
        """Do nothing: the store behind goes on."""


def _refuse() -> Unwritable:
    return Unwritable("a preview changes nothing")
