"""Say in the database which programs may use it."""

from __future__ import annotations

from om_proxy.common.errors import StorageError
from om_proxy.storage.promises import REDIS_SCHEMA_VERSION
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.migrate import SchemaRow, refuse_foreign

# the oldest layout that this program can use, and the oldest program that may use what it writes
OLDEST_SCHEMA = 3


async def prepare_schema(session: Session, create: bool) -> None:
    """Mark the database as one of om-proxy. With `create=False`, raise StorageError if it is none,
    and change nothing."""
    name = session.keys.of_store("schema")
    if not create and not await session.call("EXISTS", name):
        raise StorageError(f"the database holds no memories under {session.keys.prefix}:")
    await check_schema(session)
    if create:
        fields = dict.fromkeys(("min_reader", "min_writer"), OLDEST_SCHEMA)
        fields["version"] = REDIS_SCHEMA_VERSION
        await session.call_many([("HSETNX", name, *field) for field in fields.items()])
        if (await read_schema_row(session)).version < REDIS_SCHEMA_VERSION:
            await session.call("HSET", name, "version", REDIS_SCHEMA_VERSION)


async def read_schema_row(session: Session) -> SchemaRow:
    name = session.keys.of_store("schema")
    found = await session.call("HMGET", name, "version", "min_reader", "min_writer")
    stored = [REDIS_SCHEMA_VERSION if value is None else int(value) for value in found]
    return SchemaRow(*stored)


async def check_schema(session: Session) -> None:
    """Raise `ProgramTooOld` if the database excludes this program, and StorageError if its layout is
    an older one."""
    row = await read_schema_row(session)
    row.check_program(REDIS_SCHEMA_VERSION)
    if row.version < OLDEST_SCHEMA:
        raise refuse_foreign(f"layout {row.version} of its keys")
