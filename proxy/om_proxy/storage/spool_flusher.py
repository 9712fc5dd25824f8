"""Commits the turns that wait in the spool, in order, once the store can be written again.

An error in the middle of a commit leaves unknown whether it was written. The version it was
computed from tells, and what then stands in the store (memory/transcript/unstored.py). So each turn
is stored exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import structlog
from msgspec.structs import replace

from om_proxy.errors import Conflict, StorageError, Unwritable
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.memory.transcript.unstored import append_unstored, number_unstored
from om_proxy.storage.base import Change, Store
from om_proxy.storage.breaker import Breaker
from om_proxy.storage.spooled_resource import SpooledResource, Step
from om_proxy.storage.spooled_turns import SpooledTurns

log = structlog.get_logger("storage")

# above what a commit waits for another process's lock, so that its outcome is mostly known
FLUSH_TIMEOUT_S = 15.0
FIRST_RETRY_S = 0.2  # most faults are over at once
RETRY_S = 1.0
MAX_RESOURCES_AT_ONCE = 32  # their commits share a transaction


class SpoolFlusher:
    """`flush_forever` has to run beside the store."""

    def __init__(
        self, inner: Store, spool: SpooledTurns, breaker: Breaker, retry_s: float = RETRY_S
    ) -> None:
        self._inner = inner
        self._spool = spool
        self._breaker = breaker
        self._retry_s = retry_s
        self._wanted = asyncio.Event()
        self._flushing = asyncio.Lock()
        # called with the new seq of each message that waited, by its old one, where other writers
        # came first
        self.renumbered: Callable[[Key, Mapping[int, int]], None] = lambda *_: None

    def request_flush(self) -> None:
        self._wanted.set()

    def record_failure(self, exc: Exception) -> None:
        """Count a failure of the store, which is tried again from now on."""
        if not self._breaker.has_failed:
            log.error("storage.failing", error=type(exc.__cause__ or exc).__name__)
        was_open = self._breaker.is_open
        self._breaker.record_failure()
        self._wanted.set()
        if self._breaker.is_open and not was_open:
            log.error("storage.breaker_open", turns=self._spool.turns)
            self._spool.release_waiters()

    async def flush_forever(self) -> None:
        """Wait until a flush is wanted, then try until nothing waits."""
        is_well = True
        while True:
            await self._wanted.wait()
            await asyncio.sleep(min(FIRST_RETRY_S, self._retry_s) if is_well else self._retry_s)
            is_well = await self.flush()

    async def flush(self) -> bool:
        """Try once, beginning with the oldest turn alone. Return whether nothing is left and the
        store can be written."""
        async with self._flushing:
            count = self._spool.turns
            try:
                await _run_in_time(self._flush_oldest())
                while shared_logs := list(self._spool.resources)[:MAX_RESOURCES_AT_ONCE]:
                    await _await_all(
                        _run_in_time(self._flush_resource(shared_log)) for shared_log in shared_logs
                    )
            except (StorageError, TimeoutError) as exc:
                self.record_failure(exc)
                return False
            self._breaker.record_success()
            self._wanted.clear()
            log.warning("storage.recovered", turns=count)
            return True

    async def _flush_oldest(self) -> None:
        if shared_log := next(iter(self._spool.resources), None):
            await self._flush_resource(shared_log)
        else:
            await self._inner.ping()
        self._breaker.record_success()

    async def _flush_resource(self, shared_log: Key) -> None:
        resource = self._spool.resources.get(shared_log)
        if resource is None:
            return  # given up, or forgotten, since the flush looked
        try:
            while resource.steps:
                if resource.must_append:
                    await self._append_threads(resource)
                else:
                    await self._flush_step(resource)
        except (Unwritable, ValueError, TypeError) as exc:
            # it would fail for ever, and keep all behind it waiting
            if self._spool.resources.get(shared_log) is resource:
                self._spool.drop(shared_log, type(exc).__name__)
        if self._spool.resources.get(shared_log) is resource:
            self._spool.release(shared_log)

    async def _flush_step(self, resource: SpooledResource) -> None:
        step = resource.steps[0]
        rebased = resource.rebase_oldest(step)
        try:
            committed = await rebased.commit_to(self._inner)
        except Unwritable:
            raise
        except Conflict:
            found = await self._find_committed(rebased)
            if found is None:
                resource.must_append = True
                return
            committed = found
        if resource.steps and resource.steps[0] is step:  # it may have been given up meanwhile
            resource.remove_oldest(committed)

    async def _find_committed(self, step: Step) -> tuple[Memory, Memory | None] | None:
        """Return what stands in the store if an attempt that seemed to fail was written; None:
        another writer came first."""
        found = [await self._inner.load(change.after.key) for change in step.changes]
        if not all(
            _is_same(stood, change.after) for stood, change in zip(found, step.changes, strict=True)
        ):
            return None
        return found[0], found[1] if len(found) > 1 else None

    # ── behind what other writers stored ──────────────────────────────────────────────────────────

    async def _append_threads(self, resource: SpooledResource) -> None:
        """Append the messages that wait to what stands in the store, thread by thread: other
        writers came first, or the database is another one."""
        for key in resource.threads:
            while (spooled := resource.current.get(key)) is not None:
                numbers = await self._append_thread(
                    resource.base[key], spooled, is_other_database=resource.is_other_database
                )
                if resource.current.get(key) is spooled:  # no turn was added meanwhile
                    resource.remove_thread(key)
                    # once: a mark that moved already would move again
                    self.renumbered(key, numbers)
        resource.remove_rest()

    async def _append_thread(
        self, base: Memory, spooled: Memory, *, is_other_database: bool
    ) -> Mapping[int, int]:
        """Return the seqs of its messages in the store, by those they had in the spool."""
        key = spooled.key
        stood = await self._inner.load(key)
        if not stood.version and base.version and not is_other_database:
            return {}  # forgotten: nothing may bring it back
        after = append_unstored(stood, base, spooled)
        if after is not stood and after.scope == "thread":
            await self._inner.commit(stood, after)
        elif after is not stood:
            shared_log = await self._inner.load(resource_key(key))
            await self._inner.commit_shared(
                Change(stood, after), None if shared_log.version else Change(shared_log, shared_log)
            )
        return number_unstored(stood, base, spooled)


async def _run_in_time(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(FLUSH_TIMEOUT_S):
        await work


async def _await_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raise the first failure once all have ended."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _is_same(one: Memory, other: Memory) -> bool:
    """Whether the two are equal but for what the store itself sets."""
    return replace(one, version=0, row_id=0, due_at=None) == replace(
        other, version=0, row_id=0, due_at=None
    )
