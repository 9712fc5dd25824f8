"""Commits the waiting turns of the spool, in order, once the store can be written again.

An error in the middle of a commit leaves unknown whether it was written. The flusher then compares
the version that the commit was computed from, and the stored memory (memory/transcript/unstored.py).
So each turn is stored exactly once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import structlog
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, KeysAway, StorageError, UnopenedText, Unwritable
from om_proxy.common.running_time import limit_running_time
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.memory.transcript.unstored import find_first_asked_at, merge_unstored
from om_proxy.storage.base import Store
from om_proxy.storage.spooling.breaker import Breaker
from om_proxy.storage.spooling.forgotten_threads import ForgottenThreads
from om_proxy.storage.spooling.spooled_turns import SpooledResource, SpooledTurn, SpooledTurns
from om_proxy.storage.values.changes import Change

logger = structlog.get_logger("storage")

# above what a commit waits for another process's lock, so that its outcome is mostly known
FLUSH_TIMEOUT_S = 15.0
FIRST_RETRY_S = 0.2  # most faults are over at once
RETRY_S = 1.0
MAX_RESOURCES_AT_ONCE = 32  # their commits share a transaction
# A merge conflicts only if a turn of another process came first.
MAX_MERGE_ATTEMPTS = 20


class SpoolFlusher:
    """The background writer of the spool; its owner keeps `flush_forever` running."""

    def __init__(
        self, inner: Store, spool: SpooledTurns, breaker: Breaker, retry_s: float = RETRY_S
    ) -> None:
        self._inner = inner
        self._spool = spool
        self._breaker = breaker
        self._retry_s = retry_s
        self._wanted = asyncio.Event()
        # held for some resources at a time; each time, those that still wait are looked for again
        self._writing = asyncio.Lock()
        # called with the new seq of each waiting message, by its old one, if other writers came
        # first
        self.renumbered: Callable[[Key, Mapping[int, int]], None] = lambda *_: None
        # called with a thread of which waiting turns were dropped because it was forgotten
        self.forgotten: Callable[[Key], None] = lambda _: None
        # the seq of the thread's newest reply that went out to its last byte; 0: not known
        self.delivered_seq: Callable[[Key], int] = lambda _: 0
        # the name of a thread in the event of its forgetting; set again with each new secret
        self.label: Callable[[Key], str] = str
        self._forgotten_threads = ForgottenThreads(inner, self.label)

    def request_flush(self) -> None:
        self._wanted.set()

    def pause(self) -> AbstractAsyncContextManager[object]:
        """Write no waiting turn until the block ends. It begins once those that are being written
        are stored, however many wait."""
        return self._writing

    def record_failure(self, exc: Exception) -> None:
        """Count a failure of the store, and have it tried again."""
        if not self._breaker.has_failed:
            logger.error("storage.failing", error=type(exc.__cause__ or exc).__name__)
        was_open = self._breaker.is_open
        self._breaker.record_failure()
        self._wanted.set()
        if self._breaker.is_open and not was_open:
            logger.error("storage.breaker_open", turns=self._spool.turn_count)
            self._spool.release_replies()

    async def flush_forever(self) -> None:
        """Wait until a flush is wanted, then try until nothing waits."""
        has_flushed = True
        while True:
            await self._wanted.wait()
            retry_s = min(FIRST_RETRY_S, self._retry_s) if has_flushed else self._retry_s
            await asyncio.sleep(retry_s)
            has_flushed = await self.flush()

    async def flush(self) -> bool:
        """Try once, beginning with the oldest turn alone. Return whether nothing is left and the
        store can be written. Two at once take turns."""
        turn_count = self._spool.turn_count
        without_keys: set[Key] = set()
        self._forgotten_threads = ForgottenThreads(self._inner, self.label)
        try:
            async with self._writing:
                await _run_in_time(self._flush_oldest(without_keys))
            while self._list_resources(without_keys):
                async with self._writing:  # whoever waits for it comes first
                    await _await_all(
                        _run_in_time(self._try_resource(key, without_keys))
                        for key in self._list_resources(without_keys)
                    )
        except (StorageError, TimeoutError) as exc:
            self.record_failure(exc)
            return False
        self._breaker.record_success()
        if without_keys:
            return False
        if self._wanted.is_set():  # else another flush was first
            self._wanted.clear()
            logger.warning("storage.recovered", turns=turn_count)
        return True

    def _list_resources(self, without_keys: set[Key]) -> list[Key]:
        waiting = [key for key in self._spool.resources if key not in without_keys]
        return waiting[:MAX_RESOURCES_AT_ONCE]

    async def _flush_oldest(self, without_keys: set[Key]) -> None:
        if shared_log_key := next(iter(self._spool.resources), None):
            try:
                await self._try_resource(shared_log_key, without_keys)
            except (StorageError, asyncio.CancelledError):
                # a fault in one resource's rows must not keep the others waiting
                self._spool.move_to_end(shared_log_key)
                raise
        else:
            with suppress(KeysAway):  # the store itself could be written
                await self._inner.ping()
        self._breaker.record_success()

    async def _try_resource(self, shared_log_key: Key, without_keys: set[Key]) -> None:
        """Flush a resource, or add it to those whose keys cannot be written or read now: the store
        is not to blame, and others are written meanwhile."""
        try:
            await self._flush_resource(shared_log_key)
        except KeysAway:
            without_keys.add(shared_log_key)

    async def _flush_resource(self, shared_log_key: Key) -> None:
        resource = self._spool.resources.get(shared_log_key)
        if resource is None:
            return  # dropped or forgotten since the flush began
        try:
            # they may be dropped while one of them is written
            while resource.turns and self._spool.resources.get(shared_log_key) is resource:
                if resource.is_append_only:
                    await self._append_threads(resource)
                else:
                    await self._flush_turn(resource)
        except (Unwritable, UnopenedText, ValueError, TypeError) as exc:
            # this turn would fail for ever, and keep all later turns waiting
            if self._spool.resources.get(shared_log_key) is resource:
                self._spool.drop(shared_log_key, type(exc).__name__)
        if self._spool.resources.get(shared_log_key) is resource:
            self._spool.remove_resource(shared_log_key)

    async def _flush_turn(self, resource: SpooledResource) -> None:
        """Commit the oldest turn of the resource. If another writer came first, or has forgotten a
        thread that has no row, mark the resource as append-only instead."""
        turn = resource.turns[0]
        key = turn.thread.after.key
        if await self._is_first_turn_forgotten(resource, key):
            resource.is_append_only = True
            return
        if self._spool.find_resource(key) is not resource or turn not in resource.turns:
            return  # dropped or forgotten meanwhile
        rebased_turn = resource.rebase_oldest(turn)
        try:
            committed = await rebased_turn.commit_to(self._inner)
        except Unwritable:
            raise
        except Conflict:
            written = await self._find_committed(rebased_turn)
            if written is None:
                resource.is_append_only = True
                return
            committed = written
        # the turn may have been dropped meanwhile
        if resource.turns and resource.turns[0] is turn:
            resource.remove_oldest(committed)

    async def _is_first_turn_forgotten(self, resource: SpooledResource, key: Key) -> bool:
        """Return whether the thread, of which nothing was stored when its turns began to wait, has
        been forgotten by another process since."""
        stored_before = resource.base[key]
        if stored_before.version or resource.is_other_database:
            return False
        asked_at = find_first_asked_at(stored_before, resource.current[key])
        # Asked before the events: a thread that stands is compared with what waits. If it is
        # forgotten from now on, the commit finds that.
        if await self._inner.version(key):
            return False
        forgotten_at = await self._forgotten_threads.find_time(key)
        return asked_at is not None and forgotten_at is not None and forgotten_at >= asked_at

    async def _find_committed(self, turn: SpooledTurn) -> tuple[Memory, Memory | None] | None:
        """Return the stored memories if an attempt that seemed to fail was written; None: another
        writer came first."""
        stored = [await self._inner.load(change.after.key) for change in turn.changes]
        is_written = all(
            _is_same_content(memory, change.after)
            for memory, change in zip(stored, turn.changes, strict=True)
        )
        if not is_written:
            return None
        return stored[0], stored[1] if len(stored) > 1 else None

    # ── after other writers ───────────────────────────────────────────────────────────────────────

    async def _append_threads(self, resource: SpooledResource) -> None:
        """Merge the waiting turns into what is stored, thread by thread: other writers came first,
        or the store opened another database."""
        for key in resource.threads:
            while (spooled := resource.current.get(key)) is not None:
                new_seqs = await self._merge_thread(resource, resource.base[key], spooled)
                if resource.current.get(key) is spooled:  # no turn was added meanwhile
                    resource.remove_thread(key)
                    # once: a mark that moved already would move again
                    self.renumbered(key, new_seqs)
        resource.clear_without_threads()

    async def _merge_thread(
        self, resource: SpooledResource, stored_before: Memory, spooled: Memory
    ) -> Mapping[int, int]:
        """Merge the waiting turns of one thread, again whenever another process wrote it meanwhile:
        that is no failure of the store. Return the seqs of their messages in the store, by those
        they had in the spool."""
        for _ in range(MAX_MERGE_ATTEMPTS):
            try:
                return await self._try_merge(resource, stored_before, spooled)
            except Conflict:
                continue
        return await self._try_merge(resource, stored_before, spooled)

    async def _try_merge(
        self, resource: SpooledResource, stored_before: Memory, spooled: Memory
    ) -> Mapping[int, int]:
        key = spooled.key
        stored_now = await self._inner.load(key)
        forgotten_at = None
        if not resource.is_other_database:
            forgotten_at = await self._find_forgotten(stored_now, stored_before, spooled)
        asked_at = find_first_asked_at(stored_before, spooled)
        merged = merge_unstored(
            stored_now,
            stored_before,
            spooled,
            forgotten_at=forgotten_at,
            delivered_seq=self.delivered_seq(key),
            is_other_database=resource.is_other_database,
        )
        after = merged.after
        # what was asked before that time is not in it; whatever is forgotten later makes a conflict
        began_at = asked_at if forgotten_at is None else forgotten_at
        if resource.is_other_database:
            began_at = None
        if after is not stored_now and after.scope == "thread":
            await self._inner.commit(stored_now, after, merged.not_live, (), began_at)
        elif after is not stored_now:
            shared_log = await self._inner.load(resource_key(key))
            await self._inner.commit_shared(
                Change(stored_now, after, merged.not_live, (), began_at),
                None if shared_log.version else Change(shared_log, shared_log),
            )
        if forgotten_at is not None:
            self.forgotten(key)
        return merged.new_seqs

    async def _find_forgotten(
        self, stored_now: Memory, stored_before: Memory, spooled: Memory
    ) -> float | None:
        """Return when the thread was forgotten after the oldest waiting turn was asked; None: it was
        not. Of a row that is gone, with no event of it left, that is after all of them. A row that
        stands was not forgotten, whatever was asked for: its removal may have failed."""
        if stored_before.row_id and stored_now.row_id == stored_before.row_id:
            return None
        forgotten_at = await self._forgotten_threads.find_time(spooled.key)
        asked_at = find_first_asked_at(stored_before, spooled)
        if stored_before.row_id:
            return math.inf if forgotten_at is None else forgotten_at
        if forgotten_at is None or asked_at is None or forgotten_at < asked_at:
            return None
        return forgotten_at


async def _run_in_time(work: Coroutine[Any, Any, None]) -> None:
    async with limit_running_time(FLUSH_TIMEOUT_S):
        await work


async def _await_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all, then raise the first failure."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _is_same_content(one: Memory, other: Memory) -> bool:
    """Return whether the two are equal except for what the store itself sets."""
    return replace(one, version=0, row_id=0, due_at=None) == replace(
        other, version=0, row_id=0, due_at=None
    )
