"""Record who changed a memory, and who read its text
(docs/contributing/seeing.md#forgetting-and-export).

A record is written once the change has succeeded. If the store refuses it then, the change stays
done: the record is logged as an error, waits here, and is written before the next one, or at the
end of the process. So a record is missing from the list only if the process is killed first or the
store still fails at its end, and then the log has it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import structlog

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import OmError
from om_proxy.memory.model import Key
from om_proxy.storage.contract.records import RecordKeeping
from om_proxy.storage.values.records import AuditRecord

logger = structlog.get_logger("audit")

READING_INTERVAL_S = 3_600.0  # between two records of one reader and one thread
MAX_REMEMBERED_READINGS = 10_000
MAX_WAITING_RECORDS = 1_000
LAST_WRITE_S = 3.0  # at the end of the process


class AuditLog:
    """The records of one process. `label` names a thread without telling its name."""

    def __init__(
        self,
        store: RecordKeeping,
        label: Callable[[Key], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._label = label
        self._clock = clock
        self._writing = asyncio.Lock()  # one at a time, so that none is written twice
        self._waiting: deque[AuditRecord] = deque(maxlen=MAX_WAITING_RECORDS)
        # by reader and thread: when the last reading was recorded
        self._readings: BoundedCache[tuple[str, Key], float] = BoundedCache(
            max_items=MAX_REMEMBERED_READINGS
        )

    async def record(
        self, who: str, what: str, key: Key, counts: Mapping[str, int] | None = None
    ) -> None:
        """Record what somebody did. `key`: of a thread; without a thread name, of its resource;
        without both, of the tenant. Never raise OmError: what was done is done."""
        await self._write([self._describe(who, what, key, counts or {})])

    async def record_retired(self, retired: Sequence[tuple[Key, Mapping[str, int]]]) -> None:
        """Record threads and resources that retention has forgotten, in one transaction. Never
        raise OmError."""
        await self._write(
            [
                self._describe(
                    "retention", "forget_thread" if key.thread else "forget_resource", key, counts
                )
                for key, counts in retired
            ]
        )

    def _describe(self, who: str, what: str, key: Key, counts: Mapping[str, int]) -> AuditRecord:
        label = self._label(key) if key.thread or key.resource else ""
        return AuditRecord(self._clock(), who, key.tenant, what, label, counts)

    async def _write(self, records: Sequence[AuditRecord]) -> None:
        self._waiting.extend(records)
        try:
            async with self._writing:
                await self._write_waiting()
        except OmError as exc:
            for record in records:
                logger.error("audit.unwritten", error=type(exc).__name__, **_list_fields(record))

    async def close(self) -> None:
        """Write what waits, and report what is lost with the process."""
        try:
            async with asyncio.timeout(LAST_WRITE_S), self._writing:
                await self._write_waiting()
        except (OmError, TimeoutError) as exc:
            logger.error("audit.lost", error=type(exc).__name__, records=len(self._waiting))

    def drop_all(self, cause: str) -> None:
        """Give up the records that wait, and report how many. `cause`: a word for the log."""
        if self._waiting:
            logger.error("audit.lost", error=cause, records=len(self._waiting))
            self._waiting.clear()

    async def _write_waiting(self) -> None:
        if not (records := tuple(self._waiting)):
            return  # the record before took it along
        await self._store.add_audit(records)
        for written in records:
            # not dropped meanwhile, when too many waited or the database became another one
            if self._waiting and self._waiting[0] is written:
                self._waiting.popleft()

    async def record_reading(self, who: str, what: str, key: Key) -> None:
        """Record that somebody reads text, if that is not recorded since an hour."""
        now = self._clock()
        recorded_at = self._readings.get((who, key))
        if recorded_at is None or not 0 <= now - recorded_at < READING_INTERVAL_S:
            self._readings.put((who, key), now)
            await self.record(who, what, key)

    async def list_records(
        self, tenant: str | None, before: int | None, limit: int
    ) -> tuple[AuditRecord, ...]:
        """Return records with `id < before`, the newest first; `tenant=None`: of all tenants."""
        return await self._store.audit(tenant, before, limit)


def _list_fields(record: AuditRecord) -> dict[str, object]:
    """Return the fields of a log line. The tenant may be a configured name, and is left out."""
    return {
        "who": record.who,
        "what": record.what,
        "thread": record.label,
        "counts": dict(record.counts),
    }
