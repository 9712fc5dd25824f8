"""A store that keeps every commit to itself: what a request would change is seen by the request
alone, and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from om_proxy.errors import Unwritable
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.changes import Change, ResourceWakeup
from om_proxy.storage.merging_store import MergingStore
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooled_resource import SpooledTurn
from om_proxy.storage.spooled_turns import SpooledTurns

# what no preview needs
REFUSED_METHODS = (
    "add_events",
    "set_webhook_state",
    "prune_events",
    "set_due",
    "lease",
    "mark_delivered",
    "note_forgotten",
    "forget",
    "forget_batch",
    "add_audit",
    "add_receipt",
    "drop_generations",
    "commit_erasing",
    "move_tenant",
    "add_to_ledger",
    "prune_records",
    "prune_ledger",
    "index_passages",
    "write_vectors",
    "outdate_index",
    "drop_index",
    "park",
)


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. The methods of REFUSED_METHODS raise Unwritable; they are made below."""

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


async def _refuse(_store: PreviewStore, *_args: Any, **_options: Any) -> None:
    raise Unwritable("a preview changes nothing")


for _name in REFUSED_METHODS:
    setattr(PreviewStore, _name, _refuse)
