"""Opens and closes turns: performs what memory/ decides, between the request and its answer.

`open_turn` reads a request against the thread's memory and says what goes upstream; `close_turn` commits what the turn was.
Until then everything the request implies (a fork, new messages) exists only in a *virtual* memory: a turn that fails leaves
no trace but what the client really said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from proxy.background import Background
from proxy.catalogue import Catalogue
from proxy.errors import Conflict
from proxy.memories import ATTEMPTS, Memories
from proxy.memory import account, blocks, lifecycle, turns
from proxy.memory.identity import Caller, fingerprint_key
from proxy.memory.lifecycle import Activate, Asked, Observe, Reflect, Swap
from proxy.memory.model import PER_MESSAGE, Item, Key, Memory, Message, chained
from proxy.memory.tail import Piece, forwarded
from proxy.memory.transcript import Hints, Known, NeedOutline, Reconciled, Sent, reconcile
from proxy.observing import Call
from proxy.prompt import Prompts
from proxy.wire import chat
from proxy.wire.chat import ChatRequest
from proxy.wire.reply import Reply

log = structlog.get_logger("turn")


class Standing(Struct, frozen=True):
    """A request as it stands against a memory."""

    memory: Memory  # as committed
    base: Memory  # rolled back to where the request's branch leaves it
    rec: Reconciled
    revived: Mapping[int, Message]
    tokens: Mapping[int, int]  # payload tokens of what is new, by index in what was sent
    virtual: Memory  # with everything the request implies


@dataclass(slots=True)
class Turn:
    """One request and its reply, as far as memory goes; `receipt` becomes the X-OM-* headers."""

    key: Key
    call: Call
    hints: Hints
    request: ChatRequest
    sent: Sent
    standing: Standing
    status: str = "raw"
    reason: str | None = None
    body: bytes | None = None  # the rewritten request; None: the original bytes go upstream
    timezone: str | None = None  # the client's, where it names one
    stores: bool = True
    longer: Callable[[float], None] = lambda seconds: (
        None
    )  # tells who waits for the turn that an observation is waited for
    receipt: dict[str, int | str] = field(default_factory=dict)


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
        self._secret = secret
        self._clock = clock

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
        memory = await self._memories.load(key)
        sent = self._sent(request, memory)
        standing = await self._stand(memory, sent, hints, request.model)
        stores = caller.mode != "read"
        turn = Turn(key, call, hints, request, sent, standing, timezone=caller.timezone, stores=stores, longer=longer)
        if caller.mode == "read":
            await self._assemble(turn)
            return turn
        if self._quiet(turn):
            self._trouble(turn)
        else:
            await self._act(turn)
        if caller.mode == "write" or call.effective.memory.mode == "shadow":
            turn.reason = "write-only"
            await self._receipt(turn, None)
            return turn
        await self._assemble(turn)
        return turn

    def _sent(self, request: ChatRequest, memory: Memory) -> Sent:
        return Sent.of(request.messages, partial(chat.item, key=self._fingerprint_key(memory.key)), memory.views)

    def _fingerprint_key(self, key: Key) -> bytes:
        return fingerprint_key(self._secret, key.tenant)

    async def _stand(
        self, memory: Memory, sent: Sent, hints: Hints, model: str | None, rec: Reconciled | None = None
    ) -> Standing:
        """Reconcile with the memory (or take `rec`, already merged with it)."""
        if rec is None:
            rec = await self._reconcile(memory, sent, hints)
        behind = rec.cut is not None and rec.cut < memory.coverage
        base = await self._on_branch(memory, rec) if behind else memory
        revived = {m.seq: m for m in await self._memories.store.by_seq(memory.key, rec.revive)} if rec.revive else {}
        uncounted = {*rec.new, *(index for _, index in rec.swaps)}
        tokens = await self._catalogue.count({i: sent.raws[i] for i in uncounted}, model or "") if uncounted else {}
        virtual = turns.heard(base, rec, sent, tokens, self._clock(), revived=revived)
        return Standing(memory, base, rec, revived, tokens, virtual)

    async def _reconcile(self, memory: Memory, sent: Sent, hints: Hints) -> Reconciled:
        fixed = max(memory.chunked_to, self._background.reading_to(memory.key))
        rec = reconcile(Known.of(memory, fixed=fixed), sent, hints)
        if isinstance(rec, NeedOutline):
            outline = await self._memories.store.outline(memory.key)
            rec = reconcile(Known.of(memory, fixed=fixed, live=outline.live, dead=outline.dead), sent, hints)
            if isinstance(rec, NeedOutline):
                raise Conflict("the thread changed while its outline was read; the next request finds it settled")
        return rec

    async def _on_branch(self, memory: Memory, rec: Reconciled) -> Memory:
        """The memory rolled back, for the request forks behind coverage: memory follows the branch (behaviour.md 3)."""
        assert rec.cut is not None  # noqa: S101 — that is what forking is
        store, key = self._memories.store, memory.key
        older = await store.generations(key, memory.generation)
        live = (await store.outline(key)).live
        entries = lifecycle.fallback(memory, rec.cut, older, {m.seq: m.chain for m in live})
        reach = lifecycle.reach(entries)
        covered = [m for m in live if m.seq <= reach]
        tail = await store.messages(key, reach)
        before = len(covered), sum(m.tokens for m in covered) + PER_MESSAGE * len(covered)
        return lifecycle.rolled_back(memory, rec.cut, entries, covered, tail, before, self._clock())

    async def _act(self, turn: Turn) -> None:
        """Perform what is due before forwarding: mostly no model call, at most one wait."""
        limits = turn.call.effective.limits
        waited = False
        while decision := lifecycle.before_forwarding(turn.standing.virtual, limits, self._asked(turn), waited=waited):
            match decision:
                case Activate(count=count):
                    ids = tuple(c.id for c in turn.standing.virtual.chunks[:count])
                    await self._memories.update(turn.key, partial(lifecycle.activated, ids=ids, now=self._clock()))
                case Swap():
                    await self._memories.update(turn.key, partial(lifecycle.swapped, now=self._clock()))
                case Observe() | Reflect():
                    waited = True
                    await self._wait(turn, decision)
            await self._stand_again(turn)
        self._trouble(turn)

    def _quiet(self, turn: Turn) -> bool:
        """Whether certainly nothing is due: mostly."""
        idle, changed = self._found(turn)
        return lifecycle.quiet(turn.standing.virtual, turn.call.effective.limits, idle=idle, provider_changed=changed)

    @staticmethod
    def _trouble(turn: Turn) -> None:
        if turn.standing.memory.trouble.failures:
            turn.reason = "observer-failing"

    def _found(self, turn: Turn) -> tuple[float, bool]:
        """How the request found its thread: seconds since the last turn, and whether another model answered that one."""
        memory = turn.standing.memory
        idle = self._clock() - memory.turn_at if memory.turn_at is not None else 0.0
        return idle, memory.model is not None and memory.model != turn.request.model

    async def _stand_again(self, turn: Turn) -> None:
        memory = await self._memories.latest(turn.key)
        rec = turn.standing.rec if memory.end == turn.standing.memory.end else None
        if rec is None:
            turn.sent = self._sent(turn.request, memory)
        turn.standing = await self._stand(memory, turn.sent, turn.hints, turn.request.model, rec)

    def _asked(self, turn: Turn) -> Asked:
        virtual = turn.standing.virtual
        first = blocks.asked([m.mark for m in virtual.tail])
        idle, changed = self._found(turn)
        return Asked(
            coverable=virtual.tail[first - 1].seq if first else virtual.coverage, idle=idle, provider_changed=changed
        )

    async def _wait(self, turn: Turn, decision: Observe | Reflect) -> None:
        """Have it done within the deadline. Only stored messages can be observed: new ones are stored first, but a fork's
        are not before its reply has come; of a fork, what lies before it can be."""
        standing = turn.standing
        if not standing.memory.turns:
            return  # nobody has accepted this caller's credential yet: nothing is stored or asked on its word
        if isinstance(decision, Observe) and standing.rec.cut is None and standing.virtual != standing.memory:
            await self._commit(turn, None, None)
            await self._stand_again(turn)
        elif isinstance(decision, Observe) and not stored_through(standing, decision.last):
            turn.reason = "fork-not-waited"
            return
        timeout = turn.call.effective.limits.block_timeout
        turn.longer(timeout)
        if not await self._background.done_within(turn.key, decision, turn.call, timeout):
            turn.reason = "observer-late"

    # ── the prompt ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _assemble(self, turn: Turn) -> None:
        virtual, sent = turn.standing.virtual, turn.sent
        if not virtual.log and shows_everything(virtual, sent):
            await self._receipt(turn, None)
            return
        pieces = forwarded(virtual, turn.standing.rec, sent)
        if not virtual.log and [p.raw for p in pieces] == list(turn.request.messages):
            await self._receipt(turn, None)
            return
        virtual = replace(virtual, render_date=self._render_date(turn), timezone=turn.timezone or virtual.timezone)
        turn.standing = replace(turn.standing, virtual=virtual)
        kept, left_out = account.within(pieces, turn.call.effective.limits.tail_limit)
        prompt = self._prompts.assemble(turn.request, virtual, kept, turn.call)
        turn.body = chat.with_messages(turn.request, prompt.messages)
        turn.status = "degraded" if left_out else "applied"
        turn.reason = "tail-limit" if left_out else turn.reason
        await self._receipt(turn, kept, prompt.tokens)

    def _render_date(self, turn: Turn) -> float:
        """Moves only when the prefix changes anyway, or when the prompt cache is certainly cold (behaviour.md 8)."""
        memory, now = turn.standing.virtual, self._clock()
        if not turn.stores and memory.render_date is not None:
            return memory.render_date  # what is only read is not remembered, so it cannot move
        previous = turn.standing.memory.turn_at
        cold = previous is not None and now - previous > turn.call.effective.limits.cache_lives
        return now if memory.render_date is None or cold else memory.render_date

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
        item = self._item_of(turn.key, reply)
        complete = item is not None and reply is not None and reply.complete
        if not accepted or (not complete and turn.standing.rec.cut is not None):
            return
        if await self._commit(turn, item if complete else None, None if complete else item):
            self._background.wake(turn.key, turn.call)

    def holds(self, turn: Turn, reply: Reply) -> bool:
        """Whether there is nothing to close: a retry, answered with the very reply that stands there."""
        standing = turn.standing
        if standing.rec.repeats is None or not reply.complete or not self._memories.stands(standing.memory):
            return False
        newest = standing.memory.tail[-1] if standing.memory.tail else None
        return newest is not None and (newest.seq, newest.item.raw) == (standing.rec.repeats.reply, reply.message)

    async def keep_unanswered(self, turn: Turn) -> None:
        """The upstream could not be reached: what the client said is kept, unless it forks."""
        if turn.stores and turn.standing.rec.cut is None:
            await self._commit(turn, None, None)

    def _item_of(self, key: Key, reply: Reply | None) -> Item | None:
        if reply is None or reply.message is None:
            return None
        try:
            return chat.item(reply.message, key=self._fingerprint_key(key))
        except chat.Unreadable:
            return None  # no message we can name: what the client said is kept as unanswered

    async def _commit(self, turn: Turn, reply: Item | None, interrupted: Item | None) -> bool:
        """Reconcile on commit, on top of whoever came first: computed again until no one else has. False: nothing was new."""
        said = reply or interrupted
        async with self._memories.lock(turn.key):
            for _ in range(ATTEMPTS):
                standing = await self._settled(turn)
                if reply is not None and said_already(standing, reply):
                    return False
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
                after = replace(
                    after,
                    model=turn.request.model,
                    timezone=turn.timezone or after.timezone,
                    render_date=self._kept_date(turn, after),
                )
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

    async def _settled(self, turn: Turn) -> Standing:
        """The turn's standing against the memory as it is now."""
        memory = await self._memories.latest(turn.key)
        standing = turn.standing
        if memory.version == standing.memory.version:
            return standing
        if memory.end == standing.memory.end:
            rec: Reconciled | None = standing.rec
        elif (rec := turns.merged(memory, standing.rec, turn.sent)) is None:
            turn.sent = self._sent(turn.request, memory)  # its recognised views were those of another memory
        return await self._stand(memory, turn.sent, turn.hints, turn.request.model, rec)

    @staticmethod
    def _kept_date(turn: Turn, after: Memory) -> float | None:
        """The render date this prompt was built with, unless the prefix has changed since."""
        opened = turn.standing.virtual
        return opened.render_date if after.log == opened.log else after.render_date


def stored_through(standing: Standing, last: int) -> bool:
    """Whether the memory holds, as it is, what a forking request leaves up to this message."""
    cut = standing.rec.cut
    return standing.base is standing.memory and (cut is None or last <= cut)


def shows_everything(memory: Memory, sent: Sent) -> bool:
    """Whether the client sent all we hold, message for message, and nothing else."""
    cells = memory.views[-1].cells if memory.views else ()
    return sent.count == memory.count and len(cells) == 1 and cells[0].kind == "same" and cells[0].sent_to == sent.count


def said_already(standing: Standing, reply: Item) -> bool:
    """Whether a retry got the very reply that stands there: nothing to write."""
    repeats, memory = standing.rec.repeats, standing.memory
    newest = memory.tail[-1] if memory.tail else None
    return repeats is not None and newest is not None and (newest.seq, newest.item.fp) == (repeats.reply, reply.fp)


def aside(memory: Memory, item: Item, tokens: int, now: float) -> tuple[Memory, Message]:
    """An interrupted reply, numbered but not live: it is observed only if the client sends it back (http.md)."""
    message = Message(memory.next_seq, item, chained(memory.chain, item.fp), tokens, now)
    return replace(memory, next_seq=memory.next_seq + 1), message
