"""Build the prompts that memory would have sent, while the model server reads the client's own.

A prompt is planned and measured, but not written: its tokens and parts come from the stored counts,
as those of a live prompt do. One is built at a time, while its request waits for its first byte. So
no request waits for it, and a failure costs no more than a figure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog
from msgspec import Struct

from om_proxy.common.errors import raise_site
from om_proxy.engine.turns.prompt.prompt_builder import PromptBuilder, list_part_tokens
from om_proxy.engine.turns.turn import OpenedTurn, PreparedTurn
from om_proxy.memory.ledger import PromptMark

logger = structlog.get_logger("memory")


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
