"""Build the prompt of a turn: plan its texts and the messages that it keeps, then write it.

The prompt that memory would have sent is planned and measured, but not written, while the model server
reads the client's own: its tokens and parts come from the stored counts, as those of a live prompt do.
One is built at a time, while its request waits for its first byte. So no request waits for it, and a
failure costs no more than a figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import raise_site
from om_proxy.common.late_patterns import compile_late
from om_proxy.common.reasons import Reason, Status
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.turn import (
    OpenedTurn,
    PreparedTurn,
    can_stand_alone,
    is_everything_sent,
    replace_projected,
)
from om_proxy.memory.ledger import PromptMark
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.message_list import read_seq
from om_proxy.memory.model import Key, Memory, ObservationLog, resource_key
from om_proxy.memory.prompt import prompt_cost
from om_proxy.memory.prompt.context import (
    MAX_NOTED_THREADS,
    MAX_THREAD_MESSAGES,
    MAX_THREADS,
    render_other_threads,
)
from om_proxy.memory.prompt.prompt_cost import BYTES_PER_TOKEN
from om_proxy.memory.prompt.tail import (
    Piece,
    build_tail,
    find_broken_pieces,
    has_steps,
    put_in_look_ups,
)
from om_proxy.memory.recall.kept_look_ups import choose_shown_look_ups, drop_left_look_ups
from om_proxy.memory.rounds import LookedUp
from om_proxy.wire.apis.api import BrokenPrompt
from om_proxy.wire.apis.message_parts import summarize_message
from om_proxy.wire.apis.registry import rewrite_body

logger = structlog.get_logger("memory")

PartKind = Literal[
    "instructions", "notes", "pins", "observations", "others", "hints", "hint", "tail"
]
_SECTION_START = compile_late(
    r"\n\n(?=<(pinned-notes|observations|other-conversation|current-task|suggested-response)\b)"
)
_KIND_BY_TAG: dict[str, PartKind] = {
    "pinned-notes": "pins",
    "observations": "observations",
    "other-conversation": "others",
    "current-task": "hints",
    "suggested-response": "hints",
}


class PromptPlan(Struct, frozen=True):
    """The prompt that goes upstream for a turn. Without `pieces`, it is the client's own prompt."""

    turn: OpenedTurn  # with the render date and the text about other threads
    pieces: Sequence[Piece] | None = None  # of the conversation
    is_cut: bool = False  # whether `pieces` lack the oldest messages of the tail
    block: str = ""
    hint: str = ""
    memory_tokens: int = 0  # of block and hint
    # identifies what memory puts before the conversation; empty: nothing
    prefix: tuple[float, ...] = ()
    # whether calls and results do not fit together: of `pieces` those are left out, and without
    # `pieces` this is why
    is_broken: bool = False

    @property
    def tail_tokens(self) -> int:
        if self.pieces is None:
            projected = self.turn.reconciled.projected
            return prompt_cost.received_tokens(projected, self.turn.reconciled.sent)
        return prompt_cost.forwarded_tokens(self.pieces)


def list_sections(block: str) -> list[tuple[PartKind, str]]:
    """Split an observation block into its sections. Nothing that was said can look like the start
    of one: their tags are escaped in it (memory/escaping.py)."""
    if not block:
        return []
    sections: list[tuple[PartKind, str]] = []
    start = 0
    kind: PartKind = "notes"
    for found in _SECTION_START.finditer(block):
        sections.append((kind, block[start : found.start()]))
        start, kind = found.end(), _KIND_BY_TAG[found[1]]
    sections.append((kind, block[start:]))
    return sections


def list_part_tokens(plan: PromptPlan, instruction_tokens: int) -> tuple[tuple[str, int], ...]:
    """Return the parts of a planned prompt with their tokens, which sum up to the prompt's. Those of
    the observations are what the other texts leave of memory's; the others are guessed by their
    length."""
    tokens: dict[str, int] = {"instructions": instruction_tokens}
    for kind, text in (*list_sections(plan.block), ("hint", plan.hint)):
        if text:
            tokens[kind] = tokens.get(kind, 0) + len(text) // BYTES_PER_TOKEN
    guessed = sum(count for kind, count in tokens.items() if kind != "instructions")
    if "observations" in tokens:
        rest = plan.memory_tokens - (guessed - tokens["observations"])
        tokens["observations"] = max(rest, 0)
    tokens["tail"] = plan.tail_tokens
    return tuple(tokens.items())


