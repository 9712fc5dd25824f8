"""Commit the difference between two states of a thread: with which keys, and what a conflict and
another version mean for those that are held."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.encryption.keyring import CommitKeys
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.sql.key_rows import hold_key
from om_proxy.storage.sql.session import IS_THREAD, SqlStore
from om_proxy.storage.values.changes import Change, ResourceWakeup, WrittenRow

SELECT_VERSION = f"SELECT version FROM om.thread WHERE {IS_THREAD}"


class CommitMethods(SqlStore):
    """The `MemoryCommits` of an SQL store."""

    @abstractmethod
    async def _write_commit(
        self, change: Change, keys: CommitKeys, first_turn: FirstTurn | None
    ) -> WrittenRow:
        """Write the difference. Raise `Conflict` or `ForgottenName` before anything is written."""

    @abstractmethod
    async def _write_shared(
        self,
        thread: Change,
        shared_log: Change | None,
        wakeup: ResourceWakeup | None,
        keys: Sequence[CommitKeys],
        first_turn: FirstTurn | None,
    ) -> tuple[WrittenRow, WrittenRow | None]:
        """Write the differences of both, or neither, as `_write_commit` does. The second row is None
        if the shared log is not written."""

    async def version(self, key: Key) -> int:
        found = await self._select(SELECT_VERSION, *key)
        return int(found[0][0]) if found else 0

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        change = Change(before, after, interrupted, events, began_at)
        keys = await self._prepare_keys(before, after)
        first_turn = await self._secret.find_first_turn(change)
        try:
            written = await self._write_commit(change, keys, first_turn)
        except Conflict:
            self._keys.forget_row(before.row_id)
            raise
        self._keys.note_row(written.row_id, written.version, keys.key_id)
        return written.add_to(after)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        changes = [thread, shared_log] if shared_log else [thread]
        keys = [await self._prepare_keys(change.before, change.after) for change in changes]
        first_turn = await self._secret.find_first_turn(thread)
        try:
            rows = await self._write_shared(thread, shared_log, wakeup, keys, first_turn)
        except Conflict:
            self._keys.forget_row(thread.before.row_id)
            raise
        for row, row_keys in zip(rows, keys, strict=False):
            if row:
                self._keys.note_row(row.row_id, row.version, row_keys.key_id)
        thread_row, log_row = rows
        log_after = shared_log.after if shared_log else None
        if log_after and log_row:
            log_after = log_row.add_to(log_after)
        return thread_row.add_to(thread.after), log_after

    def _prepare_keys(self, before: Memory, after: Memory) -> Awaitable[CommitKeys]:
        return self._keys.prepare_commit(
            before,
            after,
            lambda: self._read_with_keys(lambda session: hold_key(session, before, self._keys)),
        )
