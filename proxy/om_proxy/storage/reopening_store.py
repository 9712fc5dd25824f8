"""A store that may be away: it cannot be opened yet, its file was deleted or replaced during use, or
a newer program has changed its schema.

After that, a process that continued to write would write into a file without a name, which is never
read again. So each call checks the name, at most once a second. Another file counts its versions
from the start, and one number could mean two states. So versions get an offset for each file, and a
commit computed from an earlier file is a Conflict.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, OmError, ProgramTooOld, StorageError
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.values.changes import Change, NoteErasure, ResourceWakeup
from om_proxy.storage.values.records import ForgetResult

logger = structlog.get_logger("storage")

CHECK_INTERVAL_S = 1.0
REOPEN_INTERVAL_S = 1.0
ERROR_LOG_INTERVAL_S = 60.0
SCHEMA_CHECK_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0  # for the earlier file, whose disk may be gone
VERSIONS_PER_FILE = 2**40

FileId = tuple[int, int]  # device and inode


class ReopeningStore(ForwardingStore):
    """The store that is open now, if any. Call `open` once, then keep `reopen_forever` running.
    `file`: None if the store has no file.

    `on_open` is called for each store opened after the start, with its secret, and whether an
    earlier store had the same secret. `before_use` is called with each such store before anybody
    else uses it.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        file: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        reopen_interval_s: float = REOPEN_INTERVAL_S,
        schema_check_interval_s: float = SCHEMA_CHECK_INTERVAL_S,
    ) -> None:
        self._open_store = open_store
        self._file = file
        self._clock = clock
        self._reopen_interval_s = reopen_interval_s
        self._schema_check_interval_s = schema_check_interval_s
        self._store: Store | None = None
        self._earlier_store: Store | None = None  # to be closed before another is opened
        self._is_earlier_file_gone = False  # its file no longer has that name
        # the ids of the file and of its write-ahead log
        self._ids: tuple[FileId | None, FileId | None] = (None, None)
        self._checked_at = clock()  # by `clock`, as is `_error_logged_at`
        self._opened_files = 0
        self._version_offset = 0  # added to the versions in the file that is open
        self._error_logged_at = float("-inf")
        self._away = asyncio.Event()
        # random until a store was opened: then nothing is keyed with it yet
        self.known_secret: bytes = os.urandom(32)
        self.on_open: Callable[[bytes, bool], Awaitable[None]] = _ignore
        self.before_use: Callable[[Store], Awaitable[None]] = _use_at_once

    @property
    def has_opened(self) -> bool:
        """True if a store was ever opened. Before that, memory is off."""
        return self._opened_files > 0

    @property
    def is_away(self) -> bool:
        if self._clock() - self._checked_at >= CHECK_INTERVAL_S:
            self._check_file()
        return self._store is None

    @property
    def inner(self) -> Store:
        if self._clock() - self._checked_at >= CHECK_INTERVAL_S:
            self._check_file()
        if self._store is None:
            raise StorageError("the database cannot be used at the moment; the log says why")
        return self._store

    async def open(self, *, is_required: bool = False) -> None:
        """Open the store. If that fails, log the reason and let `reopen_forever` try again; raise
        StorageError if the store is required."""
        try:
            await self._adopt(await self._open_store())
        except StorageError as exc:
            if is_required:
                raise
            # at once: the next try may succeed, and turns until then have no memory
            self._log_error(exc)
            self._away.set()

    async def reopen_forever(self) -> None:
        """Try to open the store once a second whenever it is away. Check its schema once a minute
        while it is open."""
        while True:
            try:
                async with asyncio.timeout(self._schema_check_interval_s):
                    await self._away.wait()
            except TimeoutError:
                await self._check_schema()
                continue
            try:
                await self._reopen()
            except (OmError, OSError) as exc:
                self._log_error(exc)
            if self._store is None:
                await asyncio.sleep(self._reopen_interval_s)

    async def close(self) -> None:
        for store in (self._earlier_store, self._store):
            if store is not None:
                await store.close()

    # ── the file of that name ─────────────────────────────────────────────────────────────────────

    def _check_file(self) -> None:
        self._checked_at = self._clock()
        if self._file is None or self._store is None:
            return
        file, wal = self._read_ids()
        if file == self._ids[0]:
            self._ids = (file, wal)
            return
        logger.error("storage.file_replaced" if file else "storage.file_deleted")
        self._is_earlier_file_gone = True
        self._put_away()

    def _put_away(self) -> None:
        """Use the store no longer. `reopen_forever` closes it and opens another."""
        self._earlier_store, self._store = self._store, None
        self._away.set()

    async def _check_schema(self) -> None:
        """Put the store away if this program has become too old for it: another release may write it
        as this one cannot read it. Chat goes on without memory."""
        store = self._store
        if store is None:
            return
        try:
            await store.check_schema()
        except ProgramTooOld as exc:
            logger.error("storage.program_too_old", said=str(exc))
            if self._store is store:
                self._put_away()
        except StorageError as exc:  # the store's own troubles show where it is used
            logger.debug("storage.schema_unknown", error=type(exc).__name__)

    def _read_ids(self) -> tuple[FileId | None, FileId | None]:
        if self._file is None:
            return None, None
        return _identify(self._file), _identify(Path(f"{self._file}-wal"))

    async def _reopen(self) -> None:
        if self._earlier_store is not None:
            earlier, self._earlier_store = self._earlier_store, None
            with suppress(OmError, TimeoutError):  # that file is never read again
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await earlier.close()
            if self._is_earlier_file_gone:
                self._is_earlier_file_gone = False
                self._remove_earlier_log()
        store = await self._open_store()
        await self.before_use(store)
        earlier_secret = self.known_secret if self.has_opened else None
        await self._adopt(store)
        logger.warning("storage.reopened")
        await self.on_open(self.known_secret, self.known_secret == earlier_secret)

    def _remove_earlier_log(self) -> None:
        """Remove the write-ahead log: SQLite would replay it into the new file."""
        wal = self._read_ids()[1]
        if wal is not None and wal == self._ids[1]:
            for suffix in ("-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)

    async def _adopt(self, store: Store) -> None:
        try:
            # a new file takes over the secret that tenants and fingerprints are keyed with
            self.known_secret = await store.secret(self.known_secret)
        except BaseException:
            await store.close()
            raise
        self._version_offset = self._opened_files * VERSIONS_PER_FILE
        self._opened_files += 1
        self._ids = self._read_ids()
        self._checked_at = self._clock()
        self._store = store
        self._away.clear()

    def _log_error(self, exc: Exception) -> None:
        if self._clock() - self._error_logged_at >= ERROR_LOG_INTERVAL_S:
            self._error_logged_at = self._clock()
            message = str(exc) if isinstance(exc, OmError) else None
            logger.error("storage.unavailable", error=type(exc).__name__, said=message)

    # ── versions ──────────────────────────────────────────────────────────────────────────────────

    async def load(self, key: Key) -> Memory:
        inner, offset = self.inner, self._version_offset
        return _add_offset(await inner.load(key), offset)

    async def refresh(self, held: Memory) -> Memory:
        inner, offset = self.inner, self._version_offset
        known = _find_known(held, offset)
        return _choose_newest(held, known, await inner.refresh(known), offset)

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        inner, offset = self.inner, self._version_offset
        known_thread, known_log = _find_known(thread, offset), _find_known(shared_log, offset)
        newest_thread, newest_log = await inner.refresh_shared(known_thread, known_log)
        return (
            _choose_newest(thread, known_thread, newest_thread, offset),
            _choose_newest(shared_log, known_log, newest_log, offset),
        )

    async def version(self, key: Key) -> int:
        inner, offset = self.inner, self._version_offset
        version = await inner.version(key)
        return version + offset if version else 0

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        inner, offset = self.inner, self._version_offset
        change = _subtract_offset(Change(before, after, interrupted, events, began_at), offset)
        return _add_offset(await inner.commit(*change), offset)

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        inner, offset = self.inner, self._version_offset
        if expected_version is not None:
            expected_version = _require_own(expected_version, offset)
        return await inner.forget(key, expected_version, event, defers_erasure=defers_erasure)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        inner, offset = self.inner, self._version_offset
        shared_log = _subtract_offset(shared_log, offset) if shared_log else None
        thread_after, log_after = await inner.commit_shared(
            _subtract_offset(thread, offset), shared_log, wakeup
        )
        return (
            _add_offset(thread_after, offset),
            _add_offset(log_after, offset) if log_after else None,
        )

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        inner, version = self.inner, _require_own(expected_version, self._version_offset)
        return await inner.drop_generations(key, version, numbers)

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        inner, offset = self.inner, self._version_offset
        erasures = [
            erasure._replace(version=_require_own(erasure.version, offset)) for erasure in erasures
        ]
        written, erased = await inner.commit_erasing(
            _subtract_offset(change, offset), erasures, wakeup
        )
        return _add_offset(written, offset), erased


async def _use_at_once(_store: Store) -> None:
    pass


async def _ignore(_secret: bytes, _is_known: bool) -> None:
    return


def _identify(file: Path) -> FileId | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _add_offset(memory: Memory, offset: int) -> Memory:
    return replace(memory, version=memory.version + offset) if offset and memory.version else memory


def _require_own(version: int, offset: int) -> int:
    """Return the version as the open file counts. Raise Conflict if it is another file's."""
    if not 0 < version - offset < VERSIONS_PER_FILE:
        raise Conflict("the database is another one since; load the thread again")
    return version - offset


def _find_known(held: Memory, offset: int) -> Memory:
    """Return what the open file returned for `held`: nothing, if that was another file's."""
    if not offset or not held.version:
        return held
    version = held.version - offset
    if not 0 < version < VERSIONS_PER_FILE:
        return Memory(key=held.key)
    return replace(held, version=version)


def _choose_newest(held: Memory, known: Memory, newest: Memory, offset: int) -> Memory:
    """Return `held` if the open file has it as `known`."""
    if newest is not known:
        return _add_offset(newest, offset)
    return held if known.version or not held.version else known


def _subtract_offset(change: Change, offset: int) -> Change:
    """Return the change with the versions of the open file. Raise Conflict if it was computed from
    another file."""
    if not change.before.version:
        return change
    version = _require_own(change.before.version, offset)
    if not offset:
        return change
    before = replace(change.before, version=version)
    after = before if change.after == change.before else replace(change.after, version=version)
    return change._replace(before=before, after=after)