@dataclass(frozen=True, slots=True, eq=False)
class PromptBuilder:
    """The last step before a turn goes upstream: its prompt, its render date, and the figures of
    its receipt."""

    memories: Memories
    renderer: BlockRenderer
    token_counter: TokenCounter
    clock: Callable[[], float]

    async def build(self, turn: OpenedTurn) -> PreparedTurn:
        """Prepare the turn. Rewrite its prompt if the memory has notes or the tail does not fit;
        otherwise keep the client's own."""
        plan = await self.plan(turn)
        body = None
        if plan.pieces is not None:
            plan, body = _write(plan, plan.pieces)
        receipt, mark = await self.measure(plan)
        if plan.pieces is None:
            status = Status.DEGRADED if plan.is_broken else Status.RAW
            return PreparedTurn(plan.turn, receipt, status, plan.turn.reason, mark=mark)
        return PreparedTurn(
            plan.turn,
            receipt,
            status=Status.DEGRADED if plan.is_cut or plan.is_broken else Status.APPLIED,
            reason=Reason.TAIL_LIMIT if plan.is_cut else plan.turn.reason,
            body=body,
            has_notes=bool(plan.block),
            raw_from=min(filter(None, map(read_seq, plan.pieces)), default=None),
            mark=mark,
        )

    async def plan(self, turn: OpenedTurn) -> PromptPlan:
        """Choose what goes upstream, without writing it."""
        if turn.reconciled.projected.shared_log_ref:
            turn = await self._add_other_threads(turn)
        projected = turn.reconciled.projected
        sent = turn.reconciled.sent
        shown = log_sharing.limit_log_to_shown(projected) if projected.shared_log_ref else projected
        has_notes = bool(shown.log.entries or projected.other_threads_text or shown.log.pins)
        look_ups: Mapping[int, LookedUp] = {}
        # only a request that offers the tool shows what was looked up with it
        if turn.recall_tool:
            without_left = drop_left_look_ups(projected, shown.log.state)
            look_ups = choose_shown_look_ups(without_left)
            if without_left is not projected:
                projected = without_left
                turn = replace_projected(turn, projected)
        max_tokens = turn.context.effective.limits.tail_limit_tokens
        is_plain = not has_notes and not look_ups
        if is_plain and turn.request.previous is not None:
            return PromptPlan(turn)  # the server has what came before
        if is_plain and max_tokens is None and is_everything_sent(projected, sent):
            return PromptPlan(turn)
        pieces = build_tail(projected, sent)
        if look_ups:
            pieces = put_in_look_ups(pieces, look_ups)
        kept, left_out = prompt_cost.limit_tail(pieces, max_tokens)
        may_be_original = is_plain and not left_out
        # compared last: it cuts every known message out of the body
        if may_be_original and [p.raw for p in pieces] == list(turn.request.messages):
            return PromptPlan(turn)
        broken = find_broken_pieces(kept, projected, sent)
        if broken.is_fault:
            turn = replace(turn, reason=Reason.TOOL_PAIRS)
            if can_stand_alone(turn):
                return PromptPlan(turn, is_broken=True)
        if broken.indices:
            # what the client itself sends now is what it asks
            kept = [p for i, p in enumerate(kept) if p.sent or i not in broken.indices]
        projected = self._set_render_date(turn)
        turn = replace_projected(turn, projected)
        texts = self.renderer.render(
            log_sharing.limit_log_to_shown(projected),
            turn.context,
            left_out=left_out,
            recall_tool=turn.recall_tool,
        )
        has_prefix = has_notes or left_out
        prefix = _identify_prefix(shown.log, kept, projected.render_date) if has_prefix else ()
        return PromptPlan(turn, kept, left_out, *texts, prefix, broken.is_fault)

    async def keep_original(self, turn: OpenedTurn, reason: Reason | None) -> PreparedTurn:
        """Prepare the turn with the client's own prompt."""
        receipt, mark = await self.measure(PromptPlan(turn))
        return PreparedTurn(turn, receipt, reason=reason, mark=mark)

    async def _add_other_threads(self, turn: OpenedTurn) -> OpenedTurn:
        """Add the messages of the resource's other threads that their notes do not cover. They are
        rendered again only when the prefix changes anyway, so that another thread does not break
        this one's prompt cache (docs/contributing/behaviour.md#stable-prefix)."""
        projected = turn.reconciled.projected
        if self._is_date_kept(turn):
            return turn
        chunks_by_thread = {
            memory.key: answered_chunks(memory)
            for memory in await self._load_threads_with_notes(turn.key)
        }
        observed_to = {key: chunks[-1].last for key, chunks in chunks_by_thread.items() if chunks}
        tails = await self.memories.store.other_thread_tails(
            turn.key, MAX_THREADS, MAX_THREAD_MESSAGES
        )
        label = self.memories.label
        unobserved = [
            (
                label(key),
                [
                    summarize_message(message.item.raw, message.item.api)
                    for message in messages
                    if message.seq > observed_to.get(key, 0)
                ],
            )
            for key, messages in tails
        ]
        notes = {
            label(key): "\n\n".join(chunk.text for chunk in chunks)
            for key, chunks in chunks_by_thread.items()
        }
        # Store an empty text too: otherwise the first word of another thread would change this
        # thread's prefix.
        projected = replace(
            projected,
            other_threads_text=render_other_threads(unobserved, notes),
            shown_log_state=projected.log.state,
            shown_pins_version=projected.log.pins_version,
            render_date=self.clock(),
        )
        return replace_projected(turn, projected)

    async def _load_threads_with_notes(self, key: Key) -> list[Memory]:
        """Load the resource's other threads whose notes are ready but not in the log yet. The
        thread that spoke last comes first."""
        backlog = await self.memories.store.resource_backlog(resource_key(key))
        with_notes = [other for other in backlog if other.chunked_tokens and other.key != key]
        newest_first = sorted(with_notes, key=lambda other: -other.turn_at)
        return [await self.memories.load(other.key) for other in newest_first[:MAX_NOTED_THREADS]]

    def _set_render_date(self, turn: OpenedTurn) -> Memory:
        """Return the projected memory with the render date, to which relative dates refer. The
        user's time zone changes only together with it."""
        projected = turn.reconciled.projected
        date = self._choose_render_date(turn)
        timezone = turn.timezone if date != turn.previous_render_date else None
        return replace(projected, render_date=date, timezone=timezone or projected.timezone)

    def _choose_render_date(self, turn: OpenedTurn) -> float:
        date = turn.reconciled.projected.render_date
        return date if date is not None and self._is_date_kept(turn) else self.clock()

    def _is_date_kept(self, turn: OpenedTurn) -> bool:
        """Return whether the prompt keeps its render date and its text about other threads. They
        change only when the prefix changes anyway, or when the prompt cache is certainly cold
        (docs/contributing/behaviour.md#render-date)."""
        memory = turn.reconciled.projected
        if memory.render_date is None:
            return False
        if not turn.should_store:
            return True  # a new date could not be stored
        turn_at = turn.reconciled.memory.turn_at
        cache_lifetime_s = turn.context.effective.limits.cache_lifetime_s
        if turn_at is not None and self.clock() - turn_at > cache_lifetime_s:
            return False
        return memory.shared_log_ref is None or log_sharing.can_keep_shown_log(memory)

    async def measure(self, plan: PromptPlan) -> tuple[dict[str, int], PromptMark]:
        """Return the figures of the receipt, and the ledger's mark of the prompt."""
        turn = plan.turn
        projected = turn.reconciled.projected
        request = turn.request
        instructions = await self.token_counter.count_instructions(
            request.instructions, request.model or "", request.api.name
        )
        received = instructions + prompt_cost.received_tokens(projected, turn.reconciled.sent)
        sent = received
        if plan.pieces is not None:
            sent = instructions + plan.memory_tokens + plan.tail_tokens
        whole = received
        if projected.history == "partial":
            whole = instructions + projected.covered_tokens + projected.pending_tokens
        mark = PromptMark(self.clock(), whole, sent, plan.prefix)
        return _list_figures(projected, received, sent), mark


