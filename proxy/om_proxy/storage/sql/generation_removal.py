"""Remove older generations of a log."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key
from om_proxy.storage.sql.session import IS_THREAD, Session
from om_proxy.storage.sql.sql_store import SqlStore

LOCK_LOG = f"SELECT id, version FROM om.thread WHERE {IS_THREAD} FOR NO KEY UPDATE"
_GENERATION = "(SELECT generation FROM om.thread WHERE id = $1)"
DROP_ENTRIES = f"""DELETE FROM om.entry
    WHERE thread_id = $1 AND generation = $2 AND generation < {_GENERATION} RETURNING 1"""
DROP_BEGINNING = f"""DELETE FROM om.generation
    WHERE thread_id = $1 AND number = $2 AND number < {_GENERATION}"""
# those that no generation holds
PRUNE_OBSERVATIONS = """DELETE FROM om.observation WHERE thread_id = $1 AND state = 'log'
    AND NOT EXISTS (SELECT 1 FROM om.entry
        WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""


class GenerationRemovalMethods(SqlStore):
    """`StoredRemoval.drop_generations` of an SQL store."""

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        async def drop(session: Session) -> int:
            found = await session.select(LOCK_LOG, *key)
            if not found or found[0][1] != expected_version:
                raise Conflict(
                    f"thread {key.thread}: it has changed since version {expected_version}"
                )
            thread_id, dropped_count = found[0][0], 0
            for number in numbers:
                dropped_count += bool(await session.select(DROP_ENTRIES, thread_id, number))
                await session.execute(DROP_BEGINNING, thread_id, number)
            await session.execute(PRUNE_OBSERVATIONS, thread_id)
            return dropped_count

        return await self._write(drop, is_background=True)
