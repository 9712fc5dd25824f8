"""Forget in an SQLite file, and get the bytes out of it: which step runs in which transaction, and
what is erased after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.sql.committing import CommitMethods
from om_proxy.storage.sql.key_rows import KeyRowMethods
from om_proxy.storage.sqlite import removal
from om_proxy.storage.sqlite.commit import SharedCommit
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker
from om_proxy.storage.sqlite.eraser import IS_ERASURE_PENDING, Eraser
from om_proxy.storage.sqlite.session import SqliteSession, run_in_thread
from om_proxy.storage.values.changes import Change, ForgetBatch, NoteErasure, ResourceWakeup
from om_proxy.storage.values.records import ForgetResult


class SqliteForgetting(CommitMethods, KeyRowMethods):
    """The `StoredRemoval` of an SQLite file."""

    _writer: ConnectionWorker
    _reader: ConnectionWorker
    _eraser: Eraser | None  # None: the store is in memory

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        """Remove the thread, also from the file: deleted content is overwritten, and the
        write-ahead log is truncated."""
        label_of = await self._secret.create_labeler()
        label = label_of(key)
        remove_lone = partial(
            run_in_thread,
            lambda s: removal.remove_lone_thread(s, key, expected_version, label, event),
        )
        lone = await self._writer.write(remove_lone, is_background=defers_erasure)
        if lone is not None:
            removed = lone.settle_keys(self._keys)
        else:
            removed = await self._writer.run(
                lambda db: removal.remove_thread(
                    SqliteSession(db), key, expected_version, label_of, event, self._keys
                ),
                is_background=defers_erasure,
            )
        if defers_erasure and self._eraser:
            await self._eraser.erase_soon(removed.threads + removed.messages)
            return removed._replace(database="pending", log="pending")
        return await self._erase(removed)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        """Remove some threads. The bytes are erased after the last batch."""
        defers_erasure = active_before is not None
        batch = await self._writer.run(
            lambda db: removal.remove_batch(
                SqliteSession(db), tenant, resource, describe_forgotten, self._keys, active_before
            ),
            is_background=defers_erasure,
        )
        result = batch.result
        if defers_erasure and self._eraser:
            await self._eraser.erase_soon(result.threads + result.messages)
            if batch.is_last:
                result = result._replace(database="pending", log="pending")
        elif batch.is_last:
            return batch._replace(result=await self._erase(result))
        return batch._replace(result=await self._doomed.settle(result))

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        """Write the commit, and take these notes out of everything that has them."""
        held = await self._hold_erased(erasures)
        keys = await self._prepare_keys(change.before, change.after)
        commit = SharedCommit(change, None, wakeup, self._generations, [keys])
        write = partial(
            run_in_thread,
            lambda s: removal.commit_erasing(s, commit, erasures, held, self._keys),
        )
        row = await self._writer.write(write)
        count = sum(len(erasure.blanks) for erasure in erasures)
        erased = await self._erase(ForgetResult(observations=count))
        return row.add_to(change.after), erased

    async def _erase(self, removed: ForgetResult) -> ForgetResult:
        """Erase the bytes now. Return the result with what is true of them."""
        if self._eraser is not None and not await self._eraser.erase():
            removed = removed._replace(database="pending", log="pending")
        return await self._doomed.settle(removed)

    async def resume_erasure(self) -> None:
        """Start the eraser if forgotten bytes are pending: this process has ended in between, or
        another one."""
        [(is_pending,)] = await self._select(IS_ERASURE_PENDING)
        if is_pending and self._eraser:
            self._eraser.start()

    async def wait_erased(self) -> None:
        if self._eraser is not None:
            await self.resume_erasure()
            await self._eraser.wait()
        await self._doomed.wait_destroyed()