def _write(plan: PromptPlan, pieces: Sequence[Piece]) -> tuple[PromptPlan, bytes]:
    """Write the prompt. If its API's rules are broken, write it without stored calls and results; if
    the client's own prompt shows the conversation, raise BrokenPrompt: that one goes out."""
    turn = plan.turn
    request, layout = turn.request, turn.context.layout
    pieces = _mark_held(turn, pieces)
    try:
        return plan, rewrite_body(request, plan.block, plan.hint, pieces, layout)
    except BrokenPrompt:
        if can_stand_alone(turn):
            raise
    turn = replace(turn, reason=Reason.MEMORY_ERROR)
    kept = [piece for piece in pieces if piece.sent or not has_steps([piece])]
    plan = replace(plan, turn=turn, pieces=kept, is_broken=True)
    return plan, rewrite_body(request, plan.block, plan.hint, kept, layout)


def _mark_held(turn: OpenedTurn, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return the prompt in which the step is marked that the request answers, if the request's
    server keeps it."""
    seq = turn.hints.answered_seq
    tail = turn.reconciled.projected.tail if seq else ()
    answered = next((m.item for m in tail if m.seq == seq), None)
    origin = answered and answered.origin
    if not (answered and origin and origin.is_stored and origin.server == turn.context.server):
        return pieces
    if turn.reconciled.sent.item(0).answers not in answered.calls:
        return pieces
    return [replace(piece, is_held=True) if piece.seq == seq else piece for piece in pieces]


def _list_figures(projected: Memory, received: int, sent: int) -> dict[str, int]:
    return {
        "tokens-received": received,
        "tokens-sent": sent,
        "pending-tokens": projected.pending_tokens,
        "observation-tokens": projected.log.tokens,
        "chunks": len(projected.chunks),
        "generation": projected.log.generation,
    }


def _identify_prefix(
    log: ObservationLog, kept: Sequence[Piece], render_date: float | None
) -> tuple[float, ...]:
    """Return numbers that differ where memory's part before the conversation does. The text about
    other threads changes together with the render date."""
    return (*log.state, log.pins_version, kept[0].seq if kept else 0, render_date or 0.0)


class ShadowPrompt(Struct, frozen=True):
    """A prompt that was built, but not sent."""

    opened: OpenedTurn  # with the render date, as a live turn would store it
    mark: PromptMark
    parts: tuple[tuple[str, int], ...]  # kind, tokens

    @property
    def tokens(self) -> int:
        return self.mark.sent


def needs_shadow(turn: PreparedTurn) -> bool:
    """Return whether the turn is observed, and its prompt left as it is."""
    return turn.opened.should_store and not turn.opened.can_rewrite


@dataclass(frozen=True, slots=True, eq=False)
class ShadowPrompts:
    """Builds one prompt at a time. It never raises."""

    builder: PromptBuilder
    _slot: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def build(self, opened: OpenedTurn) -> ShadowPrompt | None:
        """Return the prompt that would have been sent; None if it cannot be built."""
        # the request goes out first, even where it is sent by a task of its own
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        try:
            async with self._slot:
                plan = await self.builder.plan(opened)
                mark = (await self.builder.measure(plan))[1]
                instructions = mark.sent - plan.memory_tokens - plan.tail_tokens
                parts = list_part_tokens(plan, max(instructions, 0))
                return ShadowPrompt(plan.turn, mark, parts)
        # a prompt that nobody sends must not fail the request
        except Exception as exc:
            logger.warning("shadow.failed", error=type(exc).__name__, at=raise_site(exc))
            return None


def find_ready(shadow: asyncio.Task[ShadowPrompt | None] | None) -> ShadowPrompt | None:
    """Return the prompt if it is ready by now."""
    if shadow is None or not shadow.done() or shadow.cancelled():
        return None
    return shadow.result()
