"""Compute what would go upstream for a request. Nothing is stored, and no model is called.

The engine itself opens the turn, on a store that keeps every commit to itself
(storage/preview_store.py). So a preview follows every rule of a real request, also those that are
yet to come. Only a wait for a memory model is left out: the preview describes it, and shows the
prompt that goes upstream if the wait ends without notes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

from msgspec import Struct

from om_proxy.agents.models import TokenCounter
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext, PolicyInForce
from om_proxy.engine.turns.block_renderer import (
    BlockRenderer,
    MemoryTexts,
    RenderedBlocks,
    create_rendered_blocks,
)
from om_proxy.engine.turns.deliveries import Deliveries
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.prompt_builder import PartKind, list_sections
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.lifecycle.decisions import Decision
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.storage.spooling.merging_store import PreviewStore
from om_proxy.wire.apis.api import Request

MAX_KEPT_BYTES = 4 * 2**20  # of blocks, and of counted texts


class PromptPart(Struct, frozen=True):
    """A part of a prompt. Parts of a stable prefix stay the same until the next activation, so that
    the provider's prompt cache keeps them."""

    kind: PartKind
    tokens: int
    is_stable: bool
    text: str | None = None  # of what memory adds; the rest is among the messages


class Preview(Struct, frozen=True):
    """A turn as it would be opened, and why."""

    turn: PreparedTurn
    decisions: tuple[Decision, ...]  # in order; an Observe or Reflect would be waited for
    parts: tuple[PromptPart, ...]
    # where memory leaves prompts as they are: the one that it would send otherwise, and its parts
    shadow: PreparedTurn | None = None
    shadow_parts: tuple[PromptPart, ...] = ()

    @property
    def request(self) -> Request:
        """The request as it would go upstream."""
        return read_prepared(self.turn)


def read_prepared(turn: PreparedTurn) -> Request:
    received = turn.opened.request
    return received if turn.body is None else received.api.parse_request(turn.body)


@dataclass(frozen=True, slots=True, eq=False)
class ContextPreviewer:
    """Makes previews beside the engine that serves requests."""

    memories: Memories
    policies: PolicyInForce
    background: Background
    token_counter: TokenCounter
    secret: bytes = field(repr=False)
    clock: Callable[[], float]
    deliveries: Deliveries
    # Previews of one thread follow each other, as people look at it: to render its notes takes
    # 20 ms, and to count them 20 ms more.
    rendered: RenderedBlocks = field(
        default_factory=lambda: create_rendered_blocks(MAX_KEPT_BYTES), repr=False
    )
    token_counts: BoundedCache[str, int] = field(
        default_factory=lambda: BoundedCache(max_items=256, max_bytes=MAX_KEPT_BYTES), repr=False
    )

    def drop_texts(self) -> None:
        """Drop what is kept of earlier previews: it holds words that people may have forgotten."""
        self.rendered.clear()
        self.token_counts.clear()

    async def preview(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        hints: Hints,
        recall_tool: str | None = None,
    ) -> Preview:
        """Return the turn of this request. `caller.key` is set. `recall_tool`: the name of the tool
        for look-ups, if the request may offer it. Raises OmError, and TakenForSideRequest, where a
        real request would go upstream as it came."""
        memories = Memories(
            PreviewStore(self.memories.store, self.memories.held.find),
            self.policies,
            clock=self.clock,
            label=self.memories.label,
            count_tokens=self.token_counter.tokens,
        )
        renderer = RecordingRenderer(self.rendered)
        decisions: list[Decision] = []
        engine = Engine(
            memories,
            PreviewWork(self.background),
            renderer,
            self.token_counter,
            self.secret,
            clock=self.clock,
            deliveries=self.deliveries,
            on_decision=decisions.append,
        )
        turn = await engine.open_turn(caller, request, context, hints, recall_tool=recall_tool)
        parts = await self._list_parts(turn, renderer)
        if turn.opened.can_rewrite:
            return Preview(turn, tuple(decisions), parts)
        shadow = await engine.prompt_builder.build(turn.opened)  # as if it could be rewritten
        shadow_parts = await self._list_parts(shadow, renderer)
        return Preview(turn, tuple(decisions), parts, shadow, shadow_parts)

    async def _list_parts(
        self, turn: PreparedTurn, renderer: RecordingRenderer
    ) -> tuple[PromptPart, ...]:
        request = turn.opened.request
        instructions = await self.token_counter.count_instructions(
            request.instructions, request.model or "", request.api.name
        )
        parts = [PromptPart("instructions", instructions, is_stable=True)]
        is_rewritten = turn.body is not None
        if is_rewritten:
            sections = list_sections(renderer.block)
            sections += [("hint", renderer.hint)] if renderer.hint else []
            tokens = [await self._count_tokens(text) for _, text in sections]
            parts += [
                PromptPart(kind, count, kind not in _MOVING_KINDS, text)
                for (kind, text), count in zip(sections, tokens, strict=True)
            ]
        others = sum(part.tokens for part in parts)
        rest = max(turn.receipt["tokens-sent"] - others, 0)
        parts.append(PromptPart("tail", rest, is_stable=False))
        return tuple(parts)

    async def _count_tokens(self, text: str) -> int:
        count = self.token_counts.get(text)
        if count is None:
            count = await asyncio.to_thread(self.token_counter.tokens, text)
            self.token_counts.put(text, count, getsizeof(text))
        return count


_MOVING_KINDS: frozenset[PartKind] = frozenset(("hints", "hint"))


class RecordingRenderer(BlockRenderer):
    """A renderer that keeps the texts of its newest prompt."""

    def __init__(self, rendered: RenderedBlocks) -> None:
        super().__init__(rendered)
        self.block = ""
        self.hint = ""

    def render(self, memory: Memory, context: MemoryContext, **options: Any) -> MemoryTexts:
        texts = super().render(memory, context, **options)
        self.block, self.hint, _ = texts
        return texts


@dataclass(frozen=True, slots=True, eq=False)
class PreviewWork:
    """The background, as a preview sees it: calls under way hold what they read, and a call that a
    request would wait for is never made."""

    background: Background

    def last_seq_being_read(self, key: Key) -> int:
        return self.background.last_seq_being_read(key)

    def remaining_wait(self, key: Key, seconds: float) -> float:
        return self.background.remaining_wait(key, seconds)

    async def wait_for_work(
        self, key: Key, decision: Decision, context: MemoryContext, seconds: float
    ) -> bool:
        """Return at once, as when the wait has ended without notes."""
        return False

    def wake(self, key: Key, context: MemoryContext | None = None) -> None:
        """Do nothing: a preview leaves no work."""

    def run_detached(self, work: Coroutine[Any, Any, Any]) -> None:
        """Drop the work: a preview closes no turn."""
        work.close()
