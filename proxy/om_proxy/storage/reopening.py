"""A store that may be away: it cannot be opened yet, or its file was deleted or replaced while it was in use.

Whoever writes on then writes where nobody will ever look: into a file without a name. So the name is looked at, at most once a second and
only when something is asked. What stands in another file has versions of its own, and a number may mean another state there: versions
are therefore counted on from file to file, and what was computed from the one before is a Conflict.
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

from om_proxy.errors import Conflict, OmError, StorageError
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Change, Stir, Store
from om_proxy.storage.passing import PassingStore

log = structlog.get_logger("storage")

LOOK_INTERVAL_S = 1.0
REOPEN_INTERVAL_S = 1.0
COMPLAINT_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0  # for the file before, whose disk may be gone
VERSIONS_PER_FILE = 2**40

FileId = tuple[int, int]  # device and inode


class ReopeningStore(PassingStore):
    """`open` once, then `reopen_forever` beside it. `file`: None where the store has none.

    `opened` is told the secret of each store that was opened after the start, and whether there was another one before.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        file: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        reopen_interval_s: float = REOPEN_INTERVAL_S,
    ) -> None:
        self._open_store = open_store
        self._file = file
        self._clock = clock
        self._reopen_interval_s = reopen_interval_s
        self._store: Store | None = None
        self._file_before: Store | None = None  # its file is no longer the one of that name
        self._ids: tuple[FileId | None, FileId | None] = (None, None)  # of the file, and of its write-ahead log
        self._looked_at = clock()
        self._files = 0  # opened so far
        self._offset = 0  # of versions in the file that is open
        self._complained_at = float("-inf")
        self._away = asyncio.Event()
        self.known_secret: bytes = os.urandom(32)  # until there is a store, one that nothing was keyed with
        self.opened: Callable[[bytes, bool], Awaitable[None]] = _tell_nobody

    @property
    def has_opened(self) -> bool:
        """Whether there ever was a store: before that, memory is off."""
        return self._files > 0

    @property
    def is_away(self) -> bool:
        if self._clock() - self._looked_at >= LOOK_INTERVAL_S:
            self._look()
        return self._store is None

    @property
    def inner(self) -> Store:
        if self._clock() - self._looked_at >= LOOK_INTERVAL_S:
            self._look()
        if self._store is None:
            raise StorageError("the database cannot be used at the moment; the log says why")
        return self._store

    async def open(self) -> None:
        """Raises StorageError where that cannot be done; `reopen_forever` then tries again, and says why it cannot."""
        try:
            await self._use(await self._open_store())
        except StorageError:
            self._away.set()
            raise

    async def reopen_forever(self) -> None:
        """Wait until the store is away, then open it, once a second until that is done."""
        while True:
            await self._away.wait()
            try:
                await self._reopen()
            except (OmError, OSError) as exc:
                self._complain(exc)
            if self._store is None:
                await asyncio.sleep(self._reopen_interval_s)

    async def close(self) -> None:
        for store in (self._file_before, self._store):
            if store is not None:
                await store.close()

    # ── the file of that name ────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        self._looked_at = self._clock()
        if self._file is None or self._store is None:
            return
        file, wal = self._look_up()
        if file == self._ids[0]:
            self._ids = (file, wal)
            return
        log.error("storage.file_replaced" if file else "storage.file_deleted")
        self._file_before, self._store = self._store, None
        self._away.set()

    def _look_up(self) -> tuple[FileId | None, FileId | None]:
        return (_identify(self._file), _identify(Path(f"{self._file}-wal"))) if self._file else (None, None)

    async def _reopen(self) -> None:
        if self._file_before is not None:
            before, self._file_before = self._file_before, None
            with suppress(OmError, TimeoutError):  # nobody will look there any more
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await before.close()
            self._remove_log_of_file_before()
        store = await self._open_store()
        before_secret, had_one = self.known_secret, self.has_opened
        await self._use(store)
        log.warning("storage.reopened")
        await self.opened(self.known_secret, had_one and self.known_secret == before_secret)

    def _remove_log_of_file_before(self) -> None:
        """SQLite would replay it into the new file."""
        wal = self._look_up()[1]
        if wal is not None and wal == self._ids[1]:
            for suffix in ("-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)

    async def _use(self, store: Store) -> None:
        try:
            # a new file goes on with the secret that tenants and fingerprints are keyed with
            self.known_secret = await store.secret(self.known_secret)
        except BaseException:
            await store.close()
            raise
        self._offset = self._files * VERSIONS_PER_FILE
        self._files += 1
        self._ids, self._looked_at = self._look_up(), self._clock()
        self._store = store
        self._away.clear()

    def _complain(self, exc: Exception) -> None:
        if self._clock() - self._complained_at >= COMPLAINT_INTERVAL_S:
            self._complained_at = self._clock()
            said = str(exc) if isinstance(exc, OmError) else None
            log.error("storage.unavailable", error=type(exc).__name__, said=said)

    # ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load(self, key: Key) -> Memory:
        inner, offset = self.inner, self._offset
        return _shifted(await inner.load(key), offset)

    async def version(self, key: Key) -> int:
        inner, offset = self.inner, self._offset
        version = await inner.version(key)
        return version + offset if version else 0

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        inner, offset = self.inner, self._offset
        return _shifted(await inner.commit(*_unshifted(Change(before, after, aside), offset)), offset)

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        inner, offset = self.inner, self._offset
        hub = _unshifted(hub, offset) if hub else None
        written, log_after = await inner.commit_shared(_unshifted(thread, offset), hub, stir)
        return _shifted(written, offset), _shifted(log_after, offset) if log_after else None


async def _tell_nobody(_secret: bytes, _is_known: bool) -> None:
    return


def _identify(file: Path | None) -> FileId | None:
    try:
        found = os.stat(file) if file else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _shifted(memory: Memory, offset: int) -> Memory:
    return replace(memory, version=memory.version + offset) if offset and memory.version else memory


def _unshifted(change: Change, offset: int) -> Change:
    """Raises Conflict for what was computed from another file."""
    if not change.before.version:
        return change
    version = change.before.version - offset
    if not 0 < version < VERSIONS_PER_FILE:
        raise Conflict("the database is another one since; load the thread again")
    if not offset:
        return change
    before = replace(change.before, version=version)
    after = before if change.after == change.before else replace(change.after, version=version)
    return change._replace(before=before, after=after)
