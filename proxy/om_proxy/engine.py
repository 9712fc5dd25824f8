"""Opens and closes turns: performs what memory/ decides, between the request and its answer.

`open_turn` reads a request against the thread's memory and says what goes upstream; `close_turn` commits what the turn was.
Until then everything the request implies (a fork, new messages) exists only in a *virtual* memory: a turn that fails leaves
no trace but what the client really said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from om_proxy.assembly import Assembly
from om_proxy.background import Background
from om_proxy.catalogue import Catalogue
from om_proxy.deferred import DeferredTurn, DeferredTurns
from om_proxy.deliveries import Deliveries
from om_proxy.errors import StorageError, Unwritable
from om_proxy.fitting import Fitting
from om_proxy.memories import Memories, persistently
from om_proxy.memory import gathering, lifecycle, missing_notes, turns
from om_proxy.memory.identity import Caller
from om_proxy.memory.lifecycle import Activate, Asked, Observe, Reflect, Swap
from om_proxy.memory.model import Item, Key, Memory, Message, hub_of
from om_proxy.memory.thresholds import Limits
from om_proxy.memory.transcript import Hints
from om_proxy.observing import Call, settle
from om_proxy.off_loop import MANY_MESSAGES, off_loop
from om_proxy.prompt import Prompts
from om_proxy.recounting import Recounting
from om_proxy.standing import Standings
from om_proxy.turn import Standing, TakenForSideRequest, Turn, aside, standing_reply, stored_through
from om_proxy.wire.chat import ChatRequest, offers_tools
from om_proxy.wire.reply import Reply

log = structlog.get_logger("turn")

MAX_SETTLED_BY_REQUEST = (
    32  # threads whose notes one request may make active, a commit each; the rest is the background's
)
HELD_S = 5.0  # for which a reply's end waits for a turn that is tried again
LATELY = 60.0  # seconds after a turn in which a retry tells nothing new about the provider's prompt cache, which lives minutes


class Engine:
    """The one performer of turns. Everything it is given is shared with background.py; it holds no state of its own."""

    def __init__(
        self,
        memories: Memories,
        background: Background,
        prompts: Prompts,
        catalogue: Catalogue,
        secret: bytes,
        clock: Callable[[], float] = time.time,
        deferred: DeferredTurns | None = None,
    ) -> None:
        self._memories = memories
        self._deferred = DeferredTurns() if deferred is None else deferred
        self._background = background
        self._catalogue = catalogue
        self._clock = clock
        self.deliveries = Deliveries(memories.store, clock, memories.is_degraded)
        memories.on_forget += [self.deliveries.drop, self._deferred.forget]
        self._standings = standings = Standings(
            memories, catalogue, secret, clock, background.reading_to, self.deliveries
        )
        self._assembly = Assembly(memories, prompts, catalogue, clock)
        self._recounting = Recounting(memories, catalogue)
        self.fitting = Fitting(memories, background, standings, clock, store=self._store, build=self._assembly.build)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_turn(
        self,
        caller: Caller,
        request: ChatRequest,
        call: Call,
        hints: Hints,
        longer: Callable[[float], None] = lambda seconds: None,
    ) -> Turn:
        """What goes upstream for this request. `caller.key` is set. Raises OmError; the caller then sends the original. So it does for
        TakenForSideRequest, which is no error."""
        if caller.key and self._deferred.holds(caller.key):
            await self._deferred.settle(caller.key)
        turn = await self._stand(caller, request, call, hints, longer)
        if caller.mode == "read":
            await self._assembly.build(turn)
            return turn
        if turn.rewrites and turn.standing.virtual.hub:
            await self._settle_cold(turn)
        if self._quiet(turn):
            await self._explain(turn)
        else:
            await self._act(turn)
        if not turn.rewrites:
            turn.reason = "write-only"
            await self._assembly.receipt(turn)
        else:
            await self._assembly.build(turn)
        if self._memories.is_degraded(turn.key):
            turn.status, turn.reason = "degraded", "storage"
        return turn

    async def _stand(
        self, caller: Caller, request: ChatRequest, call: Call, hints: Hints, longer: Callable[[float], None]
    ) -> Turn:
        key = caller.key
        assert key is not None  # noqa: S101 — only requests with a thread get here
        scope = caller.scope or call.effective.memory.scope
        forgets = self._memories.forgets
        call, sent, standing = await self._standings.first(caller, key, request, call, hints, scope)
        stores = caller.mode != "read"
        rewrites = caller.mode != "write" and call.effective.memory.mode != "shadow"
        return Turn(
            key,
            call,
            hints,
            request,
            sent,
            standing,
            scope=scope,
            case=standing.rec.case,
            timezone=caller.timezone,
            found_date=standing.memory.render_date,
            born=standing.memory.born,
            forgets=forgets,
            stores=stores,
            rewrites=rewrites,
            longer=longer,
        )

    async def _settle_cold(self, turn: Turn) -> None:
        """Before a thread's first prompt, and after a pause that its prompt cache did not survive, what is ready of the resource's
        notes enters the log, where no other thread loses its cache by that
        (docs/spec/behaviour.md#scopes). Mostly the background has done so."""
        memory, limits, now = turn.standing.memory, turn.call.effective.limits, self._clock()
        if memory.turn_at is not None and now < memory.turn_at + limits.cache_lives:
            return
        waiting = await self._memories.store.waiting(hub_of(turn.key))
        ready = gathering.cold_with_notes(waiting, limits, now)
        # a fork may take back what its own notes are about
        keys = [key for key in ready if key != turn.key or turn.standing.rec.cut is None]
        if await settle(self._memories, keys[:MAX_SETTLED_BY_REQUEST], now):
            await self._standings.again(turn)

    async def _act(self, turn: Turn) -> None:
        """Perform what is due before forwarding: mostly no model call, at most one wait."""
        limits = turn.call.effective.limits
        waited = False
        while decision := await self._due(turn, limits, waited=waited):
            stood = turn.standing
            match decision:
                case Activate(count=count):
                    ids = tuple(c.id for c in turn.standing.virtual.chunks[:count])
                    activated = partial(lifecycle.activated, ids=ids, now=self._clock())
                    await self._memories.update(turn.key, activated, turn.scope, born=turn.born)
                case Swap():
                    # in the log itself: a thread nobody has heard of gets no row before its credential is accepted
                    hub = turn.standing.virtual.hub
                    where, born = (hub_of(turn.key), hub.born) if hub else (turn.key, turn.born)
                    await self._memories.update(where, partial(lifecycle.swapped, now=self._clock()), born=born)
                case Observe() | Reflect():
                    if self._memories.is_degraded(turn.key):
                        break  # nobody pays for what cannot be kept
                    waited = True
                    await self._wait(turn, decision)
            await self._standings.again(turn)
            if turn.standing is stood and not isinstance(decision, Observe | Reflect):
                break  # it changed nothing, and would be decided again for ever
        await self._explain(turn, waited=waited)

    async def _due(self, turn: Turn, limits: Limits, *, waited: bool) -> Activate | Swap | Observe | Reflect | None:
        virtual = turn.standing.virtual
        return await off_loop(
            len(virtual.tail),
            lambda: lifecycle.before_forwarding(virtual, limits, self._asked(turn), waited=waited),
        )

    def _quiet(self, turn: Turn) -> bool:
        """Whether certainly nothing is due: mostly."""
        idle, changed = self._found(turn)
        return lifecycle.quiet(turn.standing.virtual, turn.call.effective.limits, idle=idle, provider_changed=changed)

    async def _explain(self, turn: Turn, *, waited: bool = False) -> None:
        """Say why notes that could be expected are not there."""
        virtual, limits = turn.standing.virtual, turn.call.effective.limits
        if virtual.trouble.failures:
            asked = self._asked(turn)
            turn.reason = await off_loop(
                len(virtual.tail), lambda: missing_notes.explain_failure(virtual, limits, asked, waited=waited)
            )
        elif lifecycle.economises(virtual, limits):
            turn.reason = "economy"

    def _found(self, turn: Turn) -> tuple[float, bool]:
        """How the request found its prompt cache."""
        return lifecycle.found(turn.standing.memory, turn.request.model, self._clock())

    def _asked(self, turn: Turn) -> Asked:
        idle, changed = self._found(turn)
        return Asked(lifecycle.coverable(turn.standing.virtual), idle, provider_changed=changed, now=self._clock())

    async def _wait(self, turn: Turn, decision: Observe | Reflect) -> None:
        """Have it done within the deadline. Only stored messages can be observed: new ones are stored first, but a fork's
        are not before its reply has come; of a fork, what lies before it can be."""
        standing = turn.standing
        if not standing.memory.turns:
            return  # nobody has accepted this caller's credential yet: nothing is stored or asked on its word
        if (
            isinstance(decision, Observe)
            and standing.rec.cut is not None
            and not stored_through(standing, decision.last)
        ):
            turn.reason = "fork-not-waited"
            return
        log_of_all = isinstance(decision, Reflect) and standing.memory.hub
        where = hub_of(turn.key) if log_of_all else turn.key
        timeout = turn.call.effective.limits.block_timeout
        if not (left := self._background.patience_left(where, timeout)):
            turn.reason = "observer-late"  # another request has waited for this very call: nobody does so twice
            return
        if isinstance(decision, Observe) and standing.rec.cut is None:
            await self._store(turn)
        turn.longer(left)
        if not await self._background.done_within(where, decision, turn.work, timeout):
            turn.reason = "observer-late"

    async def _store(self, turn: Turn) -> None:
        """What the request brought, as unanswered. Not for a fork: what it takes back stands until its reply has come."""
        if turn.standing.virtual != turn.standing.memory:
            await self._commit(turn, None, None)
            await self._standings.again(turn)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close_turn(self, turn: Turn, reply: Reply | None, *, accepted: bool) -> None:
        """Commit the turn. `reply`: what the upstream answered, None if nothing usable came. `accepted`: it answered 2xx.

        A refused or failed request of a fork leaves no trace; of any other its new messages are kept as unanswered, unless
        the upstream refused the caller (then nothing is stored: an unverified credential must not fill the store).
        """
        if not turn.stores:
            return
        item = await self._standings.item(turn.key, reply)
        complete = item is not None and reply is not None and reply.complete
        if not accepted or (not complete and turn.standing.rec.cut is not None):
            return
        committed = await self._commit(turn, item if complete else None, None if complete else item)
        if committed is not None:
            self._wake(turn)
            self._recount(turn, committed)

    def _wake(self, turn: Turn) -> None:
        self._background.wake(turn.key if turn.scope == "thread" else hub_of(turn.key), turn.work)

    def _recount(self, turn: Turn, memory: Memory) -> None:
        """Have the tail counted anew, after the reply, where another model's encoding counted it."""
        if self._recounting.is_due(memory):
            self._background.hold(self._recounting.recount(memory, then=partial(self._wake, turn)))

    async def close_missed(
        self,
        caller: Caller,
        request: ChatRequest,
        call: Call,
        hints: Hints,
        came_at: float,
        reply: Reply | None,
        *,
        delivered: bool,
    ) -> None:
        """Commit the turn of a request whose memory could not be read when it came, and whose bytes went up as they were.

        What it does not show may have been said since. Then it takes nothing back; a client that sends all it holds says it again.
        `delivered`: as far as is known, its reply went out whole: the same words again are then new ones.
        """
        try:
            turn = await self._stand(caller, request, call, hints, lambda seconds: None)
        except TakenForSideRequest:
            return
        said_at = turn.standing.memory.turn_at
        if turn.standing.rec.cut is not None and said_at is not None and said_at >= came_at:
            return
        turn.delivered = delivered
        await self.close_turn(turn, reply, accepted=True)

    async def commit_or_defer(self, key: Key, commit: Callable[[], Awaitable[None]], held_bytes: int) -> None:
        """Until the turn is stored, or waits in memory and it is no use waiting for it."""
        if not self._deferred.holds(key):
            try:
                await commit()
            except Unwritable:
                raise
            except StorageError:
                pass  # deferred below
            else:
                await self._memories.wait_until_stored(key)
                return
        turn = self.defer(key, commit, held_bytes)
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_S):
                await turn.released.wait()
                await self._memories.wait_until_stored(key)

    def now(self) -> float:
        return self._clock()

    def defer(self, key: Key, commit: Callable[[], Awaitable[None]], held_bytes: int) -> DeferredTurn:
        """Have it tried until it is stored."""
        return self._deferred.keep(key, commit, held_bytes)

    def holds(self, turn: Turn, reply: Reply) -> bool:
        """Whether there is nothing to close: a retry, answered with the very reply that stands there."""
        standing = turn.standing
        if not reply.complete or not self._memories.stands(standing.memory):
            return False
        stands = standing_reply(standing)
        found = stands is not None and stands.raw == reply.message and self._is_warm(turn, standing.memory)
        if found:
            self._number_reply(turn, standing.memory)
        return found

    def note_delivery(self, turn: Turn) -> None:
        """The reply went out to its last byte. Remembered once it is committed too, for a lone message alone: no other request
        that comes again can be meant as a new one."""
        turn.delivered = True
        if turn.reply_seq and turn.sent.count == 1:
            self.deliveries.record(turn.key, turn.reply_seq)

    def _number_reply(self, turn: Turn, memory: Memory) -> None:
        turn.reply_seq = memory.end
        if turn.delivered:  # the commit took longer than the reply could be held for
            self.note_delivery(turn)

    async def keep_unanswered(self, turn: Turn) -> None:
        """The upstream could not be reached: what the client said is kept, unless it forks."""
        if turn.stores and turn.standing.rec.cut is None:
            await self._commit(turn, None, None)

    async def _commit(self, turn: Turn, reply: Item | None, interrupted: Item | None) -> Memory | None:
        """Reconcile on commit, on top of whoever came first: computed again until no one else has. None: nothing was new."""
        async with self._memories.lock(turn.key):
            return await persistently(partial(self._attempt, turn, reply, interrupted))

    async def _attempt(self, turn: Turn, reply: Item | None, interrupted: Item | None) -> Memory | None:
        standing = await self._standings.settled(turn)
        if self._standings.is_forgotten(turn, standing.memory):
            self._memories.tell_forgotten(turn.key)
            return None
        overtaken = standing.memory.end != turn.standing.memory.end
        if standing.rec.cut is not None and (reply is None or (turn.broken and overtaken)):
            return None  # another attempt's reply stands: nothing is superseded but by one that was seen whole
        if reply is not None and (stands := standing_reply(standing)) and stands.fp == reply.fp:
            await self._warm(turn, standing.memory)
            self._number_reply(turn, standing.memory)
            return None
        after, left = await self._heard(turn, standing, reply, interrupted)
        if not left and replace(after, turn_at=standing.memory.turn_at) == standing.memory:
            return None  # a retry of what is stored already
        offers = offers_tools(turn.request)
        after = replace(self._with_date(turn, after), model=turn.request.model, offers_tools=offers)
        committed = await self._memories.commit(standing.memory, after, left)
        turn.born = turn.born or committed.born
        if reply is not None and after.tail and after.tail[-1].item.fp == reply.fp:
            self._number_reply(turn, after)
        return committed

    async def _heard(
        self, turn: Turn, standing: Standing, reply: Item | None, interrupted: Item | None
    ) -> tuple[Memory, list[Message]]:
        """The memory with the turn in it, and beside it a reply that was interrupted."""
        said, now, model = reply or interrupted, self._clock(), turn.request.model or ""
        counted = await self._catalogue.count({0: said.raw} if said else {}, model)
        encoding = self._catalogue.encoding(model) if counted or standing.tokens else ""
        rec = standing.rec
        many = len(rec.new) + len(rec.swaps)
        hear = partial(
            turns.heard,
            standing.base,
            rec,
            turn.sent,
            standing.tokens,
            now,
            revived=standing.revived,
            reply=reply,
            reply_tokens=counted.get(0, 0),
            encoding=encoding,
        )
        after = hear() if many <= MANY_MESSAGES else await off_loop(many, hear)
        if not interrupted:
            return after, []
        after, message = aside(after, interrupted, counted[0], now, encoding)
        return after, [message]

    @staticmethod
    def _with_date(turn: Turn, after: Memory) -> Memory:
        """With the render date and zone this prompt was built with, unless it had none or the prefix has changed since."""
        opened = turn.standing.virtual
        # beside an equal log: what is told of other threads may be of one that has been forgotten since
        same = after.log == opened.log and after.hub == opened.hub
        if same and (opened.log or opened.hub):
            told = replace(after, others=opened.others, shown=opened.shown) if after.hub else after
            return replace(told, render_date=opened.render_date, timezone=opened.timezone)
        return replace(after, timezone=turn.timezone or after.timezone)

    def _is_warm(self, turn: Turn, memory: Memory) -> bool:
        """Whether the memory knows as well as we that the provider's cache is warm, and what day the prompt told."""
        lately = memory.turn_at is not None and self._clock() - memory.turn_at <= LATELY
        return lately and self._with_date(turn, memory).render_date == memory.render_date

    async def _warm(self, turn: Turn, memory: Memory) -> None:
        """A retry has nothing to add but that it came: written where that matters."""
        if not self._is_warm(turn, memory):
            await self._memories.commit(memory, replace(self._with_date(turn, memory), turn_at=self._clock()))
