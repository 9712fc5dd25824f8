"""Render the memory that the actor is sent around the tail, once for each state of the log
(docs/contributing/behaviour.md#context)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.dates import find_zone, format_moment, read_time
from om_proxy.memory.lifecycle.hints import ActiveHints, active_hints
from om_proxy.memory.model import Memory, Observation, Pin
from om_proxy.memory.notes.sections import split_entry
from om_proxy.memory.prompt.context import (
    ContextOptions,
    continuation_hint,
    hint_with_pins,
    hint_without_notes,
    observation_block,
)
from om_proxy.memory.recall.message_ids import write_range_line

MAX_RENDERED_BLOCKS = 256
# A full block takes 0.7 MB: a text with one 🔴 takes four bytes a character.
MAX_RENDERED_BYTES = 32 * 2**20


class RenderedBlock(NamedTuple):
    """A block, and the parts of the log that it was rendered from."""

    text: str
    entries: Sequence[Observation]
    pins: Sequence[Pin]
    log_chars: int


# by everything else that a block depends on
RenderedBlocks: TypeAlias = BoundedCache[tuple[object, ...], RenderedBlock]


def create_rendered_blocks(max_bytes: int = MAX_RENDERED_BYTES) -> RenderedBlocks:
    return BoundedCache(max_items=MAX_RENDERED_BLOCKS, max_bytes=max_bytes, min_items=1)


NO_BLOCK = RenderedBlock("", (), (), 0)


class MemoryTexts(NamedTuple):
    """The texts that memory adds to a prompt; an empty text is left out."""

    block: str
    hint: str
    tokens: int


class BlockRenderer:
    """A renderer that keeps rendered blocks: a request between two activations renders nothing."""

    def __init__(self, rendered: RenderedBlocks | None = None) -> None:
        """Create a renderer. `rendered`: blocks to share with other renderers."""
        self._rendered = create_rendered_blocks() if rendered is None else rendered

    def drop_blocks(self) -> None:
        """Drop the rendered blocks: they hold words that people may have forgotten."""
        self._rendered.clear()

    def render(
        self,
        memory: Memory,
        context: MemoryContext,
        *,
        left_out: bool = False,
        recall_tool: str | None = None,
    ) -> MemoryTexts:
        """Render the texts of this memory. `memory.render_date` must be set. `left_out`: the prompt
        lacks the oldest messages of the tail. `recall_tool`: the name under which the request
        offers the tool that looks up earlier messages; None: it does not."""
        block, hint = self._write_texts(memory, context, recall_tool, left_out=left_out)
        chars = len(block.text) + len(hint) - block.log_chars
        tokens = memory.log.tokens + chars // 4  # 4 chars a token
        return MemoryTexts(block.text, hint, max(tokens, 0))

    def _write_texts(
        self, memory: Memory, context: MemoryContext, recall_tool: str | None, *, left_out: bool
    ) -> tuple[RenderedBlock, str]:
        """Return the observation block and the continuation hint; an empty text is left out."""
        date = read_time(
            memory.render_date or 0.0, find_zone(memory.timezone, context.effective.memory.timezone)
        )
        has_notes = bool(memory.log.entries or memory.other_threads_text or memory.log.pins)
        block = self._block(memory, date, context, recall_tool) if has_notes else NO_BLOCK
        hint = ""
        if block.text and (memory.log.entries or memory.other_threads_text):
            hint = continuation_hint(date.date(), begun=memory.coverage > 0)
        elif block.text and not left_out:
            hint = hint_with_pins(date.date())
        elif left_out or memory.coverage > 0:
            # else the actor takes the first remaining message for the beginning
            hint = hint_without_notes(date.date())
        return block, hint

    def _block(
        self, memory: Memory, date: datetime, context: MemoryContext, recall_tool: str | None
    ) -> RenderedBlock:
        options, log = context.context_options, memory.log
        hints = active_hints(memory)
        key = (
            memory.key,
            memory.scope,
            hash(memory.other_threads_text),
            # only the day of `date`: the moment differs for each request. The zone: hints contain
            # times.
            date.date(),
            str(date.tzinfo),
            options,
            recall_tool,
            hints,
        )
        block = self._rendered.get(key)
        # nearly always the very same tuples, which are equal at once
        if block is None or block.entries != log.entries or block.pins != log.pins:
            text = _write_block(memory, date, options, hints, recall_tool)
            chars = sum(len(entry.text) for entry in log.entries)
            block = RenderedBlock(text, log.entries, log.pins, chars)
            held_texts = [text, *(entry.text for entry in log.entries)]
            self._rendered.put(key, block, sum(map(sys.getsizeof, held_texts)))
        return block


def _write_block(
    memory: Memory,
    date: datetime,
    options: ContextOptions,
    hints: ActiveHints,
    recall_tool: str | None,
) -> str:
    """Return the observation block; empty if people have withdrawn every note and pinned none."""
    entries = [(e, section) for e in memory.log.entries for section in split_entry(e)]
    parts = [section for _, section in entries]
    pins = [pin.text for pin in memory.log.pins]
    if not (parts or memory.other_threads_text or hints.task or hints.suggestion or pins):
        return ""
    return observation_block(
        [section.text for section in parts],
        task=hints.task,
        suggestion=hints.suggestion,
        as_of=format_moment(read_time(hints.as_of, date.tzinfo)) if hints.as_of else None,
        scope=f"resource:{memory.shared_log_ref.label}" if memory.shared_log_ref else "thread",
        render_date=date,
        options=options,
        labels=[section.label for section in parts],
        other_threads=memory.other_threads_text,
        pins=pins,
        ranges=[write_range_line(e, section.label, memory.thread_label) for e, section in entries]
        if recall_tool
        else None,
        recall_tool=recall_tool,
    )
