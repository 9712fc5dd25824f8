"""A store in front of one that may be unable to write: a turn that was acknowledged is not lost while the process lives.

The first commit of a thread that fails goes into a bounded spool in memory, and so do all that follow it, in order. What is read of
the thread from then on is store *and* spool. In the background the oldest change is tried again, once a second; when the store is back,
all are committed in order. An error in the middle of a commit leaves unknown whether it was written: the version it was computed from
tells, and what then stands in the store (memory/rebasing.py). So each turn is stored exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from om_proxy.errors import Conflict, StorageError, Unwritable
from om_proxy.memory.model import Key, Memory, Message, Observation, hub_of
from om_proxy.memory.rebasing import append_unstored, number_unstored
from om_proxy.storage.base import Change, Forgotten, Outline, Stir, Store
from om_proxy.storage.breaker import Breaker
from om_proxy.storage.passing import PassingStore
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooled import SpooledResource, Step

log = structlog.get_logger("storage")

COMMIT_TIMEOUT_S = 4.5  # below the 5 s for which a reply's end waits: whoever goes on then is in the spool
FLUSH_TIMEOUT_S = 15.0  # above what a commit waits for another process's lock, so that its outcome is mostly known
FIRST_RETRY_S = 0.2  # most faults are over at once
RETRY_S = 1.0
FLUSHED_AT_ONCE = 32  # resources: their commits share a transaction
LAST_FLUSH_S = 3.0  # at the end of the process


class SpoolingStore(PassingStore):
    """`flush_forever` has to run beside it. `label` names a thread in a log."""

    def __init__(
        self,
        inner: Store,
        budget: SpoolBudget | None = None,
        *,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._inner = inner
        self._budget = budget or SpoolBudget()
        self._commit_timeout_s = commit_timeout_s
        self._retry_s = retry_s
        self._breaker = Breaker()
        self._resources: dict[Key, SpooledResource] = {}  # by hub, the oldest first
        self._versions = 0
        self._cannot_read = False
        self._is_ending = False
        self._is_closed = False
        self._wanted = asyncio.Event()
        self._flushing = asyncio.Lock()
        self.label: Callable[[Key], str | None] = lambda _: None
        # told the new seq of each message that waited, by its old one, where others have written meanwhile
        self.renumbered: Callable[[Key, Mapping[int, int]], None] = lambda *_: None

    @property
    def inner(self) -> Store:
        return self._inner

    @property
    def waiting_turns(self) -> int:
        return sum(len(resource.steps) for resource in self._resources.values())

    @property
    def is_failing(self) -> bool:
        """Whether the newest attempt failed, or anything waits."""
        return self._is_closed or self._cannot_read or self._breaker.has_failed or bool(self._resources)

    def is_degraded(self, key: Key) -> bool:
        """Whether what is said in this thread now waits in memory, or can not be compared with what is stored."""
        return self._cannot_read or self._breaker.is_open or (bool(self._resources) and hub_of(key) in self._resources)

    async def wait_until_stored(self, key: Key) -> None:
        """Not while the breaker is open: the reply goes on then."""
        while self._resources and not (self._is_ending or self._breaker.is_open):
            if not (resource := self._resources.get(hub_of(key))):
                return
            await resource.released.wait()

    async def ping(self) -> None:
        """Also fails while anything waits to be written."""
        if self._resources or self._breaker.has_failed:
            raise StorageError(f"the store cannot be written; {self.waiting_turns} turns wait in memory")
        await super().ping()
        self._cannot_read = False

    def let_go(self) -> None:
        """The process ends: nobody waits for what is not stored yet."""
        self._is_ending = True
        self._release_all()

    async def close(self) -> None:
        """Once more all that waits is tried; what cannot be written is lost with the process, and told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_S):
                if self._resources:
                    await self.flush()
        self._is_closed = True
        self.drop_all("Stopped")
        await super().close()

    def drop_all(self, cause: str) -> None:
        """Give up what waits; the log says whose."""
        for hub in list(self._resources):
            self._drop(hub, cause)

    # ── reading: store and spool ─────────────────────────────────────────────────────────────────────────────────────

    def _spooled(self, key: Key) -> SpooledResource | None:
        resource = self._resources.get(hub_of(key)) if self._resources else None
        return resource if resource and key in resource.current else None

    async def load(self, key: Key) -> Memory:
        if not (spooled := self._spooled(key)):
            try:
                found = await self._inner.load(key)
            except StorageError:
                self._cannot_read = True
                raise
            self._cannot_read = False
            spooled = self._spooled(key)  # it may have been while we read
            if not spooled:
                return found
        return spooled.current[key]

    async def version(self, key: Key) -> int:
        if self._resources and (spooled := self._spooled(key)):
            return spooled.current[key].version
        try:
            found = await self._inner.version(key)
        except StorageError:
            self._cannot_read = True
            raise
        self._cannot_read = False
        return found

    async def outline(self, key: Key) -> Outline:
        found = await super().outline(key)
        spooled = self._spooled(key)
        return spooled.lay_over_outline(key, found) if spooled else found

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        if not (spooled := self._spooled(key)):
            return await super().messages(key, after, through, limit)
        current = spooled.current[key]
        covered = current.coverage if through is None else min(through, current.coverage)
        older = await super().messages(key, after, covered, limit) if after < covered else ()
        newer = [m for m in current.tail if m.seq > after and (through is None or m.seq <= through)]
        return (*older, *newer)[:limit]

    async def by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        found = await super().by_seq(key, seqs)
        if not (spooled := self._spooled(key)):
            return found
        held = spooled.lay_over_messages(key, {m.seq: m for m in found})
        return tuple(held[seq] for seq in sorted(set(seqs)) if seq in held)

    async def generations(self, key: Key, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        found = await super().generations(key, before)
        spooled = self._spooled(key)
        return spooled.lay_over_generations(key, before, found) if spooled else found

    async def elsewhere(self, key: Key, threads: int, messages: int) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        found = await super().elsewhere(key, threads, messages)
        if not (resource := self._resources.get(hub_of(key))):
            return found
        memories = [resource.current[k] for k in resource.threads if k != key]
        latest = sorted((m for m in memories if m.tail), key=lambda m: m.turn_at or 0.0, reverse=True)
        spooled = [(m.key, m.tail[-messages:]) for m in latest if m.scope == "resource"]
        known = {m.key for m in memories}
        return (*spooled, *(told for told in found if told[0] not in known))[:threads]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        return (await self._write_or_spool(Step(Change(before, after, aside))))[0]

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        return await self._write_or_spool(Step(thread, hub, stir, is_shared=True))

    async def forget(self, key: Key) -> Forgotten:
        """What waits goes first: nothing may bring the thread back."""
        if resource := self._resources.get(hub_of(key)):
            resource.forget(key)
            if not resource.threads:
                self._release(hub_of(key))
        return await super().forget(key)

    async def _write_or_spool(self, step: Step) -> tuple[Memory, Memory | None]:
        if self._is_closed:
            raise StorageError("the store is closed")
        if self._breaker.is_open or (self._resources and hub_of(step.thread.after.key) in self._resources):
            return self._spool(step)
        if step.thread.before.version < 0 or (step.hub and step.hub.before.version < 0):
            raise Conflict("what waited has been stored since; load it again")
        try:
            async with asyncio.timeout(self._commit_timeout_s):
                written = await self._write(step)
        except (Conflict, Unwritable):
            raise
        except (StorageError, TimeoutError) as exc:
            self._record_failure(exc)
            return self._spool(step)
        self._breaker.record_success()
        return written

    async def _write(self, step: Step) -> tuple[Memory, Memory | None]:
        if step.is_shared:
            return await self._inner.commit_shared(step.thread, step.hub, step.stir)
        return await self._inner.commit(*step.thread), None

    def _spool(self, step: Step) -> tuple[Memory, Memory | None]:
        hub = hub_of(step.thread.after.key)
        resource = self._resources.get(hub) or SpooledResource()
        self._versions -= 1
        thread, log_after, size = resource.add(step, self._versions)
        self._resources[hub] = resource
        self._wanted.set()
        self._budget.charge(hub, size, partial(self._drop, hub))
        return thread, log_after

    def _drop(self, hub: Key, cause: str = "SpoolFull") -> None:
        """Give up the turns of this resource: what the log says is all that is left of them."""
        resource = self._resources[hub]
        for key in resource.threads:
            turns = sum(step.thread.after.key == key for step in resource.steps)
            log.error("memory.uncommitted", error=cause, thread=self.label(key), turns=turns)
        self._release(hub)

    def _release(self, hub: Key) -> None:
        if resource := self._resources.pop(hub, None):
            resource.released.set()
        self._budget.release(hub)

    def _record_failure(self, exc: Exception) -> None:
        if not self._breaker.has_failed:
            log.error("storage.failing", error=type(exc.__cause__ or exc).__name__)
        was_open = self._breaker.is_open
        self._breaker.record_failure()
        self._wanted.set()
        if self._breaker.is_open and not was_open:
            log.error("storage.breaker_open", turns=self.waiting_turns)
            self._release_all()

    def _release_all(self) -> None:
        for resource in self._resources.values():
            resource.released.set()

    # ── committing what waits ────────────────────────────────────────────────────────────────────────────────────────

    async def flush_forever(self) -> None:
        """Wait until something is in the spool, then try until nothing is."""
        is_well = True
        while True:
            await self._wanted.wait()
            await asyncio.sleep(min(FIRST_RETRY_S, self._retry_s) if is_well else self._retry_s)
            is_well = await self.flush()

    async def flush(self) -> bool:
        """One attempt, begun with the oldest turn alone: whether nothing is left and the store can be written."""
        async with self._flushing:
            count = self.waiting_turns
            try:
                await self._within_time(self._flush_oldest())
                while hubs := list(self._resources)[:FLUSHED_AT_ONCE]:
                    await _await_all(self._within_time(self._flush_resource(hub)) for hub in hubs)
            except (StorageError, TimeoutError) as exc:
                self._record_failure(exc)
                return False
            self._breaker.record_success()
            self._wanted.clear()
            log.warning("storage.recovered", turns=count)
            return True

    def mark_moved(self) -> None:
        """The store behind is another database: what was stored before the turns that wait may not be there."""
        for resource in self._resources.values():
            resource.has_moved = resource.is_elsewhere = True

    async def _within_time(self, work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await work

    async def _flush_oldest(self) -> None:
        if hub := next(iter(self._resources), None):
            await self._flush_resource(hub)
        else:
            await self._inner.ping()
        self._breaker.record_success()

    async def _flush_resource(self, hub: Key) -> None:
        resource = self._resources.get(hub)
        if resource is None:
            return  # given up, or forgotten, since the flush looked
        try:
            while resource.steps:
                await (self._append_threads(resource) if resource.has_moved else self._flush_step(resource))
        except (Unwritable, ValueError, TypeError) as exc:  # nothing would ever come of it, and all behind it waits
            if self._resources.get(hub) is resource:
                self._drop(hub, type(exc).__name__)
        if self._resources.get(hub) is resource:
            self._release(hub)

    async def _flush_step(self, resource: SpooledResource) -> None:
        step = resource.steps[0]
        grounded = resource.ground(step)
        try:
            committed = await self._write(grounded)
        except Unwritable:
            raise
        except Conflict:
            found = await self._find_committed(grounded)
            if found is None:
                resource.has_moved = True
                return
            committed = found
        if resource.steps and resource.steps[0] is step:  # it may have been given up meanwhile
            resource.advance(committed)

    async def _find_committed(self, step: Step) -> tuple[Memory, Memory | None] | None:
        """What stands where an attempt that seemed to fail was written all the same; None: somebody else has written."""
        found = [await self._inner.load(change.after.key) for change in step.changes]
        if not all(_is_same(stood, change.after) for stood, change in zip(found, step.changes, strict=True)):
            return None
        return found[0], found[1] if len(found) > 1 else None

    async def _append_threads(self, resource: SpooledResource) -> None:
        """Others have written, or the ground is gone: what was said goes on behind what stands, thread by thread."""
        for key in resource.threads:
            while (spooled := resource.current.get(key)) is not None:
                numbers = await self._append_thread(resource.base[key], spooled, is_elsewhere=resource.is_elsewhere)
                if resource.current.get(key) is spooled:  # nothing was said meanwhile
                    resource.settle(key)
                    self.renumbered(key, numbers)  # once: a mark that moved already would move again
        resource.settle_rest()

    async def _append_thread(self, base: Memory, spooled: Memory, *, is_elsewhere: bool) -> Mapping[int, int]:
        """The numbers that its messages got in the store, by those they had here."""
        key = spooled.key
        stood = await self._inner.load(key)
        if not stood.version and base.version and not is_elsewhere:
            return {}  # forgotten: nothing may bring it back
        after = append_unstored(stood, base, spooled)
        if after is not stood and after.scope == "thread":
            await self._inner.commit(stood, after)
        elif after is not stood:
            hub = await self._inner.load(hub_of(key))
            await self._inner.commit_shared(Change(stood, after), None if hub.version else Change(hub, hub))
        return number_unstored(stood, base, spooled)


async def _await_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raise the first failure once all have ended."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _is_same(one: Memory, other: Memory) -> bool:
    """Whether the two are equal but for what the store itself sets."""
    return replace(one, version=0, born=0, due=None) == replace(other, version=0, born=0, due=None)
