"""The part of the Store protocol that takes memories from another tenant or another store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from om_proxy.memory.model import Memory
from om_proxy.storage.values.changes import MoveResult
from om_proxy.storage.values.stored_rows import WholeThread


class MemoryMoving(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        """Move all rows of the tenant `old` to the tenant `new`, as if they had been there from the
        start: with new fingerprints, chains, recorded attempts, and labels under the store's own
        secret. Records of the audit, and receipts, go along; those about threads that are forgotten
        keep their labels. `fingerprint` takes a message's JSON; if it returns None, the old fingerprint stays.

        If both tenants have a thread or a shared log of the same name, nothing moves. Otherwise one
        resource moves after the other, each as a whole or not at all, so that a second call
        finishes a move that was interrupted. Work in flight on a moved thread finds it gone.
        """

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        """Write a thread or a shared log as another store had it, in one durable transaction, and
        return its memory with its new version and row id. Every method then answers as the other
        store's did. Without `created_at` it begins now. It has no events.

        Raise `Conflict`, and write nothing, unless `over` is the stored version. What is stored
        with that version is removed in the same transaction, with its events; its bytes leave
        the storage as with `forget`. The shared log and the other threads of its resource stay as
        they are.

        `keeps_row`: what is written is the stored thread itself, repaired. It keeps its row id, so
        that what began on the row goes on.
        """

    async def adopt_secret(self, secret: bytes) -> bool:
        """Take the secret of another store in place of the own one, unless a thread or a shared log
        is stored. Return whether it is the store's secret now. No process may use the store
        meanwhile: it would go on with the secret that it has read."""
