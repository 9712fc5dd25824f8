"""Keep memories on a Redis server, which any number of processes may share: say for how long each
method of the contract may take. What it does is in the files beside.

A commit is one script, and so is a load: each is one round trip and one step that nothing interrupts.
Versions come from a counter; a commit compares the version in the script that writes. See
`lua/rows.lua` for where everything is kept, `changes` for what a script does, and `pool` for what
becomes of an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple

import structlog
from redis.exceptions import ResponseError

from om_proxy.common.errors import Conflict
from om_proxy.common.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.encryption.key_store import DoomedKeys, KeyRotation, SeparateKeys
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.forwarding_store import Method, P, T
from om_proxy.storage.promises import create_redis_promise
from om_proxy.storage.redis import (
    claiming,
    encryption,
    listing,
    moving,
    queries,
    record_keeping,
    removal,
    server,
    thread_rows,
)
from om_proxy.storage.redis import commit as commit_rows
from om_proxy.storage.redis import events as event_rows
from om_proxy.storage.redis.commit import SharedCommit
from om_proxy.storage.redis.keys import KeyNames
from om_proxy.storage.redis.log_rewriting import REWRITE_INTERVAL_S, LogRewriter, is_rewrite_pending
from om_proxy.storage.redis.pool import ConnectionPool, Work
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared import forgetting
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S, MOVE_TIMEOUT_S
from om_proxy.storage.shared.newest_passages import SearchedWithoutIndex
from om_proxy.storage.shared.rekeying import MovingResource
from om_proxy.storage.store_secret import StoreSecret
from om_proxy.storage.values.changes import (
    Change,
    ForgetBatch,
    MoveResult,
    NoteErasure,
    ResourceWakeup,
)
from om_proxy.storage.values.records import ForgetResult
from om_proxy.storage.values.stored_rows import WholeThread

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

logger = structlog.get_logger("storage")


class RedisOptions(NamedTuple):
    """How the store uses its server; `storage` in the configuration says what each means."""

    prefix: str = "om"
    connections: int = 10
    timeout_s: float = 1.0
    durable: bool = True


DEFAULT_OPTIONS = RedisOptions()


def make_read(
    work: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], timeout_s: float | None = None
) -> Method[P, T]:
    """Return a method that does this reading on a connection, again if a text does not open."""

    async def read(self: RedisStore, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._read(lambda session: work(session, *args, **options), timeout_s)

    return read


def make_write(
    work: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], timeout_s: float | None = None
) -> Method[P, T]:
    """Return a method that does this writing on a connection."""

    async def write(self: RedisStore, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._pool.write(lambda session: work(session, *args, **options), timeout_s)

    return write


class RedisStore(SearchedWithoutIndex):
    """The `Store` protocol on Redis. Call `await RedisStore.open(url)`, and `close()` at the end."""

    def __init__(
        self,
        pool: ConnectionPool,
        key_store_id: str | None,
        generations: int | None,
        rewrite_interval_s: float,
    ) -> None:
        self._pool = pool
        self._keys = pool.keyring
        self._key_store_id = key_store_id
        self._generations = generations
        self._rewriter = LogRewriter(pool, rewrite_interval_s)
        self._doomed = DoomedKeys(self._keys.separate, self)
        self._secret = StoreSecret(self._keep_secret, self._adopt_secret)
        self.key_rotation = KeyRotation(self._keys, self)

    @classmethod
    async def open(
        cls,
        url: str,
        options: RedisOptions = DEFAULT_OPTIONS,
        *,
        generations: int | None = None,
        create: bool = True,
        on_connection_lost: Callable[[], None] = lambda: None,
        rewrite_interval_s: float = REWRITE_INTERVAL_S,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
        moves_keys: bool = False,
    ) -> RedisStore:
        """Open the store on this server. With `create=False`, raise StorageError if it holds nothing
        of om-proxy, and change nothing. `generations`: how many older generations of a log are kept;
        None: all. `on_connection_lost`: called when memories read so far may be no commit's any
        more. `masters`: the master keys that its text is encrypted with; None: none. `separate`:
        where its keys are; None: in the database. The store closes it. `moves_keys`: keys that are
        in the database may be moved."""
        pool = await ConnectionPool.open(
            url,
            KeyNames(options.prefix),
            Keyring(encryption.select_wrapped_keys, masters),
            connections=options.connections,
            timeout_s=options.timeout_s,
            must_be_durable=options.durable,
        )
        try:
            await pool.write(lambda s: server.prepare_schema(s, create), LONG_TIMEOUT_S)
            key_store_id = await pool.write(
                lambda s: encryption.admit(s, separate, moves_keys=moves_keys),
                LONG_TIMEOUT_S,
            )
            pool.keyring.separate = separate
            store = cls(pool, key_store_id, generations, rewrite_interval_s)
            if create:
                await store._rewriter.start_if_pending()
        except BaseException:
            await pool.close()
            raise
        pool.check_connection = store._check_connection
        pool.on_loss = on_connection_lost
        return store

    async def close(self) -> None:
        await self._rewriter.close()
        await self._pool.close()
        self._keys.close()
        if self._keys.separate:
            await self._keys.separate.close()

    async def ping(self) -> None:
        """Draw a version: a server that is full, or read-only, refuses that."""
        await self._pool.write(lambda s: s.call("INCR", s.keys.of_store("version")))
        if self._keys.separate:
            await self._keys.separate.ping()

    async def clock(self) -> float:
        seconds, microseconds = await self._pool.read(lambda s: s.call("TIME"))
        return int(seconds) + int(microseconds) / 1_000_000

    async def describe(self) -> Promise:
        row = await self._pool.read(server.read_schema_row)
        state = self._pool.server  # known since the first connection
        return create_redis_promise(
            state.durability if state else "none",
            row.version,
            is_encrypted=self._keys.masters is not None,
            has_separate_keys=self._keys.separate is not None,
        )

    check_schema = make_read(server.check_schema)
    totals = make_read(listing.add_up_threads, LONG_TIMEOUT_S)

    # ── reading ──

    async def _read(self, work: Work[T], timeout_s: float | None = None) -> T:
        return await self._keys.retry_unopened(lambda: self._pool.read(work, timeout_s))

    async def load(self, key: Key) -> Memory:
        [memory] = await self._read(lambda s: queries.select_memories(s, [key]))
        return memory

    async def refresh(self, held: Memory) -> Memory:
        [memory] = await self._select_newest(held)
        return memory

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        newest = await self._select_newest(thread, shared_log)
        return newest[0], newest[1]

    async def _select_newest(self, *held: Memory) -> tuple[Memory, ...]:
        losses = self._pool.loss_count

        async def select(session: Session) -> tuple[Memory, ...]:
            # this session may be of another server than the one that `held` was read from
            is_known = losses == self._pool.loss_count
            known = held if is_known else [Memory(key=memory.key) for memory in held]
            return await queries.select_newest(session, known)

        return await self._read(select)

    version = make_read(queries.select_version)
    delivered_reply = make_read(queries.select_delivered)
    outline = make_read(thread_rows.select_outline)
    messages = make_read(thread_rows.select_messages)
    stored_messages = make_read(thread_rows.select_stored_messages)
    messages_by_seq = make_read(thread_rows.select_by_seq)
    observations = make_read(thread_rows.select_observations)
    generations = make_read(thread_rows.select_generations)
    generation_summaries = make_read(thread_rows.select_summaries)
    generation_entries = make_read(thread_rows.select_generation_entries)
    beginnings = make_read(thread_rows.select_beginnings)
    other_thread_tails = make_read(thread_rows.select_other_tails)
    resource_backlog = make_read(claiming.select_backlog)
    due_threads = make_read(claiming.select_due)
    threads = make_read(listing.select_all)
    find_threads = make_read(listing.select_threads)
    idle_threads = make_read(listing.select_idle)
    resources = make_read(listing.select_resources)
    resource = make_read(listing.select_resource)
    events = make_read(event_rows.select_events)
    event_position = make_read(event_rows.select_position)
    webhook_state = make_read(event_rows.select_webhook)
    sum_ledger = make_read(record_keeping.select_sums, LONG_TIMEOUT_S)
    audit = make_read(record_keeping.select_audit)
    receipt = make_read(record_keeping.select_receipt)

    # ── writing ──

    set_due = make_write(claiming.set_due)
    lease = make_write(claiming.take_lease)
    release = make_write(claiming.release)
    set_webhook_state = make_write(event_rows.set_webhook)
    add_audit = make_write(record_keeping.add_audit)
    add_receipt = make_write(record_keeping.add_receipt)
    add_to_ledger = make_write(record_keeping.add_batch, LONG_TIMEOUT_S)
    drop_generations = make_write(commit_rows.drop_generations, LONG_TIMEOUT_S)

    def _prepare_keys(self, before: Memory, after: Memory) -> Awaitable[CommitKeys]:
        return self._keys.prepare_commit(
            before,
            after,
            lambda: self._pool.read(lambda s: encryption.hold_key(s, before)),
        )

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        change = Change(before, after, interrupted, events, began_at)
        committed, _ = await self.commit_shared(change, None)
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        changes = [thread, shared_log] if shared_log else [thread]
        keys = [await self._prepare_keys(change.before, change.after) for change in changes]
        first_turn = await self._secret.find_first_turn(thread)
        encode = partial(
            SharedCommit, thread, shared_log, wakeup, self._generations, keys, first_turn
        )
        new_count = len(thread.after.tail) - len(thread.before.tail)
        is_quick = new_count <= MANY_MESSAGES
        commit = encode() if is_quick else await run_off_loop(new_count, encode)
        try:
            thread_row, log_row = await self._pool.write(commit.write)
        except Conflict:
            for change in changes:
                self._keys.forget_row(change.before.row_id)
            raise
        for row, row_keys in zip((thread_row, log_row), keys, strict=False):
            if row:
                self._keys.note_row(row.row_id, row.version, row_keys.key_id)
        log_after = shared_log.after if shared_log else None
        if log_after and log_row:
            log_after = log_row.add_to(log_after)
        return thread_row.add_to(thread.after), log_after

    async def prune(self, now: float) -> None:
        await self._pool.write(lambda s: event_rows.prune_old(s, now), LONG_TIMEOUT_S)
        await self._pool.write(lambda s: record_keeping.prune_records(s, now), LONG_TIMEOUT_S)
        await self._doomed.sweep()
        await self._pool.write(lambda s: record_keeping.delete_old_lines(s, now), LONG_TIMEOUT_S)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        if events:
            add = partial(event_rows.add_thread_events, key=key, events=events)
            await self._keys.retry_unopened(lambda: self._pool.write(add))

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
        """Return `Store.claim`. Who looks for work also goes on with what a process that has ended
        had to erase."""
        await self._doomed.destroy()

        async def work(session: Session) -> tuple[tuple[Key, ...], bool]:
            claimed = await claiming.claim_due(
                session,
                now,
                limit,
                callers=callers,
                skip=skip,
                holder=holder,
                seconds=seconds,
            )
            return claimed, await is_rewrite_pending(session)

        claimed, is_pending = await self._pool.write(work)
        if is_pending:
            self._rewriter.start()
        return claimed

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        parts = [part for key, seq in replies.items() for part in (*key, seq)]
        await self._pool.write(lambda s: s.run("deliver", len(replies), *parts))

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return await self._secret.read(proposed)

    async def adopt_secret(self, secret: bytes) -> bool:
        return await self._secret.adopt(secret)

    _keep_secret = make_write(encryption.keep_secret)
    _adopt_secret = make_write(encryption.adopt_secret)
    # as `KeyRows`
    list_doomed_keys = make_read(encryption.list_doomed_keys)
    clear_doomed = make_write(encryption.clear_doomed)
    select_named = make_read(encryption.select_named, LONG_TIMEOUT_S)
    select_beside = make_read(encryption.select_beside, LONG_TIMEOUT_S)
    clear_beside = make_write(encryption.clear_beside, LONG_TIMEOUT_S)
    rewrap_beside = make_write(encryption.rewrap_beside, LONG_TIMEOUT_S)
    finish_beside = make_write(encryption.finish_beside, LONG_TIMEOUT_S)

    async def _check_connection(self, session: Session) -> None:
        """Look at what a new connection leads to: a newer program may have changed the schema while
        the server was away, and a server that crashed may have lost the secret that it was given."""
        await server.check_schema(session)
        await encryption.readmit(session, self._key_store_id)
        known = self._secret.known
        if known is None:
            return
        stored: bytes | None = None
        with suppress(ResponseError):  # it is full: the next connection tries again
            stored = await encryption.keep_secret(session, known)
        if stored not in (None, known):
            logger.error("storage.other_secret", advice="restart all processes of om-proxy")

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        keys = await self._keys.write_new(self._keys.plan_restoration(thread.memory))
        encode = partial(moving.Restoration, thread, over, keys, keeps_row=keeps_row)
        restoration = await run_off_loop(len(thread.messages), encode)
        row = await self._pool.write(restoration.write, LONG_TIMEOUT_S)
        if over:
            self._rewriter.start()
            await self._doomed.destroy()
        self._keys.note_row(row.row_id, row.version, keys.key_id)
        return row.add_to(thread.memory)

    async def note_forgotten(self, key: Key, at: float) -> None:
        digest, *_ = await self._secret.digest_names(key)
        arguments = (digest, at, forgetting.MAX_FORGOTTEN_NAMES)
        await self._pool.write(lambda s: s.run("note_forgotten", *arguments), LONG_TIMEOUT_S)

    async def forgotten_at(self, key: Key) -> float | None:
        digests = await self._secret.digest_names(key)
        return await self._pool.read(lambda s: queries.select_forgotten_at(s, digests))

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        label_of = await self._secret.create_labeler()
        now = await self.clock()
        removed = await self._pool.write(
            lambda s: removal.remove_thread(s, key, expected_version, label_of, event, now),
            LONG_TIMEOUT_S,
        )
        return await self._begin_erasure(removed)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        batch = await self._pool.write(
            lambda s: removal.remove_batch(s, tenant, resource, describe_forgotten, active_before),
            LONG_TIMEOUT_S,
        )
        return batch._replace(result=await self._begin_erasure(batch.result))

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        keys = await self._prepare_keys(change.before, change.after)
        commit = SharedCommit(change, None, wakeup, self._generations, [keys])
        row = await self._pool.write(
            lambda s: commit_rows.commit_erasing(s, change, commit, erasures),
            LONG_TIMEOUT_S,
        )
        self._keys.note_row(row.row_id, row.version, keys.key_id)
        count = sum(len(erasure.blanks) for erasure in erasures)
        # the notes' own key stays
        return row.add_to(change.after), await self._begin_erasure(ForgetResult(observations=count))

    async def _begin_erasure(self, removed: ForgetResult) -> ForgetResult:
        """Return the result with what is true of Redis's bytes: they have left its memory, and its
        log keeps them until it is rewritten, or until their keys are destroyed elsewhere."""
        server = self._pool.server
        if any(removed.counts.values()) and server is not None and server.has_log:
            self._rewriter.start()
            removed = removed._replace(log="pending")
        return await self._doomed.settle(removed)

    async def wait_erased(self) -> None:
        await self._rewriter.wait()
        await self._doomed.wait_destroyed()

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes, str], bytes | None]
    ) -> MoveResult:
        label_of = await self._secret.create_labeler()
        name_conflicts = await self._pool.read(
            lambda s: moving.count_name_conflicts(s, old, new), LONG_TIMEOUT_S
        )
        if name_conflicts:
            return MoveResult(name_conflicts=name_conflicts)
        threads = messages = 0
        names = await self._pool.read(
            lambda s: listing.select_resource_names(s, old), LONG_TIMEOUT_S
        )
        for resource in names:
            move = moving.ResourceMove(MovingResource(old, new, resource, fingerprint, label_of))
            moved = await self._pool.write(move, MOVE_TIMEOUT_S)
            threads += moved.threads
            messages += moved.messages
        await self._pool.write(lambda s: moving.move_rest(s, old, new), LONG_TIMEOUT_S)
        return MoveResult(threads, messages)
