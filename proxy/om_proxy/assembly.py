"""Builds a turn's prompt, with the moment its dates are told against, and the figures of its receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from om_proxy.catalogue import Catalogue
from om_proxy.memories import Memories
from om_proxy.memory import account, elsewhere, lifecycle, shared
from om_proxy.memory.model import Key, Memory, hub_of
from om_proxy.memory.tail import Piece, forwarded
from om_proxy.prompt import Prompts
from om_proxy.turn import Turn, shows_everything
from om_proxy.wire import chat
from om_proxy.wire.excerpt import excerpt


class Assembly:
    """`build` leaves in `turn.body` what goes upstream in the client's prompt's stead, or None where that one may go as it is."""

    def __init__(self, memories: Memories, prompts: Prompts, catalogue: Catalogue, clock: Callable[[], float]) -> None:
        self._memories = memories
        self._prompts = prompts
        self._catalogue = catalogue
        self._clock = clock

    async def build(self, turn: Turn) -> None:
        if turn.standing.virtual.hub:
            await self._tell_of_others(turn)
        virtual, sent = turn.standing.virtual, turn.sent
        shown = shared.as_shown(virtual) if virtual.hub else virtual
        told, limit = bool(shown.log or virtual.others), turn.call.effective.limits.tail_limit
        if not told and limit is None and shows_everything(virtual, sent):
            await self.receipt(turn)
            return
        pieces = forwarded(virtual, turn.standing.rec, sent)
        kept, left_out = account.within(pieces, limit)
        if not told and not left_out and [p.raw for p in pieces] == list(turn.request.messages):
            await self.receipt(turn)
            return
        virtual = self._dated(turn)
        turn.standing = replace(turn.standing, virtual=virtual)
        prompt = self._prompts.assemble(turn.request, shared.as_shown(virtual), kept, turn.call, left_out=left_out)
        turn.body = chat.with_messages(turn.request, prompt.messages)
        turn.status = "degraded" if left_out else "applied"
        turn.reason = "tail-limit" if left_out else turn.reason
        await self.receipt(turn, kept, prompt.tokens)

    async def _tell_of_others(self, turn: Turn) -> None:
        """With what the resource's other threads have said since their notes: told anew only where the prefix changes anyway, so
        that what another thread says does not break this one's prompt cache
        (docs/spec/behaviour.md#stable-prefix)."""
        virtual = turn.standing.virtual
        if self._keeps_date(turn):
            return
        noted = {memory.key: lifecycle.settling(memory) for memory in await self._with_notes(turn.key)}
        observed_to = {key: chunks[-1].last for key, chunks in noted.items() if chunks}
        found = await self._memories.store.elsewhere(turn.key, elsewhere.MAX_THREADS, elsewhere.MAX_THREAD_MESSAGES)
        label = self._memories.label
        others = elsewhere.told(
            [
                (label(key), [excerpt(m.item.raw) for m in messages if m.seq > observed_to.get(key, 0)])
                for key, messages in found
            ],
            {label(key): "\n\n".join(c.text for c in chunks) for key, chunks in noted.items()},
        )
        # also that there is nothing to tell is kept: else the first word of another thread would change this one's prefix
        told = replace(virtual, others=others, shown=virtual.shared_state, render_date=self._clock())
        turn.standing = replace(turn.standing, virtual=told)

    async def _with_notes(self, key: Key) -> list[Memory]:
        """The resource's other threads whose notes are ready and not in the log yet, the one that spoke last first."""
        waiting = await self._memories.store.waiting(hub_of(key))
        found = sorted((w for w in waiting if w.chunked and w.key != key), key=lambda w: -w.turn_at)
        return [await self._memories.load(w.key) for w in found[: elsewhere.MAX_NOTED_THREADS]]

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
        is certainly cold (docs/spec/behaviour.md#render-date)."""
        memory = turn.standing.virtual
        if memory.render_date is None:
            return False
        if not turn.stores:
            return True  # what is only read is not remembered, so it cannot move
        previous = turn.standing.memory.turn_at
        if previous is not None and self._clock() - previous > turn.call.effective.limits.cache_lives:
            return False
        return memory.hub is None or shared.keeps_view(memory)

    async def receipt(self, turn: Turn, pieces: Sequence[Piece] | None = None, block: int = 0) -> None:
        """`pieces`: what goes upstream of the conversation, beside a block of so many tokens; None: the client's own prompt."""
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
