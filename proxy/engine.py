"""Opens and closes turns: performs what memory/ decides, between the request and its answer.

`open_turn` reads a request against the thread's memory and says what goes upstream; `close_turn` commits what the turn was.
Until then everything the request implies (a fork, new messages) exists only in a *virtual* memory: a turn that fails leaves
no trace but what the client really said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from proxy.background import Background
from proxy.catalogue import Catalogue
from proxy.errors import Conflict
from proxy.memories import ATTEMPTS, Memories
from proxy.memory import account, blocks, elsewhere, lifecycle, overflow, turns
from proxy.memory.identity import Caller
from proxy.memory.lifecycle import Activate, Asked, Observe, Reflect, Swap
from proxy.memory.model import Item, Memory, Message, hub_of
from proxy.memory.tail import Piece, forwarded
from proxy.memory.transcript import Hints
from proxy.observing import Call
from proxy.prompt import Prompts
from proxy.standing import Standings
from proxy.turn import Turn, aside, shows_everything, standing_reply, stored_through
from proxy.wire import chat
from proxy.wire.chat import ChatRequest
from proxy.wire.excerpt import excerpt
from proxy.wire.reply import Reply

log = structlog.get_logger("turn")

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
    ) -> None:
        self._memories = memories
        self._background = background
        self._prompts = prompts
        self._catalogue = catalogue
        self._clock = clock
        self._standings = Standings(memories, catalogue, secret, clock, background.reading_to)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_turn(
        self,
        caller: Caller,
        request: ChatRequest,
        call: Call,
        hints: Hints,
        longer: Callable[[float], None] = lambda seconds: None,
    ) -> Turn:
        """What goes upstream for this request. `caller.key` is set. Raises OmError; the caller then sends the original."""
        key = caller.key
        assert key is not None  # noqa: S101 — only requests with a thread get here
        scope = caller.scope or call.effective.memory.scope
        call, sent, standing = await self._standings.first(caller, key, request, call, hints, scope)
        stores = caller.mode != "read"
        rewrites = caller.mode != "write" and call.effective.memory.mode != "shadow"
        turn = Turn(
            key,
            call,
            hints,
            request,
            sent,
            standing,
            scope=scope,
            timezone=caller.timezone,
            found_date=standing.memory.render_date,
            stores=stores,
            rewrites=rewrites,
            longer=longer,
        )
        if caller.mode == "read":
            await self._assemble(turn)
            return turn
        if self._quiet(turn):
            self._trouble(turn)
        else:
            await self._act(turn)
        if not rewrites:
            turn.reason = "write-only"
            await self._receipt(turn, None)
            return turn
        await self._assemble(turn)
        return turn

    async def _act(self, turn: Turn) -> None:
        """Perform what is due before forwarding: mostly no model call, at most one wait."""
        limits = turn.call.effective.limits
        waited = False
        while decision := lifecycle.before_forwarding(turn.standing.virtual, limits, self._asked(turn), waited=waited):
            stood = turn.standing
            match decision:
                case Activate(count=count):
                    ids = tuple(c.id for c in turn.standing.virtual.chunks[:count])
                    await self._memories.update(
                        turn.key, partial(lifecycle.activated, ids=ids, now=self._clock()), turn.scope
                    )
                case Swap():
                    # in the log itself: a thread nobody has heard of gets no row before its credential is accepted
                    where = hub_of(turn.key) if turn.standing.virtual.hub else turn.key
                    await self._memories.update(where, partial(lifecycle.swapped, now=self._clock()))
                case Observe() | Reflect():
                    waited = True
                    await self._wait(turn, decision)
            await self._standings.again(turn)
            if turn.standing is stood and not isinstance(decision, Observe | Reflect):
                break  # it changed nothing, and would be decided again for ever
        self._trouble(turn)

    def _quiet(self, turn: Turn) -> bool:
        """Whether certainly nothing is due: mostly."""
        idle, changed = self._found(turn)
        return lifecycle.quiet(turn.standing.virtual, turn.call.effective.limits, idle=idle, provider_changed=changed)

    @staticmethod
    def _trouble(turn: Turn) -> None:
        if turn.standing.memory.trouble.failures:
            turn.reason = "observer-failing"
        elif lifecycle.economises(turn.standing.virtual, turn.call.effective.limits):
            turn.reason = "economy"

    def _found(self, turn: Turn) -> tuple[float, bool]:
        """How the request found its prompt cache."""
        return lifecycle.found(turn.standing.memory, turn.request.model, self._clock())

    def _asked(self, turn: Turn) -> Asked:
        virtual = turn.standing.virtual
        first = blocks.asked([m.mark for m in virtual.tail])
        idle, changed = self._found(turn)
        return Asked(
            coverable=virtual.tail[first - 1].seq if first else virtual.coverage,
            idle=idle,
            provider_changed=changed,
            now=self._clock(),
        )

    async def _wait(self, turn: Turn, decision: Observe | Reflect) -> None:
        """Have it done within the deadline. Only stored messages can be observed: new ones are stored first, but a fork's
        are not before its reply has come; of a fork, what lies before it can be."""
        standing = turn.standing
        if not standing.memory.turns:
            return  # nobody has accepted this caller's credential yet: nothing is stored or asked on its word
        if isinstance(decision, Observe) and standing.rec.cut is None:
            await self._store(turn)
        elif isinstance(decision, Observe) and not stored_through(standing, decision.last):
            turn.reason = "fork-not-waited"
            return
        timeout = turn.call.effective.limits.block_timeout
        turn.longer(timeout)
        log_of_all = isinstance(decision, Reflect) and standing.memory.hub
        where = hub_of(turn.key) if log_of_all else turn.key
        if not await self._background.done_within(where, decision, turn.call, timeout):
            turn.reason = "observer-late"

    async def _store(self, turn: Turn) -> None:
        """What the request brought, as unanswered. Not for a fork: what it takes back stands until its reply has come."""
        if turn.standing.virtual != turn.standing.memory:
            await self._commit(turn, None, None)
            await self._standings.again(turn)

    # ── a prompt that did not fit ────────────────────────────────────────────────────────────────────────────────────

    def can_shorten(self, turn: Turn, *, accepted: bool) -> bool:
        """Whether memory might make the client's own prompt shorter, which the upstream says is too long for the model.

        `accepted`: the refusal shows that the upstream knows the caller, so that a thread's first request, too, may be stored and
        observed on its word.
        """
        virtual, through = turn.standing.virtual, self._may_leave(turn)
        if not (turn.stores and turn.rewrites and (accepted or turn.standing.memory.turns)):
            return False
        if not (overflow.ready(virtual, through) or self._unobserved(turn)):
            return False
        return overflow.can_shrink(virtual, account.received(virtual, turn.sent), through)

    async def shorten(self, turn: Turn) -> bool:
        """Have what may leave the prompt observed, as far as the block step's deadline allows, make all of it active that is there,
        and build the prompt anew. Whether it is shorter than the client's, as it then stands in `turn.body`.

        What a fork brings cannot be observed before its reply has come; what lies before it can be. What is not done in time goes on
        in the background: its messages are stored, so a later request finds it done.
        """
        before = turn.standing.virtual.coverage
        await self._observe_all(turn)
        if ids := overflow.ready(turn.standing.virtual, self._may_leave(turn)):
            await self._memories.update(turn.key, partial(lifecycle.activated, ids=ids, now=self._clock()))
            await self._standings.again(turn)
        if turn.standing.virtual.coverage <= before:
            return False
        turn.body = None
        await self._assemble(turn)
        return turn.body is not None and turn.receipt["tokens-sent"] < turn.receipt["tokens-received"]

    async def _observe_all(self, turn: Turn) -> None:
        ends = asyncio.get_running_loop().time() + turn.call.effective.limits.block_timeout
        due = self._unobserved(turn)
        if due and turn.standing.rec.cut is None:
            await self._store(turn)
        while due and (left := ends - asyncio.get_running_loop().time()) > 0:
            if not await self._background.done_within(turn.key, due, turn.call, left):
                return
            await self._standings.again(turn)
            following = self._unobserved(turn)
            due = following if following and following.after > due.after else None

    def _unobserved(self, turn: Turn) -> Observe | None:
        most = turn.call.effective.limits.observe_at
        return overflow.unobserved(turn.standing.virtual, self._may_leave(turn), most, self._clock())

    def _may_leave(self, turn: Turn) -> int:
        """seq through which messages may be observed now and leave this prompt."""
        standing = turn.standing
        if standing.base is not standing.memory:
            return 0  # a fork behind coverage is written with its reply
        coverable = self._asked(turn).coverable
        return coverable if standing.rec.cut is None else min(coverable, standing.rec.cut)

    # ── the prompt ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _assemble(self, turn: Turn) -> None:
        if turn.standing.virtual.hub:
            await self._tell_of_others(turn)
        virtual, sent = turn.standing.virtual, turn.sent
        told = bool(virtual.log or virtual.others)
        if not told and shows_everything(virtual, sent):
            await self._receipt(turn, None)
            return
        pieces = forwarded(virtual, turn.standing.rec, sent)
        if not told and [p.raw for p in pieces] == list(turn.request.messages):
            await self._receipt(turn, None)
            return
        virtual = self._dated(turn)
        turn.standing = replace(turn.standing, virtual=virtual)
        kept, left_out = account.within(pieces, turn.call.effective.limits.tail_limit)
        prompt = self._prompts.assemble(turn.request, virtual, kept, turn.call)
        turn.body = chat.with_messages(turn.request, prompt.messages)
        turn.status = "degraded" if left_out else "applied"
        turn.reason = "tail-limit" if left_out else turn.reason
        await self._receipt(turn, kept, prompt.tokens)

    async def _tell_of_others(self, turn: Turn) -> None:
        """With what the resource's other threads have said since their notes: told anew only where the prefix changes anyway, so
        that what another thread says does not break this one's prompt cache (behaviour.md 1.6)."""
        virtual = turn.standing.virtual
        if self._keeps_date(turn):
            return
        found = await self._memories.store.elsewhere(turn.key, elsewhere.THREADS, elsewhere.MESSAGES)
        others = elsewhere.told(
            [(self._memories.label(key), [excerpt(m.item.raw) for m in messages]) for key, messages in found]
        )
        # also that there is nothing to tell is kept: else the first word of another thread would change this one's prefix
        told = replace(virtual, others=others, shown=virtual.shared_state, render_date=self._clock())
        turn.standing = replace(turn.standing, virtual=told)

    def _dated(self, turn: Turn) -> Memory:
        """With the moment its dates are told against, and the user's time zone, which moves with it and never alone."""
        virtual, date = turn.standing.virtual, self._render_date(turn)
        moved = date != turn.found_date
        return replace(virtual, render_date=date, timezone=(turn.timezone if moved else None) or virtual.timezone)

    def _render_date(self, turn: Turn) -> float:
        memory = turn.standing.virtual
        return memory.render_date if memory.render_date is not None and self._keeps_date(turn) else self._clock()

    def _keeps_date(self, turn: Turn) -> bool:
        """What the prompt tells of the day and of other threads moves only when the prefix changes anyway, or when the prompt cache
        is certainly cold (behaviour.md 8)."""
        memory = turn.standing.virtual
        if memory.render_date is None:
            return False
        if not turn.stores:
            return True  # what is only read is not remembered, so it cannot move
        previous = turn.standing.memory.turn_at
        if previous is not None and self._clock() - previous > turn.call.effective.limits.cache_lives:
            return False
        return memory.hub is None or memory.shown == memory.shared_state

    async def _receipt(self, turn: Turn, pieces: Sequence[Piece] | None, block: int = 0) -> None:
        virtual, request = turn.standing.virtual, turn.request
        instructions = await self._catalogue.count_instructions(request.instructions, request.model or "")
        received = instructions + account.received(virtual, turn.sent)
        sent = received if pieces is None else instructions + block + account.sent_on(pieces)
        turn.receipt = {
            "tokens-received": received,
            "tokens-sent": sent,
            "pending-tokens": virtual.pending,
            "observation-tokens": virtual.log_tokens,
            "chunks": len(virtual.chunks),
            "generation": virtual.generation,
        }

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close_turn(self, turn: Turn, reply: Reply | None, *, accepted: bool) -> None:
        """Commit the turn. `reply`: what the upstream answered, None if nothing usable came. `accepted`: it answered 2xx.

        A refused or failed request of a fork leaves no trace; of any other its new messages are kept as unanswered, unless
        the upstream refused the caller (then nothing is stored: an unverified credential must not fill the store).
        """
        if not turn.stores:
            return
        item = self._standings.item(turn.key, reply)
        complete = item is not None and reply is not None and reply.complete
        if not accepted or (not complete and turn.standing.rec.cut is not None):
            return
        if await self._commit(turn, item if complete else None, None if complete else item):
            self._background.wake(turn.key if turn.scope == "thread" else hub_of(turn.key), turn.call)

    def holds(self, turn: Turn, reply: Reply) -> bool:
        """Whether there is nothing to close: a retry, answered with the very reply that stands there."""
        standing = turn.standing
        if not reply.complete or not self._memories.stands(standing.memory):
            return False
        stands = standing_reply(standing)
        return stands is not None and stands.raw == reply.message and self._is_warm(turn, standing.memory)

    async def keep_unanswered(self, turn: Turn) -> None:
        """The upstream could not be reached: what the client said is kept, unless it forks."""
        if turn.stores and turn.standing.rec.cut is None:
            await self._commit(turn, None, None)

    async def _commit(self, turn: Turn, reply: Item | None, interrupted: Item | None) -> bool:
        """Reconcile on commit, on top of whoever came first: computed again until no one else has. False: nothing was new."""
        said = reply or interrupted
        async with self._memories.lock(turn.key):
            for _ in range(ATTEMPTS):
                try:
                    standing = await self._standings.settled(turn)
                except Conflict:
                    continue
                overtaken = standing.memory.end != turn.standing.memory.end
                if standing.rec.cut is not None and (reply is None or (turn.broken and overtaken)):
                    return False  # another attempt's reply stands: nothing is superseded but by one that was seen whole
                if reply is not None and (stands := standing_reply(standing)) and stands.fp == reply.fp:
                    if await self._warmed(turn, standing.memory):
                        return False
                    continue
                counted = await self._catalogue.count({0: said.raw} if said else {}, turn.request.model or "")
                after = turns.heard(
                    standing.base,
                    standing.rec,
                    turn.sent,
                    standing.tokens,
                    self._clock(),
                    revived=standing.revived,
                    reply=reply,
                    reply_tokens=counted.get(0, 0),
                )
                if interrupted is None and replace(after, turn_at=standing.memory.turn_at) == standing.memory:
                    return False  # a retry of what is stored already
                after = replace(self._with_date(turn, after), model=turn.request.model)
                left: list[Message] = []
                if interrupted:
                    after, message = aside(after, interrupted, counted[0], self._clock())
                    left = [message]
                try:
                    await self._memories.commit(standing.memory, after, left)
                    return True
                except Conflict:
                    continue
        raise Conflict("the thread is written to faster than this turn could be committed")

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

    async def _warmed(self, turn: Turn, memory: Memory) -> bool:
        """A retry has nothing to add but that it came: written where that matters. False: somebody has committed meanwhile."""
        if self._is_warm(turn, memory):
            return True
        try:
            await self._memories.commit(memory, replace(self._with_date(turn, memory), turn_at=self._clock()))
        except Conflict:
            return False
        return True
