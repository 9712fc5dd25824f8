"""How a request stands against its thread's memory: loaded, reconciled, rolled back where it forks, and again when others commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from om_proxy.catalogue import Catalogue
from om_proxy.deliveries import Deliveries
from om_proxy.errors import Conflict
from om_proxy.memories import Memories, persistently
from om_proxy.memory import branch, shared, turns
from om_proxy.memory.dates import zone
from om_proxy.memory.digests import Raws
from om_proxy.memory.identity import Caller, fingerprint_key
from om_proxy.memory.model import (
    EMPTY_MARK,
    MESSAGE_FRAMING_TOKENS,
    Item,
    Key,
    Mark,
    Memory,
    Observation,
    Scope,
    hub_of,
)
from om_proxy.memory.side_requests import may_be_side_request, repeats_nothing
from om_proxy.memory.transcript import Hints, Known, NeedOutline, Reconciled, Sent, reconcile
from om_proxy.observing import Call
from om_proxy.off_loop import MANY_BYTES, MANY_MESSAGES, off_loop
from om_proxy.storage.base import Change
from om_proxy.turn import Standing, TakenForSideRequest, Turn
from om_proxy.wire import chat
from om_proxy.wire.chat import ChatRequest
from om_proxy.wire.reply import Reply


def known_of(request: ChatRequest) -> int:
    """Messages of the request that need not be hashed anew."""
    return request.messages.digests.count if isinstance(request.messages, Raws) else 0


def uncounted_of(rec: Reconciled, sent: Sent) -> dict[int, bytes]:
    """The messages whose tokens are not known, by their place in what was sent."""
    return {index: sent.raws[index] for index in (*rec.new, *(index for _, index in rec.swaps))}


def is_lone_repeat(memory: Memory, sent: Sent) -> bool:
    """Whether a lone message was sent again, byte for byte, and the reply to it stands: what it means depends on whether that went out."""
    view = sent.seen
    return view is not None and view.count == 1 == sent.count and 0 < view.reply == memory.end


class Standings:
    """`reading_to` tells the seq up to which an observation under way reads a thread: the text of these messages may not change."""

    def __init__(
        self,
        memories: Memories,
        catalogue: Catalogue,
        secret: bytes,
        clock: Callable[[], float],
        reading_to: Callable[[Key], int],
        deliveries: Deliveries,
    ) -> None:
        self._memories = memories
        self._catalogue = catalogue
        self._secret = secret
        self._clock = clock
        self._reading_to = reading_to
        self._deliveries = deliveries

    async def first(
        self, caller: Caller, key: Key, request: ChatRequest, call: Call, hints: Hints, scope: Scope
    ) -> tuple[Call, Sent, Standing]:
        return await persistently(partial(self._first, caller, key, request, call, hints, scope))

    async def _first(
        self, caller: Caller, key: Key, request: ChatRequest, call: Call, hints: Hints, scope: Scope
    ) -> tuple[Call, Sent, Standing]:
        memory = await self._memories.load(key, scope)
        if memory.scope != scope:
            memory = await self._rescoped(memory, scope, stores=caller.mode != "read")
        call = call.overridden(memory.overrides)
        many = len(request.messages) - known_of(request)
        read = partial(self.sent, request, memory)
        sent = read() if many <= MANY_MESSAGES else await off_loop(many, read)
        if may_be_side_request(memory, sent, hints) and await self._is_side_request(memory, sent, request):
            raise TakenForSideRequest
        return call, sent, await self._stand(memory, sent, hints, request.model, call)

    def sent(self, request: ChatRequest, memory: Memory) -> Sent:
        return Sent.of(request.messages, partial(chat.item, key=self._fingerprint_key(memory.key)), memory.views)

    def _fingerprint_key(self, key: Key) -> bytes:
        return fingerprint_key(self._secret, key.tenant)

    async def _stand(
        self, memory: Memory, sent: Sent, hints: Hints, model: str | None, call: Call, rec: Reconciled | None = None
    ) -> Standing:
        """Reconcile with the memory (or take `rec`, already merged with it)."""
        if rec is None:
            if is_lone_repeat(memory, sent):
                hints = replace(hints, undelivered=await self._deliveries.is_undelivered(memory))
            rec = await self._reconcile(memory, sent, hints)
        behind = rec.cut is not None and rec.cut < memory.coverage
        base = await self._on_branch(memory, rec, call.effective.memory.timezone) if behind else memory
        revived = {m.seq: m for m in await self._memories.store.by_seq(memory.key, rec.revive)} if rec.revive else {}
        many = len(rec.new) + len(rec.swaps)
        uncounted: dict[int, bytes] = {}
        if many > MANY_MESSAGES:
            uncounted = await off_loop(many, partial(uncounted_of, rec, sent))
        elif many:
            uncounted = uncounted_of(rec, sent)
        tokens = await self._catalogue.count(uncounted, model or "") if uncounted else {}
        encoding = self._catalogue.encoding(model or "") if tokens else ""
        heard = partial(turns.heard, base, rec, sent, tokens, self._clock(), revived=revived, encoding=encoding)
        virtual = heard() if many <= MANY_MESSAGES else await off_loop(many, heard)
        return Standing(memory, base, rec, revived, tokens, virtual)

    async def _is_side_request(self, memory: Memory, sent: Sent, request: ChatRequest) -> bool:
        if chat.offers_tools(request):
            return False
        found = await off_loop(sent.count, lambda: repeats_nothing(Known.of(memory), sent))
        if isinstance(found, NeedOutline):
            outline = await self._memories.store.outline(memory.key)
            known = partial(Known.of, memory, live=outline.live, dead=outline.dead)
            found = await off_loop(sent.count + len(outline.live), lambda: repeats_nothing(known(), sent))
        return found is True

    async def _reconcile(self, memory: Memory, sent: Sent, hints: Hints) -> Reconciled:
        fixed = max(memory.chunked_to, self._reading_to(memory.key))
        many = sent.count - (sent.seen.count if sent.seen else 0)
        known = partial(Known.of, memory, fixed=fixed)
        if many <= MANY_MESSAGES:
            rec = reconcile(known(), sent, hints)
        else:
            rec = await off_loop(many, lambda: reconcile(known(), sent, hints))
        if isinstance(rec, NeedOutline):
            outline = await self._memories.store.outline(memory.key)
            await self._must_stand(memory)
            known = partial(known, live=outline.live, dead=outline.dead)
            rec = await off_loop(many + len(outline.live), lambda: reconcile(known(), sent, hints))
            if isinstance(rec, NeedOutline):
                raise Conflict("the thread changed while its outline was read; the next request finds it settled")
        return rec

    async def _must_stand(self, memory: Memory) -> None:
        """What was read beside the memory is of the same version; else Conflict, and the memory is loaded anew."""
        versions = {memory.key: memory.version}
        if memory.hub:
            versions[hub_of(memory.key)] = memory.hub.version
        for key, version in versions.items():
            if await self._memories.store.version(key) != version:
                self._memories.drop(key)
                raise Conflict("the thread changed while more of it was read")

    async def _on_branch(self, memory: Memory, rec: Reconciled, timezone: str) -> Memory:
        """The memory rolled back, for the request forks behind coverage: memory follows the branch
        (docs/spec/behaviour.md#branch)."""
        assert rec.cut is not None  # noqa: S101 — that is what forking is
        older, live = await self._generations(memory), (await self._memories.store.outline(memory.key)).live
        entries, forgotten = branch.fallback(memory, rec.cut, older, {m.seq: m.chain for m in live})
        if forgotten:
            when = datetime.fromtimestamp(self._clock(), zone(memory.timezone, timezone))
            at = next((m for m in reversed(live) if m.seq <= rec.cut), EMPTY_MARK)
            entries = branch.revised(memory, entries, at, when, self._catalogue.tokens)
        return await self._rolled_back(memory, rec.cut, entries, live)

    async def _generations(self, memory: Memory) -> Sequence[tuple[int, tuple[Observation, ...]]]:
        where = hub_of(memory.key) if memory.hub else memory.key
        return await self._memories.store.generations(where, memory.generation)

    async def _rolled_back(
        self, memory: Memory, cut: int, entries: tuple[Observation, ...], live: Sequence[Mark]
    ) -> Memory:
        reach = branch.reach(entries, memory.hub.label if memory.hub else None)
        covered = [m for m in live if m.seq <= reach]
        tail = await self._memories.store.messages(memory.key, reach)
        await self._must_stand(memory)
        before = len(covered), sum(m.tokens for m in covered) + MESSAGE_FRAMING_TOKENS * len(covered)
        return branch.rolled_back(memory, cut, entries, covered, tail, before, self._clock())

    async def _rescoped(self, memory: Memory, scope: Scope, *, stores: bool) -> Memory:
        """The memory of a thread whose log is to be another: its resource's instead of its own, or the other way round."""
        if scope == "resource":
            hub = await self._memories.load(hub_of(memory.key))
            after = shared.joined(memory, hub, self._memories.label(memory.key))
            if not stores:
                return after
            bare, log = shared.apart(after)
            return await self._memories.commit_shared(Change(memory, bare), Change(hub, log))
        own, hub_after = shared.parted(memory, await self._generations(memory))
        thread, hub_before = shared.apart(memory)
        live = (await self._memories.store.outline(memory.key)).live
        after = await self._rolled_back(shared.alone(thread, own), memory.end, own, live)
        if not stores:
            return after
        changed = Change(hub_before, hub_after) if hub_after != hub_before else None
        return await self._memories.commit_shared(Change(thread, after), changed)

    async def settled(self, turn: Turn) -> Standing:
        """The turn's standing against the memory as it is now."""
        memory = await self._memories.latest(turn.key, turn.scope)
        standing = turn.standing
        if memory.version == standing.memory.version and memory.hub == standing.memory.hub:
            return standing
        if memory.scope != turn.scope:
            stores = turn.stores and not self.is_forgotten(turn, memory)
            memory = await self._rescoped(memory, turn.scope, stores=stores)
        if memory.end == standing.memory.end:
            rec: Reconciled | None = standing.rec
        elif (rec := turns.merged(memory, standing.rec, turn.sent)) is None:
            many = len(turn.request.messages)
            turn.sent = await off_loop(
                many, partial(self.sent, turn.request, memory)
            )  # its recognised views were those of another memory
        return await self._stand(memory, turn.sent, turn.hints, turn.request.model, turn.call, rec)

    def is_forgotten(self, turn: Turn, memory: Memory) -> bool:
        """Whether the turn's thread has been forgotten since it began; `memory`: as it is now."""
        return self._memories.is_forgotten_since(memory, turn.born, turn.forgets)

    async def again(self, turn: Turn) -> None:
        turn.standing = await persistently(partial(self.settled, turn))
        turn.born = turn.born or turn.standing.memory.born

    async def item(self, key: Key, reply: Reply | None) -> Item | None:
        if reply is None or reply.message is None:
            return None
        work = partial(chat.item, reply.message, key=self._fingerprint_key(key))
        size = len(reply.message)
        try:
            return work() if size <= MANY_BYTES else await off_loop(size, work, MANY_BYTES)
        except chat.Unreadable:
            return None  # no message we can name: what the client said is kept as unanswered
