"""Say in the database which programs may use it."""

from __future__ import annotations

from om_proxy.errors import StorageError
from om_proxy.storage.migrate import SchemaRow
from om_proxy.storage.redis.promise import SCHEMA_VERSION
from om_proxy.storage.redis.session import Session

# the programs that may read and write what this one writes, as long as it is not encrypted
MIN_READER = MIN_WRITER = 1


async def prepare_schema(session: Session, create: bool) -> None:
    """Mark the database as one of om-proxy. With `create=False`, raise StorageError if it is none,
    and change nothing."""
    name = session.keys.of_store("schema")
    if not create and not await session.call("EXISTS", name):
        raise StorageError(f"the database holds no memories under {session.keys.prefix}:")
    await check_schema(session)
    if create:
        fields = {"version": SCHEMA_VERSION, "min_reader": MIN_READER, "min_writer": MIN_WRITER}
        await session.call_many([("HSETNX", name, *field) for field in fields.items()])
        if (await read_schema_row(session)).version < SCHEMA_VERSION:
            await session.call("HSET", name, "version", SCHEMA_VERSION)


async def read_schema_row(session: Session) -> SchemaRow:
    name = session.keys.of_store("schema")
    found = await session.call("HMGET", name, "version", "min_reader", "min_writer")
    stored = [SCHEMA_VERSION if value is None else int(value) for value in found]
    return SchemaRow(*stored)


async def check_schema(session: Session) -> None:
    """Raise `ProgramTooOld` if the database excludes this program."""
    (await read_schema_row(session)).check_program(SCHEMA_VERSION)
