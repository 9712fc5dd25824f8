"""The parts of the Store protocol that remove memories, or take them from another tenant or
store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.contract.memories import StoredThreads
from om_proxy.storage.values.changes import (
    Change,
    ForgetBatch,
    MoveResult,
    NoteErasure,
    ResourceWakeup,
)
from om_proxy.storage.values.records import ForgetResult
from om_proxy.storage.values.stored_rows import WholeThread


class StoredRemoval(Protocol):
    """The removal of what is stored, and the names of what was forgotten."""

    async def note_forgotten(self, key: Key, at: float) -> None:
        """Keep that this name was asked to be forgotten at `at`, in unix seconds, whether or not
        anything of it is stored. `key`: of a thread; with an empty thread of a resource; with an
        empty resource too of a tenant. Call it before what is stored is removed: once it returns,
        no turn that began before makes a row of that name, and every row made by then can be seen.

        The name is kept as its HMAC under the store's secret, for MAX_EVENT_AGE_S at most (by
        `prune`) and of all of them the newest MAX_FORGOTTEN_NAMES."""

    async def forgotten_at(self, key: Key) -> float | None:
        """Return when the thread, its resource or its tenant was last noted as forgotten, in unix
        seconds; None: never, or it is no longer kept."""

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        """Remove every row of the thread. Return what was removed. Work in flight on the thread
        conflicts and cannot bring it back: a new thread under the same key has another `row_id`.
        Its events go too. Those of the log it shared lose their texts and its name, and go where
        they describe a call that read this thread alone (`event_encoding.remove_thread`). `event`
        is stored instead, without the thread's name, if the thread was there.

        Raise `Conflict`, and remove nothing, if the thread is stored with another version than
        `expected_version`: the same transaction compares and removes.

        The same transaction removes what mentions the thread: its part of the log it shared, in
        every generation (`forgetting.remove_thread`), and what other threads' prompts tell of it
        (`Memory.other_threads_text`). If the log then covers less of another thread, the messages
        that are no longer covered are in that thread's tail again. The shared log is removed with
        the last thread that shares it. A thread's name in the log is its `label_thread` under the
        store's own secret.

        The bytes leave the storage too. If a reader still holds them (a backup, a shell), the rows
        are gone at once and the bytes are `pending`: the store tries again by itself until none are
        left, also after a restart. `defers_erasure`: the bytes may be `pending` for some seconds
        although no reader holds them. So the bytes of many threads go at once.
        """

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        """Remove some threads of the resource, or of all resources of the tenant, in one short
        transaction. Call it again until the batch is the last one; it removes what is left, shared
        logs and leases too. Whatever stops the calls, a later call goes on.

        `active_before`: raise `Conflict`, and remove nothing, if a thread of the resource had its
        `active_at` at this time or later.

        A thread that begins during this goes as well. Bytes leave the storage as with `forget`. The
        same transaction stores the event that `describe_forgotten` returns of each thread.
        """

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        """Commit the change of a thread's own log or of a shared log, and write the blank entries
        over the stored ones of the same ids: all in one transaction. Raise `Conflict`, and write
        nothing, if a stored version is another one. `wakeup`: as in `commit_shared`. Every erased
        log gets a new version, so that no turn under way stores what its prompt told of it.

        Of a shared log, the same transaction removes what prompts tell of other threads, as
        `forget` does. The bytes leave the storage as with `forget`, also those of texts that
        earlier commits have replaced or pruned. `observations` counts the entries. Earlier events
        of each erased log keep their places and lose their texts (`event_encoding.remove_texts`),
        which may be the same; of a shared log, those of its whole resource.
        """

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        """Remove older generations of a log, and the entries that no other generation holds, in one
        transaction. Return how many of them were stored. The current generation, chunks and the
        version stay. Raise `Conflict`, and remove nothing, unless `expected_version` is the stored
        one."""


class MemoryMoving(StoredThreads, Protocol):
    """Threads that come from another tenant or store."""

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes, str], bytes | None]
    ) -> MoveResult:
        """Move all rows of the tenant `old` to the tenant `new`, as if they had been there from the
        start: with new fingerprints, chains, recorded attempts, and labels under the store's own
        secret. Records of the audit, and receipts, go along; those about threads that are forgotten
        keep their labels. `fingerprint` takes a message's JSON and its API; if it returns
        None, the old fingerprint stays.

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
