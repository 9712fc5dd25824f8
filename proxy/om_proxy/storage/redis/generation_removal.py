"""Remove older generations of a log."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.queries import select_thread_rows
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.thread_rows import select_generation_ids


async def drop_generations(
    session: Session, key: Key, expected_version: int, numbers: Sequence[int]
) -> int:
    """Remove older generations (`Store.drop_generations`). What is read here is as the version
    says, or the script changes nothing."""
    stored = await select_thread_rows(session, [key])
    if key not in stored or stored[key][0] != expected_version:
        raise _create_version_conflict(key, expected_version)
    names = session.keys
    logs = await select_generation_ids(session, key)
    current = stored[key][1].generation
    gone = [number for number in set(numbers) if number in logs and number < current]
    notes, chunks, beginnings = await session.call_many(
        [
            ("HKEYS", names.of_thread("notes", key)),
            ("ZRANGE", names.of_thread("chunks", key), 0, -1),
            ("HKEYS", names.of_thread("beginnings", key)),
        ]
    )
    held = {id_ for number, ids in logs.items() if number not in gone for id_ in ids}
    unheld = sorted({int(id_) for id_ in notes} - held - {int(id_) for id_ in chunks})
    begun = [number for number in map(int, beginnings) if number in numbers and number < current]
    changes = Changes()
    changes.expect_version(key, expected_version)
    changes.call_in_parts(("HDEL", names.of_thread("generations", key)), gone)
    changes.call_in_parts(("HDEL", names.of_thread("notes", key)), unheld)
    changes.call_in_parts(("HDEL", names.of_thread("beginnings", key)), begun)
    if (await changes.apply(session)).failed is not None:
        raise _create_version_conflict(key, expected_version)
    return len(gone)


def _create_version_conflict(key: Key, version: int) -> Conflict:
    return Conflict(f"thread {key.thread}: it has changed since version {version}")
