"""A store that keeps every commit to itself: what a request would change is seen by the request
alone, and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from om_proxy.common.errors import Unwritable
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import Method
from om_proxy.storage.spooling.merging_store import MergingStore
from om_proxy.storage.spooling.spooled_resource import SpooledTurn
from om_proxy.storage.spooling.spooled_turns import SpoolBudget, SpooledTurns
from om_proxy.storage.values.changes import Change, ResourceWakeup

P = ParamSpec("P")
T = TypeVar("T")


def refuse(method: Method[P, T]) -> Method[P, T]:
    """Return this method of a store as one that no preview needs."""

    async def refuse_call(_self: PreviewStore, /, *_args: P.args, **_options: P.kwargs) -> T:
        raise Unwritable("a preview changes nothing")

    return refuse_call


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. Other methods that write raise Unwritable."""

    add_events = refuse(Store.add_events)
    set_webhook_state = refuse(Store.set_webhook_state)
    prune_events = refuse(Store.prune_events)
    set_due = refuse(Store.set_due)
    lease = refuse(Store.lease)
    mark_delivered = refuse(Store.mark_delivered)
    note_forgotten = refuse(Store.note_forgotten)
    forget = refuse(Store.forget)
    forget_batch = refuse(Store.forget_batch)
    add_audit = refuse(Store.add_audit)
    add_receipt = refuse(Store.add_receipt)
    drop_generations = refuse(Store.drop_generations)
    commit_erasing = refuse(Store.commit_erasing)
    move_tenant = refuse(Store.move_tenant)
    add_to_ledger = refuse(Store.add_to_ledger)
    prune_records = refuse(Store.prune_records)
    prune_ledger = refuse(Store.prune_ledger)
    index_passages = refuse(Store.index_passages)
    write_vectors = refuse(Store.write_vectors)
    outdate_index = refuse(Store.outdate_index)
    drop_index = refuse(Store.drop_index)

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
