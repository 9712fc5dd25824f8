"""A store that keeps every commit to itself: what a request would change is seen by the request
alone, and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from om_proxy.errors import Unwritable
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.base import Store
from om_proxy.storage.changes import Change, ForgetBatch, MoveResult, NoteErasure, ResourceWakeup
from om_proxy.storage.ledger_lines import LedgerBatch
from om_proxy.storage.merging_store import MergingStore
from om_proxy.storage.passage_index import UnindexedMessages
from om_proxy.storage.records import AuditRecord, ForgetResult, StoredReceipt
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooled_resource import SpooledTurn
from om_proxy.storage.spooled_turns import SpooledTurns
from om_proxy.storage.stored_events import WebhookState
from om_proxy.storage.stored_rows import Backlog
from om_proxy.storage.vector_index import UnembeddedMessage


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. Methods that no preview needs raise Unwritable."""

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

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        raise _refuse()

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        raise _refuse()

    async def prune_events(self, now: float) -> None:
        raise _refuse()

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        raise _refuse()

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        raise _refuse()

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        raise _refuse()

    async def note_forgotten(self, key: Key, at: float) -> None:
        raise _refuse()

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        raise _refuse()

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        raise _refuse()

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        raise _refuse()

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        raise _refuse()

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        raise _refuse()

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        raise _refuse()

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        raise _refuse()

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        raise _refuse()

    async def prune_records(self, now: float) -> None:
        raise _refuse()

    async def prune_ledger(self, now: float) -> None:
        raise _refuse()

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        raise _refuse()

    async def write_vectors(
        self,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        raise _refuse()

    async def outdate_index(self) -> None:
        raise _refuse()

    async def drop_index(self) -> None:
        raise _refuse()

    async def park(self, key: Key, parked: bool) -> bool:
        raise _refuse()

    async def close(self) -> None:
        """Do nothing: the store behind goes on."""


def _refuse() -> Unwritable:
    return Unwritable("a preview changes nothing")
