"""Compute what would go upstream for a request. Nothing is stored, and no model is called.

The engine itself opens the turn, on a store that keeps every commit to itself
(storage/preview_store.py). So a preview follows every rule of a real request, also those that are
yet to come. Only a wait for a memory model is left out: the preview tells of it, and shows the
prompt that goes upstream if the wait ends without notes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from om_proxy.apis.api import Request
from om_proxy.background.scheduler import Background
from om_proxy.identity.callers import Caller
from om_proxy.memory.lifecycle.decisions import Decision
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.memory_cache import Memories
from om_proxy.models import TokenCounter
from om_proxy.policy import MemoryContext, PolicyInForce
from om_proxy.storage.preview_store import PreviewStore
from om_proxy.turns.block_renderer import BlockRenderer
from om_proxy.turns.deliveries import Deliveries
from om_proxy.turns.engine import Engine
from om_proxy.turns.turn import PreparedTurn

PartKind = Literal["instructions", "notes", "observations", "others", "hints", "hint", "tail"]
_SECTION_START = re.compile(
    r"\n\n(?=<(observations|other-conversation|current-task|suggested-response)\b)"
)
_KIND_BY_TAG: dict[str, PartKind] = {
    "observations": "observations",
    "other-conversation": "others",
    "current-task": "hints",
    "suggested-response": "hints",
}


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

    @property
    def request(self) -> Request:
        """The request as it would go upstream."""
        received = self.turn.opened.request
        return received if self.turn.body is None else received.api.parse_request(self.turn.body)


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

    async def preview(
        self, caller: Caller, request: Request, context: MemoryContext, hints: Hints
    ) -> Preview:
        """Return the turn of this request. `caller.key` is set. Raises OmError, and
        TakenForSideRequest, where a real request would go upstream as it came."""
        memories = Memories(
            PreviewStore(self.memories.store),
            self.policies,
            clock=self.clock,
            label=self.memories.label,
        )
        renderer = RecordingRenderer()
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
        turn = await engine.open_turn(caller, request, context, hints)
        parts = await self._list_parts(turn, renderer)
        return Preview(turn, tuple(decisions), parts)

    async def _list_parts(
        self, turn: PreparedTurn, renderer: RecordingRenderer
    ) -> tuple[PromptPart, ...]:
        request = turn.opened.request
        instructions = await self.token_counter.count_instructions(
            request.instructions, request.model or ""
        )
        parts = [PromptPart("instructions", instructions, is_stable=True)]
        is_rewritten = turn.body is not None
        if is_rewritten:
            sections = list_sections(renderer.block)
            sections += [("hint", renderer.hint)] if renderer.hint else []
            # a full log takes 20 ms to count
            tokens = await asyncio.to_thread(
                lambda: [self.token_counter.tokens(text) for _, text in sections]
            )
            parts += [
                PromptPart(kind, count, kind not in _MOVING_KINDS, text)
                for (kind, text), count in zip(sections, tokens, strict=True)
            ]
        others = sum(part.tokens for part in parts)
        rest = max(turn.receipt["tokens-sent"] - others, 0)
        parts.append(PromptPart("tail", rest, is_stable=False))
        return tuple(parts)


_MOVING_KINDS: frozenset[PartKind] = frozenset(("hints", "hint"))


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


class RecordingRenderer(BlockRenderer):
    """A renderer that keeps the texts of its newest prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.block = ""
        self.hint = ""

    def _write_texts(
        self, memory: Memory, context: MemoryContext, *, left_out: bool
    ) -> tuple[str, str]:
        self.block, self.hint = super()._write_texts(memory, context, left_out=left_out)
        return self.block, self.hint


class PreviewWork:
    """The background, as a preview sees it: calls under way hold what they read, and a call that a
    request would wait for is never made."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def last_seq_being_read(self, key: Key) -> int:
        return self._background.last_seq_being_read(key)

    def remaining_wait(self, key: Key, seconds: float) -> float:
        return self._background.remaining_wait(key, seconds)

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
