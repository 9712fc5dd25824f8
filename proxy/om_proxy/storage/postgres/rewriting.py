"""Rewrite the tables of a schema, so that no forgotten bytes are left in their files, and say what
has become of those bytes.

VACUUM frees the place of a removed row and does not clear it. `VACUUM FULL` writes the rows that
are left into a new file, and leaves out a removed one only if no transaction can see it any more: a
transaction that is older keeps it, such as a dump, a prepared transaction or a standby with
`hot_standby_feedback`.

A run has a number from the sequence of versions, which receipts take theirs from too. It then waits
for all transactions that were under way: whatever was forgotten under a smaller number is then in
no row that anybody sees. Each table that is rewritten keeps the number of its run, so that a run
that was interrupted goes on where it was.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import asyncpg

from om_proxy.common.errors import StorageError
from om_proxy.storage.postgres.pool import CONNECT_TIMEOUT_S, DRIVER_ERRORS, translate_error
from om_proxy.storage.postgres.session import NEXT_VERSION, SchemaNames, Session
from om_proxy.storage.sql.record_keeping import RecordMethods
from om_proxy.storage.values.records import ForgetResult

ALL_TABLES = ""  # its number: all tables were rewritten with it, or later
LOOK_INTERVAL_S = 0.5

SELECT_TABLES = """SELECT relname, pg_table_size(oid) FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND relkind = 'r'
    ORDER BY relname"""
SELECT_NUMBERS = "SELECT name, through FROM om.rewrite"
SET_NUMBER = """INSERT INTO om.rewrite VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET through = excluded.through"""
SELECT_FILE = "SELECT pg_relation_filenode(to_regclass($1))"
# what was removed by now was removed by transactions before this one
SELECT_HORIZON = """SELECT (pg_snapshot_xmax(pg_current_snapshot())::xid)::text,
    coalesce(current_setting('vacuum_defer_cleanup_age', true), '0')"""
# whoever may still see rows that were removed before the transaction $1
SELECT_HOLDERS = """SELECT 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '')
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid()
        AND (datid IS NULL OR datid = (SELECT oid FROM pg_database WHERE datname = current_database()))
        AND greatest(age(backend_xid), age(backend_xmin)) > age($1::text::xid)
    UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
    WHERE database = current_database() AND age(transaction) > age($1::text::xid)
    UNION ALL SELECT 'replication slot ' || slot_name FROM pg_replication_slots
    WHERE age(xmin) > age($1::text::xid)"""
COUNT_LATER_RECEIPTS = (
    "SELECT count(*) FROM om.receipt WHERE number >= $1 AND result LIKE '%until_rewrite%'"
)
LOCK_RUN = "SELECT pg_try_advisory_lock($1)"


class RewriteOptions(NamedTuple):
    """How long a run waits for others."""

    lock_timeout_s: float = 2.0  # for a table; all that use it wait meanwhile
    lock_attempts: int = 10  # with a pause of the same length between
    reader_timeout_s: float = 60.0  # for older transactions to end


DEFAULT_OPTIONS = RewriteOptions()


class Table(NamedTuple):
    """A table that a run comes to."""

    name: str
    size: int  # in bytes, with its long values
    is_done: bool  # by an earlier run that was interrupted


class RewriteResult(NamedTuple):
    """The result of a run."""

    rewritten: int  # tables
    later_receipts: int  # of what was forgotten after the run had begun


class TableRewriter:
    """The rewriting of one schema, on a connection of its own. Call `await TableRewriter.open(…)`,
    and `close()` at the end."""

    def __init__(
        self, connection: asyncpg.Connection, names: SchemaNames, options: RewriteOptions
    ) -> None:
        self._connection = connection
        self._session = Session(connection, names)
        self._schema = names.schema
        self._options = options

    @classmethod
    async def open(
        cls, url: str, prefix: str, options: RewriteOptions = DEFAULT_OPTIONS
    ) -> TableRewriter:
        """Connect to the server. Raise StorageError if that fails, or if another run is under way."""
        settings = {
            "application_name": "om-proxy store erase",
            "lock_timeout": str(max(1, round(options.lock_timeout_s * 1_000))),
        }
        try:
            connection = await asyncpg.connect(
                url, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0, server_settings=settings
            )
        except asyncpg.ProtocolViolationError as exc:
            raise StorageError(
                "a pooler stands before the server and takes no lock_timeout; name the server "
                "itself for this command, in OM_PROXY__STORAGE__URL"
            ) from exc
        except (*DRIVER_ERRORS, TimeoutError) as exc:
            raise translate_error(exc) from exc
        rewriter = cls(connection, SchemaNames(prefix), options)
        lock = zlib.crc32(f"om-proxy rewrite {prefix}".encode())
        [(is_alone,)] = await rewriter._run(LOCK_RUN, lock)
        if not is_alone:
            await rewriter.close()
            raise StorageError("another `om-proxy store erase --rewrite` is at work on this schema")
        return rewriter

    async def close(self) -> None:
        await self._connection.close()

    async def list_tables(self) -> list[Table]:
        """Return the tables by name. Those are done that the run before this one has rewritten, if it
        was interrupted."""
        numbers = await self._read_numbers()
        found = await self._run(SELECT_TABLES, self._schema)
        whole = numbers.get(ALL_TABLES, 0)
        return [Table(name, size, numbers.get(name, 0) > whole) for name, size in found]

    async def rewrite(
        self, on_table: Callable[[Table], None] = lambda table: None
    ) -> RewriteResult:
        """Rewrite the tables one after the other, and call `on_table` before each. Raise StorageError
        if that is not possible now: the next run goes on with the tables that are left."""
        tables = await self.list_tables()
        number = await self._begin_run()
        [(horizon, deferral)] = await self._run(SELECT_HORIZON)
        if deferral != "0":
            raise StorageError("the server keeps removed rows: set vacuum_defer_cleanup_age to 0")
        left = [table for table in tables if not table.is_done]
        for table in left:
            await self._wait_for_holders(horizon)
            on_table(table)
            await self._rewrite_table(table.name)
            # a standby may have come back with an older snapshot
            await self._wait_for_holders(horizon, timeout_s=0)
            await self._run(SET_NUMBER, table.name, number)
        await self._run(SET_NUMBER, ALL_TABLES, number)
        [(later,)] = await self._run(COUNT_LATER_RECEIPTS, number)
        return RewriteResult(len(left), later)

    async def _read_numbers(self) -> dict[str, int]:
        return dict(map(tuple, await self._run(SELECT_NUMBERS)))

    async def _begin_run(self) -> int:
        """Return the number of the run that was interrupted, or else a new one."""
        numbers = await self._read_numbers()
        newest = max(numbers.values(), default=0)
        if newest > numbers.get(ALL_TABLES, 0):
            return newest
        [(number,)] = await self._run(f"SELECT {NEXT_VERSION}")
        return int(number)

    async def _wait_for_holders(self, horizon: str, timeout_s: float | None = None) -> None:
        """Wait until no transaction can see rows that were removed before the transaction
        `horizon`."""
        limit_s = self._options.reader_timeout_s if timeout_s is None else timeout_s
        deadline = monotonic() + limit_s
        while holders := [row[0] for row in await self._run(SELECT_HOLDERS, horizon)]:
            if monotonic() >= deadline:
                raise StorageError(
                    f"forgotten rows are still seen by {', '.join(sorted(holders)[:3])}; end it, "
                    "and run this command again: it goes on"
                )
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _rewrite_table(self, name: str) -> None:
        place = f'"{self._schema}"."{name}"'
        [(before,)] = await self._run(SELECT_FILE, place)
        for attempt in range(self._options.lock_attempts):
            try:
                await self._connection.execute(f"VACUUM (FULL) {place}")
                break
            except asyncpg.LockNotAvailableError as exc:
                if attempt + 1 == self._options.lock_attempts:
                    raise StorageError(
                        f"the table {name} is in use all the time; run this command again when there "
                        "is less to do: it goes on"
                    ) from exc
                await asyncio.sleep(self._options.lock_timeout_s)
            except DRIVER_ERRORS as exc:
                raise translate_error(exc) from exc
        [(after,)] = await self._run(SELECT_FILE, place)
        if after == before:  # the server only warns
            raise StorageError(
                f"the server did not rewrite the table {name}: the user of storage.url must own it"
            )

    async def _run(self, sql: str, *parameters: Any) -> list[Any]:
        try:
            return await self._session.select(sql, *parameters)
        except DRIVER_ERRORS as exc:
            raise translate_error(exc) from exc


class PostgresRecords(RecordMethods):
    """The `RecordKeeping` of a PostgreSQL schema."""

    # the number of a receipt is the default: a version. All tables may have been rewritten since.
    _are_bytes_gone = "number < coalesce((SELECT through FROM om.rewrite WHERE name = ''), 0)"

    @staticmethod
    def _settle(result: ForgetResult, are_bytes_gone: bool, is_destroyed: bool) -> ForgetResult:
        if result.backups == "pending":
            return result.settle_keys(is_destroyed=is_destroyed)
        # here no byte ever waits for a reader to end: such a receipt was copied from another backend
        if result.database == "pending" or (are_bytes_gone and result.database == "until_rewrite"):
            result = result._replace(database="gone")
        return result._replace(log="gone") if result.log == "pending" else result
