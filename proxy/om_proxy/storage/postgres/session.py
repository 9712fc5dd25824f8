"""Run statements on one connection to PostgreSQL, in the schema of this store.

The names of tables are written out in every statement: `om.thread` stands for the table in the
schema that `storage.prefix` names. A search path would be session state, which a pooler drops or
hands to another client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import asyncpg

from om_proxy.common.errors import ConfigError
from om_proxy.storage.encoding import encode_text
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql.columns import Columns, transpose, write_insert

ROW_ENCODER = RowEncoder(encode_text)  # every text from outside becomes bytes
# A name that PostgreSQL takes as it is, within its limit of 63 bytes; it cannot hold a quote.
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OWN_SCHEMA = re.compile(r"\bom\.")
NEXT_VERSION = "nextval('om.version')"
# `rewound`: those who hold a thread read it in full
RAISE_VERSIONS = f"""UPDATE om.thread SET version = drawn.version, rewound = drawn.version
    FROM (SELECT {NEXT_VERSION} AS version) AS drawn WHERE id = ANY ($1::bigint[])"""
CLEAR_OTHERS = f"""UPDATE om.thread SET others = '', version = {NEXT_VERSION}
    WHERE tenant = $1 AND resource = $2 AND others <> ''"""


class SchemaNames:
    """The statements of a store, with the name of its schema written in."""

    def __init__(self, schema: str) -> None:
        if not SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise ConfigError(
                f"storage.prefix: {schema!r} cannot name a schema; "
                "use at most 63 lower-case letters, digits and underscores, with no digit first"
            )
        self.schema = schema
        self._statements: dict[str, str] = {}

    def qualify(self, sql: str) -> str:
        """Return the statement with the schema's name. `sql` is one of a bounded set: values are
        parameters."""
        statement = self._statements.get(sql)
        if statement is None:
            statement = _OWN_SCHEMA.sub(f'"{self.schema}".', sql)
            self._statements[sql] = statement
        return statement


class Session:
    """One connection, for one piece of work."""

    encoder = ROW_ENCODER

    def __init__(self, connection: asyncpg.Connection, names: SchemaNames) -> None:
        self.connection = connection
        self._qualify = names.qualify
        self._event_count = 0  # of those that this session's transaction writes

    async def select(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement and return its rows."""
        found: list[Row] = await self.connection.fetch(self._qualify(sql), *parameters)
        return found

    async def execute(self, sql: str, *parameters: Any) -> None:
        await self.connection.execute(self._qualify(sql), *parameters)

    async def execute_many(self, sql: str, parameters: Sequence[Row]) -> None:
        await self.connection.executemany(self._qualify(sql), parameters)

    async def select_many(self, sql: str, parameters: Sequence[Row]) -> list[Row]:
        found: list[Row] = await self.connection.fetchmany(self._qualify(sql), parameters)
        return found

    async def insert(self, table: str, columns: Columns, rows: Sequence[Row]) -> None:
        if rows:
            sql = write_insert(table, tuple(columns.items()))
            await self.execute(sql, *transpose(rows, columns))

    async def draw_version(self) -> int:
        [(version,)] = await self.select(f"SELECT {NEXT_VERSION}")
        return int(version)

    async def raise_versions(self, ids: Sequence[int]) -> None:
        await self.execute(RAISE_VERSIONS, list(ids))

    async def clear_others(self, tenant: str, resource: str) -> None:
        await self.execute(CLEAR_OTHERS, tenant, resource)

    async def request_erasure(self) -> None:
        """Do nothing: a server rewrites its tables when it is told to (rewriting.py)."""

    def take_event_places(self, count: int) -> int:
        """Return the first of `count` places for events in this session's transaction."""
        first = self._event_count
        self._event_count += count
        return first
