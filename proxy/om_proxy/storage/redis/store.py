"""Keep memories on a Redis server, which any number of processes may share.

A commit is one script, and so is a load: each is one round trip and one step that nothing interrupts.
Versions come from a counter; a commit compares the version in the script that writes. See
`lua/rows.lua` for where everything is kept, `changes` for what a script does, and `pool` for what
becomes of an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace
from redis.exceptions import ResponseError

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Beginning, Generation, Key, Memory, Message
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.storage.base import (
    Backlog,
    Change,
    EventPage,
    ForgetBatch,
    GenerationEntries,
    GenerationSummary,
    MoveResult,
    NoteErasure,
    Outline,
    Promise,
    ResourceWakeup,
    StoredMessage,
    StoredObservation,
    StoreTotals,
    WebhookState,
    WholeThread,
)
from om_proxy.storage.encoding import clear_cause
from om_proxy.storage.forgetting import create_thread_labeler
from om_proxy.storage.ledger_lines import LedgerBatch, LedgerQuery, LedgerSum
from om_proxy.storage.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.records import AuditRecord, ForgetResult, StoredReceipt
from om_proxy.storage.redis import events as event_rows
from om_proxy.storage.redis import (
    ledger,
    listing,
    queries,
    record_keeping,
    removal,
    schema,
    tenant_move,
)
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.commit import SharedCommit
from om_proxy.storage.redis.generation_removal import drop_generations
from om_proxy.storage.redis.keys import KeyNames
from om_proxy.storage.redis.log_rewriting import (
    REWRITE_INTERVAL_S,
    LogRewriter,
    is_rewrite_pending,
)
from om_proxy.storage.redis.pool import ConnectionPool
from om_proxy.storage.redis.promise import create_promise
from om_proxy.storage.redis.restoring import Restoration
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.totals import add_up_threads

logger = structlog.get_logger("storage")

SECRET_BYTES = 32
# what no request waits for: forgetting, pruning, sums over the store
LONG_TIMEOUT_S = 60.0
MOVE_TIMEOUT_S = 600.0  # of one resource to another tenant


class RedisOptions(NamedTuple):
    """How the store uses its server; `storage` in the configuration says what each means."""

    prefix: str = "om"
    connections: int = 10
    timeout_s: float = 1.0
    durable: bool = True


DEFAULT_OPTIONS = RedisOptions()


class RedisStore:
    """The `Store` protocol on Redis. Call `await RedisStore.open(url)`, and `close()` at the end."""

    def __init__(
        self, pool: ConnectionPool, generations: int | None, rewrite_interval_s: float
    ) -> None:
        self._pool = pool
        self._generations = generations
        self._known_secret: bytes | None = None  # None: not read yet
        self._rewriter = LogRewriter(pool, rewrite_interval_s)

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
    ) -> RedisStore:
        """Open the store on this server. With `create=False`, raise StorageError if it holds nothing
        of om-proxy, and change nothing. `generations`: how many older generations of a log are kept;
        None: all. `on_connection_lost`: called when memories read so far may be no commit's any
        more."""
        pool = await ConnectionPool.open(
            url,
            KeyNames(options.prefix),
            connections=options.connections,
            timeout_s=options.timeout_s,
            must_be_durable=options.durable,
        )
        store = cls(pool, generations, rewrite_interval_s)
        try:
            await pool.write(lambda s: schema.prepare_schema(s, create), LONG_TIMEOUT_S)
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

    async def totals(self, now: float) -> StoreTotals:
        return await self._pool.read(lambda s: add_up_threads(s, now), LONG_TIMEOUT_S)

    async def ping(self) -> None:
        """Draw a version: a server that is full, or read-only, refuses that."""
        await self._pool.write(lambda s: s.call("INCR", s.keys.of_store("version")))

    async def clock(self) -> float:
        seconds, microseconds = await self._pool.read(lambda s: s.call("TIME"))
        return int(seconds) + int(microseconds) / 1_000_000

    async def describe(self) -> Promise:
        row = await self._pool.read(schema.read_schema_row)
        server = self._pool.server  # known since the first connection
        return create_promise(server.durability if server else "none", row.version)

    async def check_schema(self) -> None:
        await self._pool.read(schema.check_schema)

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        [memory] = await self._pool.read(lambda s: queries.select_memories(s, [key]))
        return memory

    async def version(self, key: Key) -> int:
        return await self._pool.read(lambda s: queries.select_version(s, key))

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

        return await self._pool.read(select)

    async def outline(self, key: Key) -> Outline:
        return await self._pool.read(lambda s: queries.select_outline(s, key))

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        found = await self._pool.read(
            lambda s: queries.select_messages(s, key, after, through, limit)
        )
        return tuple(stored.message for stored in found)

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        return await self._pool.read(
            lambda s: queries.select_messages(s, key, after, through, limit, every=True)
        )

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        return await self._pool.read(lambda s: queries.select_by_seq(s, key, seqs))

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        return await self._pool.read(lambda s: queries.select_observations(s, key, after, limit))

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        return await self._pool.read(
            lambda s: queries.select_generation_entries(s, key, after, limit)
        )

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        return await self._pool.read(lambda s: queries.select_generations(s, key, before, limit))

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        return await self._pool.read(lambda s: queries.select_summaries(s, key, before))

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        return await self._pool.read(lambda s: queries.select_beginnings(s, key))

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        return await self._pool.read(lambda s: queries.select_backlog(s, shared_log))

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self._pool.read(
            lambda s: queries.select_other_tails(s, key, threads, messages)
        )

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        return await self._pool.read(
            lambda s: event_rows.select_events(s, tenant, keys, after, limit)
        )

    async def event_position(self, before: int = 0) -> int:
        return await self._pool.read(lambda s: event_rows.select_position(s, before))

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self._pool.read(lambda s: queries.claim_due(s, now, limit))

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        return await self._pool.read(
            lambda s: listing.select_all(s, tenant, resource, cursor, limit)
        )

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self._pool.read(lambda s: listing.select_threads(s, selection, after, limit))

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        return await self._pool.read(lambda s: listing.select_idle(s, before, after, limit))

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        return await self._pool.read(lambda s: listing.select_resources(s, tenant, after, limit))

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        return await self._pool.read(lambda s: listing.select_resource(s, tenant, resource))

    async def webhook_state(self, name: str) -> WebhookState | None:
        return await self._pool.read(lambda s: event_rows.select_webhook(s, name))

    async def delivered_reply(self, key: Key) -> int | None:
        return await self._pool.read(lambda s: queries.select_delivered(s, key))

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        return await self._pool.read(lambda s: ledger.select_sums(s, query), LONG_TIMEOUT_S)

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        return await self._pool.read(
            lambda s: record_keeping.select_audit(s, tenant, before, limit)
        )

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        return await self._pool.read(lambda s: record_keeping.select_receipt(s, receipt_id, now))

    # ── writing ──

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
    ) -> Memory:
        change = Change(before, after, interrupted, events)
        committed, _ = await self.commit_shared(change, None)
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        encode = partial(SharedCommit, thread, shared_log, wakeup, self._generations)
        new_count = len(thread.after.tail) - len(thread.before.tail)
        is_quick = new_count <= MANY_MESSAGES
        commit = encode() if is_quick else await run_off_loop(new_count, encode)
        thread_row, log_row = await self._pool.write(commit.write)
        log_after = shared_log.after if shared_log else None
        if log_after and log_row:
            log_after = replace(log_after, version=log_row.version, row_id=log_row.row_id)
        thread_after = replace(thread.after, version=thread_row.version, row_id=thread_row.row_id)
        return thread_after, log_after

    async def prune_events(self, now: float) -> None:
        await self._pool.write(lambda s: event_rows.prune_old(s, now), LONG_TIMEOUT_S)

    async def prune_records(self, now: float) -> None:
        await self._pool.write(lambda s: record_keeping.prune_records(s, now), LONG_TIMEOUT_S)

    async def prune_ledger(self, now: float) -> None:
        await self._pool.write(lambda s: ledger.delete_old_lines(s, now), LONG_TIMEOUT_S)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        if events:
            await self._pool.write(lambda s: event_rows.add_thread_events(s, key, events))

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        await self._pool.write(lambda s: event_rows.set_webhook(s, name, state))

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

        async def work(session: Session) -> tuple[tuple[Key, ...], bool]:
            claimed = await queries.claim_due(
                session,
                now,
                limit,
                callers=callers,
                skip=skip,
                holder=holder,
                lease_ms=_count_ms(seconds),
            )
            return claimed, await is_rewrite_pending(session)

        claimed, is_pending = await self._pool.write(work)
        if is_pending:
            self._rewriter.start()
        return claimed

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        due = "" if at is None else at

        async def compare_and_set(session: Session) -> bool:
            expected: bytes = b""
            if backlog is not None:
                # first the revision: what is written after it makes the script set nothing
                name = session.keys.of_resource("revision", key.tenant, key.resource)
                expected = await session.call("GET", name) or b"0"
                if await queries.select_backlog(session, key) != backlog:
                    return False
            return bool(await session.run("set_due", *key, due, expected))

        return await self._pool.write(compare_and_set)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        parts = [part for key, seq in replies.items() for part in (*key, seq)]
        await self._pool.write(lambda s: s.run("deliver", len(replies), *parts))

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        lease_ms = _count_ms(seconds)
        return bool(await self._pool.write(lambda s: s.run("lease", *key, holder, lease_ms)))

    async def release(self, key: Key, holder: str) -> None:
        await self._pool.write(lambda s: s.run("lease", *key, holder, ""))

    async def secret(self, proposed: bytes | None = None) -> bytes:
        async def keep_first(session: Session) -> bytes:
            name = session.keys.of_store("secret")
            stored = await session.call("GET", name)
            if stored is None:  # a full server can still be read
                await session.call("SET", name, proposed or os.urandom(SECRET_BYTES), "NX")
                stored = await session.call("GET", name)
            return bytes(stored)

        self._known_secret = await self._pool.write(keep_first)
        return self._known_secret

    async def adopt_secret(self, secret: bytes) -> bool:
        self._known_secret = await self._pool.write(lambda s: s.run("adopt_secret", secret))
        return bool(self._known_secret == secret)

    async def _check_connection(self, session: Session) -> None:
        """Look at what a new connection leads to: a newer program may have changed the schema while
        the server was away, and a server that crashed may have lost the secret that it was given."""
        await schema.check_schema(session)
        if self._known_secret is None:
            return
        name = session.keys.of_store("secret")
        stored = await session.call("GET", name)
        if stored is None:
            with suppress(ResponseError):  # it is full: the next connection tries again
                await session.call("SET", name, self._known_secret, "NX")
                stored = await session.call("GET", name)
        if stored not in (None, self._known_secret):
            logger.error("storage.other_secret", advice="restart all processes of om-proxy")

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        encode = partial(Restoration, thread, over, keeps_row=keeps_row)
        restoration = await run_off_loop(len(thread.messages), encode)
        row = await self._pool.write(restoration.write, LONG_TIMEOUT_S)
        if over:
            self._rewriter.start()
        return replace(thread.memory, version=row.version, row_id=row.row_id)

    async def park(self, key: Key, parked: bool) -> bool:
        """Park or revive a thread. It gets a new version, so that caches read it again."""
        now = await self.clock()

        async def attempt(session: Session) -> bool | None:
            stored = await queries.select_thread_rows(session, [key])
            if key not in stored:
                return False
            version, row, _ = stored[key]
            changed = msgspec.structs.replace(row, parked=parked)
            if not parked:
                state = clear_cause(row.state)
                changed = msgspec.structs.replace(changed, failures=0, retry_at=0.0, state=state)
            changes = Changes()
            changes.expect_version(key, version)
            changes.write_row(key, changed, None if parked else now)
            return True if (await changes.apply(session)).failed is None else None

        return await self._pool.write(lambda s: removal.try_until_applied(lambda: attempt(s)))

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        await self._pool.write(lambda s: ledger.add_batch(s, batch), LONG_TIMEOUT_S)

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        label_of = create_thread_labeler(await self.secret())
        now = await self.clock()
        removed = await self._pool.write(
            lambda s: removal.remove_thread(s, key, expected_version, label_of, event, now),
            LONG_TIMEOUT_S,
        )
        return self._begin_erasure(removed)

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
        return batch._replace(result=self._begin_erasure(batch.result))

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        commit = SharedCommit(change, None, wakeup, self._generations)
        row = await self._pool.write(
            lambda s: removal.commit_erasing(s, change, commit, erasures), LONG_TIMEOUT_S
        )
        count = sum(len(erasure.blanks) for erasure in erasures)
        committed = replace(change.after, version=row.version, row_id=row.row_id)
        return committed, self._begin_erasure(ForgetResult(observations=count))

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        return await self._pool.write(
            lambda s: drop_generations(s, key, expected_version, numbers), LONG_TIMEOUT_S
        )

    def _begin_erasure(self, removed: ForgetResult) -> ForgetResult:
        """Return the result with what is true of Redis's bytes: they have left its memory, and its
        log keeps them until it is rewritten."""
        server = self._pool.server
        if not any(removed.counts.values()) or server is None or not server.has_log:
            return removed
        self._rewriter.start()
        return removed._replace(log="pending")

    async def wait_erased(self) -> None:
        await self._rewriter.wait()

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        await self._pool.write(lambda s: record_keeping.add_audit(s, tuple(records)))

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        await self._pool.write(lambda s: record_keeping.add_receipt(s, receipt))

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        label_of = create_thread_labeler(await self.secret())
        name_conflicts = await self._pool.read(
            lambda s: tenant_move.count_name_conflicts(s, old, new), LONG_TIMEOUT_S
        )
        if name_conflicts:
            return MoveResult(name_conflicts=name_conflicts)
        threads = messages = 0
        names = await self._pool.read(
            lambda s: listing.select_resource_names(s, old), LONG_TIMEOUT_S
        )
        for resource in names:
            move = tenant_move.ResourceMove(old, new, resource, fingerprint, label_of)
            moved = await self._pool.write(move, MOVE_TIMEOUT_S)
            threads += moved.threads
            messages += moved.messages
        await self._pool.write(lambda s: tenant_move.move_rest(s, old, new), LONG_TIMEOUT_S)
        return MoveResult(threads, messages)


def _count_ms(seconds: float) -> int:
    """Return a lease's time as Redis takes it; 0: over at once."""
    return max(0, round(seconds * 1_000))
