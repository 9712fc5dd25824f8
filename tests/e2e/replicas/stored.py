"""The store of a run: watch it, and read what stands in it at the end, for the checker."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import asyncpg
import orjson

from om_proxy.engine.policy import Policy
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    RESOURCE_THREAD,
    Key,
    Memory,
    extend_chain,
    resource_key,
)
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.shared.forgetting import create_thread_labeler
from tests.e2e.crash.models import SAID
from tests.e2e.replicas.history import Lease, Range, StoredMessage, StoredThread

# the schema, or what all keys begin with
PREFIX = "om"
# each lease as its row was, with the server's clock
LOG_LEASES = """
CREATE TABLE "{schema}".test_lease (id bigserial, at float8, op text, key text, holder text, until float8);
CREATE FUNCTION "{schema}".test_log_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO "{schema}".test_lease (at, op, key, holder, until)
    SELECT extract(epoch FROM clock_timestamp()), TG_OP, l.resource || '/' || l.thread, l.holder, l.until
    FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) AS l;
    RETURN NULL; END $$;
CREATE TRIGGER test_log AFTER INSERT OR UPDATE OR DELETE ON "{schema}".lease
    FOR EACH ROW EXECUTE FUNCTION "{schema}".test_log_lease();
"""
# Nobody sees what was written before the wait has ended, and its locks are held until then.
SLOW_COMMITS = """
CREATE FUNCTION "{schema}".test_wait() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER test_wait AFTER INSERT OR UPDATE OF fresh ON "{schema}".thread
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.shared) EXECUTE FUNCTION "{schema}".test_wait();
"""
COUNT_OF_PROCESSES = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'om-proxy'"""
LEAVING_TIMEOUT_S = 30.0


class StoredState(NamedTuple):
    """What stands in the store."""

    threads: Sequence[StoredThread]
    leases: Sequence[Lease]
    schema_version: int
    at: float  # by its clock
    deadlocks: int  # that the server has ended in this database since it was started


class RunStore(Protocol):
    """What a run asks of its store beside what its processes do. `url`: of a database of its own, or
    of a server of its own."""

    url: str

    async def watch(self, shared_commit_s: float) -> None:
        """Log what happens, once a process has made the schema. `shared_commit_s`: how long a commit
        of a turn that shares a log shall take."""

    async def count_deadlocks(self) -> int:
        """Return how many the server has ended since it was started."""

    async def use_up_versions(self, count: int) -> None: ...

    async def read(self, policy: Policy) -> StoredState:
        """Read all threads, once all processes have left. `policy`: theirs."""


class PostgresRunStore:
    def __init__(self, url: str) -> None:
        self.url = url

    async def watch(self, shared_commit_s: float) -> None:
        await execute(self.url, LOG_LEASES.format(schema=PREFIX))
        if shared_commit_s:
            await execute(self.url, SLOW_COMMITS.format(schema=PREFIX, seconds=shared_commit_s))

    async def count_deadlocks(self) -> int:
        connection = await asyncpg.connect(self.url)
        try:
            return await _count_deadlocks(connection)
        finally:
            await connection.close()

    async def use_up_versions(self, count: int) -> None:
        await execute(
            self.url,
            f"SELECT nextval('{PREFIX}.version') FROM generate_series(1, {count})",  # noqa: S608 - our own name
        )

    async def read(self, policy: Policy) -> StoredState:
        """Read the log of the leases, too."""
        connection = await asyncpg.connect(self.url)
        deadlocks = await _count_all_deadlocks(connection)
        options = PostgresOptions(PREFIX, 2, timeout_s=30.0)
        store = await PostgresStore.open(self.url, options, create=False)
        try:
            at = await store.clock()
            rows = await connection.fetch(
                f'SELECT tenant, resource, thread FROM "{PREFIX}".thread'  # noqa: S608 - our own name
            )
            log = await connection.fetch(
                f'SELECT at, op, key, holder, until FROM "{PREFIX}".test_lease ORDER BY id'  # noqa: S608 - our own name
            )
            leases = _read_leases([tuple(row) for row in log])
            keys = Counter(Key(*row) for row in rows)
            threads = [
                await _read_thread(store, key, row_count, leases, policy)
                for key, row_count in keys.items()
            ]
            version = await connection.fetchval(f'SELECT version FROM "{PREFIX}".schema')  # noqa: S608 - our own name
        finally:
            await connection.close()
            await store.close()
        return StoredState(threads, leases, version, at, deadlocks)


