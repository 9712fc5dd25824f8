"""Keep memories in one schema of a PostgreSQL database, which any number of processes may share: say
in what kind of transaction, and for how long, each method of the contract runs. What it does there
is in the files beside.

A turn is one statement, and so is a load: each is one round trip and one snapshot. Versions come
from a sequence; a commit compares the version in the statement that writes. See `commit`, `queries`
and `removal` for what is locked, and `pool` for what becomes of an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from om_proxy.common.errors import StorageError
from om_proxy.common.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.encryption.key_store import SeparateKeys
from om_proxy.storage.encryption.keyring import CommitKeys
from om_proxy.storage.encryption.row_cipher import ThreadCiphers
from om_proxy.storage.postgres import (
    claiming,
    queries,
    schema,
)
from om_proxy.storage.postgres import events as event_rows
from om_proxy.storage.postgres.commit import Commit, SharedCommit
from om_proxy.storage.postgres.forgotten_names import note_name_locking
from om_proxy.storage.postgres.pool import ConnectionPool, Work
from om_proxy.storage.postgres.removal import (
    ThreadCame,
    commit_erasing,
    delete_rows,
    mark_bytes,
    remove_batch,
    remove_thread,
)
from om_proxy.storage.postgres.rewriting import PostgresRecords
from om_proxy.storage.postgres.search import PostgresSearch
from om_proxy.storage.postgres.session import NEXT_VERSION, ROW_ENCODER, SchemaNames
from om_proxy.storage.postgres.turn_statement import THREAD, encode_thread
from om_proxy.storage.promises import create_postgres_promise
from om_proxy.storage.shared.event_encoding import encode_event
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S, MOVE_TIMEOUT_S
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.encryption import admit
from om_proxy.storage.sql.listing import write_info_columns
from om_proxy.storage.sql.session import IS_THREAD, UNIX_NOW
from om_proxy.storage.sql.session import Session as SqlSession
from om_proxy.storage.sql.store import SharedStore
from om_proxy.storage.values.changes import (
    Change,
    ForgetBatch,
    MoveResult,
    NoteErasure,
    ResourceWakeup,
    WrittenRow,
)
from om_proxy.storage.values.records import EventPage, ForgetResult

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

T = TypeVar("T")
MAX_LOCK_ATTEMPTS = 20  # of threads with what they share
MIGRATION_TIMEOUT_S = 600.0
LOCK_THREAD = f"SELECT id, version FROM om.thread WHERE {IS_THREAD} FOR UPDATE"


class PostgresOptions(NamedTuple):
    """How the store uses its server; `storage` in the configuration says what each means."""

    prefix: str = "om"
    connections: int = 10
    prepared: bool = True
    timeout_s: float = 1.0
    durable: bool = True


DEFAULT_OPTIONS = PostgresOptions()


class PostgresStore(PostgresSearch, PostgresRecords, SharedStore):
    """The `Store` protocol on PostgreSQL. Call `await PostgresStore.open(url)`, and `close()` at
    the end."""

    _has_plain_title = "has_plain_title"
    _log_tokens = "log_tokens"
    _reflected_tokens = "reflected_tokens"
    _info_columns = write_info_columns(_log_tokens)
    _encoder = ROW_ENCODER
    _thread_columns = THREAD
    _version_columns = ("version", "rewound")
    _newest_event = event_rows.NEWEST_EVENT
    _rows_have_versions = True

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        generations: int | None,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
    ) -> None:
        super().__init__(queries.select_wrapped_keys, generations, masters, separate)
        self._pool = pool
        self._prefix = prefix
        self._unpruned_commits = 0  # that wrote events, since this process last looked

    @classmethod
    async def open(
        cls,
        url: str,
        options: PostgresOptions = DEFAULT_OPTIONS,
        *,
        generations: int | None = None,
        create: bool = True,
        on_connection_lost: Callable[[], None] = lambda: None,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
        moves_keys: bool = False,
    ) -> PostgresStore:
        """Open the store in this database, and bring its schema up to date. With `create=False`,
        raise StorageError if there is no schema of om-proxy, and change nothing. `generations`: how
        many older generations of a log are kept; None: all. `on_connection_lost`: called when
        memories read so far may be no commit's any more. `masters`: the master keys that its text is
        encrypted with; None: none. `separate`: where its keys are; None: in the database. The store
        closes it. `moves_keys`: keys that are in the database may be moved."""
        pool = await ConnectionPool.open(
            url,
            SchemaNames(options.prefix),
            connections=options.connections,
            timeout_s=options.timeout_s,
            uses_prepared=options.prepared,
            must_be_durable=options.durable,
        )
        store = cls(pool, options.prefix, generations, masters, separate)
        try:
            await store._prepare_schema(create)
            await pool.transact(
                lambda s: admit(s, masters, separate, moves_keys=moves_keys),
                LONG_TIMEOUT_S,
            )
            store.use_key_store()
        except BaseException:
            await pool.close()
            raise
        pool.on_loss = on_connection_lost
        return store

    async def _prepare_schema(self, create: bool) -> None:
        if not create:
            await self._pool.read(lambda s: schema.require_own_schema(s, self._prefix))
        while await self._pool.read(lambda s: schema.find_missing(s, self._prefix)):
            apply_next = partial(schema.apply_next_migration, schema=self._prefix)
            await self._pool.transact(apply_next, MIGRATION_TIMEOUT_S)
        await self._pool.transact(schema.look_at_schema)
        self._pool.check_connection = schema.look_at_schema

    async def close(self) -> None:
        await self._pool.close()
        self._keys.close()
        if self._separate:
            await self._separate.close()

    async def ping(self) -> None:
        """Take a number from the sequence: a server that is read-only refuses that."""
        await self._write_one(f"SELECT {NEXT_VERSION}")
        if self._separate:
            await self._separate.ping()

    async def clock(self) -> float:
        [(now,)] = await self._select(f"SELECT {UNIX_NOW}")
        return float(now)

    async def describe(self) -> Promise:
        row = await self._pool.read(schema.read_schema_row)
        server = self._pool.server  # known since the first connection
        return create_postgres_promise(
            flushes=server is not None and server.flushes,
            commits_wait=server is not None and server.commits_wait,
            schema_version=row.version,
            is_encrypted=self._masters is not None,
            has_separate_keys=self._separate is not None,
        )

    async def check_schema(self) -> None:
        await self._pool.read(schema.check_schema)

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        [memory] = await self._read_sealed(lambda s: queries.select_memories(s, [key], self._keys))
        return memory

    async def refresh(self, held: Memory) -> Memory:
        [memory] = await self._select_newest(held)
        return memory

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        newest = await self._select_newest(thread, shared_log)
        return newest[0], newest[1]

    async def _select_newest(self, *held: Memory) -> tuple[Memory, ...]:
        losses = self._pool.loss_count

        async def select(session: SqlSession) -> tuple[Memory, ...]:
            # this session may be of another server than the one that `held` was read from
            is_known = losses == self._pool.loss_count
            known = held if is_known else [Memory(key=memory.key) for memory in held]
            return await queries.select_newest(session, known, self._keys)

        return await self._read_sealed(select)

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        return await self._pool.read(
            lambda s: event_rows.select_events(s, tenant, keys, after, limit, self._keys)
        )

    async def event_position(self, before: int = 0) -> int:
        return await self._pool.read(lambda s: event_rows.select_position(s, before))

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self._pool.read(lambda s: claiming.select_due(s, now, limit))

    async def _read_one(self, work: Work[T], *, is_long: bool = False) -> T:
        return await self._pool.read(work, LONG_TIMEOUT_S if is_long else None)

    async def _read_snapshot(self, work: Work[T], *, is_long: bool = False) -> T:
        return await self._pool.read(work, LONG_TIMEOUT_S if is_long else None, is_snapshot=True)

    async def _write(
        self, work: Work[T], *, is_long: bool = False, is_background: bool = False
    ) -> T:
        return await self._pool.transact(work, LONG_TIMEOUT_S if is_long or is_background else None)

    def _read_with_keys(self, work: Work[T], *, is_snapshot: bool = False) -> Awaitable[T]:
        return self._pool.read(work, is_snapshot=is_snapshot)

    # ── writing ──

    async def _write_commit(
        self, change: Change, keys: CommitKeys, first_turn: FirstTurn | None
    ) -> WrittenRow:
        encode = partial(Commit, *change[:4], self._generations, keys, first_turn)
        new_count = len(change.after.tail) - len(change.before.tail)
        commit = encode() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, encode)
        run = self._pool.write if commit.is_one_statement else self._pool.transact
        written = await run(commit.write)
        if commit.has_events:
            await self._prune_sometimes()
        return written

    async def _write_shared(
        self,
        thread: Change,
        shared_log: Change | None,
        wakeup: ResourceWakeup | None,
        keys: Sequence[CommitKeys],
        first_turn: FirstTurn | None,
    ) -> tuple[WrittenRow, WrittenRow | None]:
        encode = partial(
            SharedCommit, thread, shared_log, wakeup, self._generations, keys, first_turn
        )
        commit = await run_off_loop(len(thread.after.tail) - len(thread.before.tail), encode)
        rows = await self._pool.transact(commit.write)
        if commit.has_events:
            await self._prune_sometimes()
        return rows

    async def _prune_sometimes(self) -> None:
        """Remove events that are too many, once in so many commits: each look costs a round trip.
        The commit is done already, so a failure is left to the next look."""
        self._unpruned_commits += 1
        if self._unpruned_commits < event_rows.PRUNED_AT_ONCE:
            return
        self._unpruned_commits = 0
        with suppress(StorageError):
            await self._prune_surplus()

    async def _prune_surplus(self) -> None:
        if await self._pool.read(event_rows.has_surplus):
            await self._pool.transact(event_rows.prune_surplus, LONG_TIMEOUT_S)

    async def prune(self, now: float) -> None:
        if await self._pool.read(lambda s: event_rows.has_old(s, now)):
            await self._pool.transact(lambda s: event_rows.prune_old(s, now), LONG_TIMEOUT_S)
        await self._prune_names(now)
        await self._prune_records(now)
        await self._prune_ledger(now)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        if not events:
            return
        encoded = [encode_event(event) for event in events]
        insert = partial(
            event_rows.insert_thread_events, key=key, events=encoded, keyring=self._keys
        )
        await self._keys.retry_unopened(lambda: self._pool.write(insert))
        await self._prune_surplus()

    async def claim(
        self,
        now: float,
        limit: int,
        holder: str,
        seconds: float,
        *,
        callers: bool = True,
        skip: Collection[Key] = (),
    ) -> tuple[Key, ...]:
        await self._finish_deletion()  # left by processes that have ended
        return await self._pool.write(
            lambda s: claiming.claim_due(s, now, limit, holder, seconds, callers, skip)
        )

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        left = await self._pool.write(lambda s: queries.mark_delivered(s, replies))
        for key in left:  # it is locked, or unknown
            await self._write_one(queries.MARK_DELIVERED, *key, replies[key])

    @staticmethod
    def _encode_thread(memory: Memory, ciphers: ThreadCiphers) -> Row:
        return encode_thread(memory, ciphers, writes_others=True)

    async def _delete_version(self, session: SqlSession, key: Key, version: int) -> bool:
        for id_, stored_version in await session.select(LOCK_THREAD, *key):
            if stored_version == version:
                await delete_rows(session, [id_], self._keys)
                return True
        return False

    async def _finish_deletion(self) -> None:
        await self._doomed.destroy()

    async def _note_name(self, digest: bytes, at: float) -> None:
        await note_name_locking(self._pool, digest, at)

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        label_of = await self._secret.create_labeler()
        removed = await self._transact_locking(
            lambda s: remove_thread(s, key, expected_version, label_of, event, self._keys)
        )
        return await self._doomed.settle(removed)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        batch = await self._transact_locking(
            lambda s: remove_batch(
                s, tenant, resource, describe_forgotten, self._keys, active_before
            )
        )
        return batch._replace(result=await self._doomed.settle(batch.result))

    async def _transact_locking(self, work: Work[T]) -> T:
        """Run work that locks threads with what they share, again if one more has come."""
        for _ in range(MAX_LOCK_ATTEMPTS - 1):
            with suppress(ThreadCame):
                return await self._pool.transact(work, LONG_TIMEOUT_S)
        return await self._pool.transact(work, LONG_TIMEOUT_S)

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        held = await self._hold_erased(erasures)
        keys = await self._prepare_keys(change.before, change.after)
        commit = SharedCommit(change, None, wakeup, self._generations, [keys])
        row = await self._transact_locking(
            lambda s: commit_erasing(s, change, commit, erasures, held, self._keys)
        )
        count = sum(len(erasure.blanks) for erasure in erasures)
        await self._doomed.destroy()  # of what was told of other threads; the notes' own key stays
        erased = mark_bytes(ForgetResult(observations=count), [None], self._keys)
        return row.add_to(change.after), erased

    async def wait_erased(self) -> None:
        """Wait for keys to be destroyed. The bytes of removed rows stay until the server rewrites
        its tables."""
        await self._doomed.wait_destroyed()

    async def _move(self, work: Work[MoveResult]) -> MoveResult:
        return await self._pool.transact(work, MOVE_TIMEOUT_S)

    async def _write_one(self, sql: str, *parameters: object) -> list[Row]:
        return await self._pool.write(lambda s: s.select(sql, *parameters))