class RedisRunStore:
    """It logs no leases, and has no deadlocks."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def watch(self, shared_commit_s: float) -> None:
        assert not shared_commit_s, "a commit of Redis takes no time"

    async def count_deadlocks(self) -> int:
        return 0

    async def use_up_versions(self, count: int) -> None:
        raise NotImplementedError("the files of Redis are not taken back")

    async def read(self, policy: Policy) -> StoredState:
        store = await RedisStore.open(
            self.url, RedisOptions(PREFIX, 2, timeout_s=30.0), create=False
        )
        try:
            at = await store.clock()
            keys: set[Key] = set()
            last: Key | None = None
            while page := await store.threads(None, cursor=last):
                last = page[-1].key
                keys |= {info.key for info in page}
            memories = [await store.load(key) for key in keys]
            keys |= {resource_key(one.key) for one in memories if one.scope == "resource"}
            threads = [await _read_thread(store, key, 1, (), policy) for key in keys]
        finally:
            await store.close()
        return StoredState(threads, (), 0, at, 0)


@asynccontextmanager
async def open_run_store(url: str) -> AsyncIterator[RunStore]:
    """Yield the store of a run: on a PostgreSQL, in a new database, which counts the deadlocks in it
    and is dropped afterwards. A Redis is the run's own."""
    if url.startswith("redis://"):
        yield RedisRunStore(url)
        return
    name = f"om_replicas_{secrets.token_hex(6)}"
    await execute(url, f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield PostgresRunStore(urlsplit(url)._replace(path=f"/{name}").geturl())
    finally:
        await execute(url, f"DROP DATABASE {name} WITH (FORCE)")


async def execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def _count_deadlocks(connection: asyncpg.Connection) -> int:
    return int(
        await connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
    )


async def _count_all_deadlocks(connection: asyncpg.Connection) -> int:
    """Return the count once every process has left: each tells its last numbers then."""
    async with asyncio.timeout(LEAVING_TIMEOUT_S):
        while await connection.fetchval(COUNT_OF_PROCESSES):  # noqa: ASYNC110 - the server sends no event of it
            await asyncio.sleep(0.05)  # bounded by the time-out above
    return await _count_deadlocks(connection)


async def _read_thread(
    store: Store, key: Key, row_count: int, leases: Sequence[Lease], policy: Policy
) -> StoredThread:
    memory: Memory = await store.load(key)
    chain, messages = EMPTY_CHAIN, []
    for message in await store.messages(key, 0):
        chain = extend_chain(chain, message.item.fp)
        mark = SAID.findall(str(orjson.loads(message.item.raw)["content"]))[0]
        messages.append(StoredMessage(message.seq, mark, message.chain, chain, message.at))
    leased_until = max(
        (lease.holds_until for lease in leases if lease.key == f"{key.resource}/{key.thread}"),
        default=0.0,
    )
    is_log = key.thread == RESOURCE_THREAD
    return StoredThread(
        f"the log of {key.resource}" if is_log else key.thread,
        tuple(messages),
        () if is_log else await _read_ranges(store, key, memory),
        memory.coverage,
        tuple(message.seq for message in memory.tail),
        row_count,
        memory.due_at,
        is_log and memory.due_at is None and await _has_work(store, memory, policy),
        leased_until,
    )


async def _has_work(store: Store, shared_log: Memory, policy: Policy) -> bool:
    """Return whether the threads of a shared log have said enough together to wake it."""
    wakeup = policy.resource_wakeup(shared_log, 0.0)
    backlog = await store.resource_backlog(shared_log.key)
    unobserved_tokens = sum(
        thread.unobserved_tokens for thread in backlog if not thread.failures.count
    )
    return wakeup is not None and unobserved_tokens >= wakeup.tokens


async def _read_ranges(store: Store, key: Key, memory: Memory) -> tuple[Range, ...]:
    """Return the ranges of the entries that cover a thread, in its own log or a shared one, and those
    of its chunks."""
    entries = [Range(o.after, o.last, o.chain) for o in memory.log.entries]
    if memory.scope == "resource":
        label = create_thread_labeler(await store.secret())(key)
        shared_log = await store.load(resource_key(key))
        entries += [
            Range(part.after, part.last, part.chain)
            for entry in shared_log.log.entries
            for part in entry.parts
            if part.label == label and not part.covers_nothing
        ]
    return (*entries, *(Range(o.after, o.last, o.chain) for o in memory.chunks))


def _read_leases(log: Sequence[tuple[float, str, str, str, float]]) -> list[Lease]:
    """Return the leases that the log of their rows tells of. A holder that takes its lease again
    goes on with it."""
    leases: list[Lease] = []
    open_leases: dict[str, Lease] = {}
    for at, op, key, holder, until in log:
        held = open_leases.pop(key, None)
        if op == "DELETE":
            if held is not None:
                leases.append(held._replace(ended_at=at))
        elif held is not None and held.holder == holder:
            open_leases[key] = held._replace(until=until)
        else:
            if held is not None:
                leases.append(held)
            open_leases[key] = Lease(key, holder, at, until)
    return [*leases, *open_leases.values()]
