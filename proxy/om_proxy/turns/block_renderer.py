"""Render the memory that the actor is sent around the tail, once for each state of the log
(docs/spec/behaviour.md#context)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from om_proxy.apis.api import Request
from om_proxy.bounded_cache import BoundedCache
from om_proxy.memory.dates import find_zone
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.model import Memory
from om_proxy.memory.notes.sections import split_entry
from om_proxy.memory.prompt.context import (
    continuation_hint,
    format_moment,
    hint_without_notes,
    observation_block,
)
from om_proxy.memory.prompt.tail import Piece
from om_proxy.policy import MemoryContext

MAX_RENDERED_BLOCKS = 256
# A full block takes 0.7 MB: a text with one 🔴 takes four bytes a character.
MAX_RENDERED_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Prompt:
    """The body that goes upstream, and the tokens of memory's texts in it."""

    body: bytes
    tokens: int


class BlockRenderer:
    """A renderer that keeps rendered blocks: a request between two activations renders nothing."""

    def __init__(self) -> None:
        self._rendered: BoundedCache[tuple[object, ...], str] = BoundedCache(
            max_items=MAX_RENDERED_BLOCKS, max_bytes=MAX_RENDERED_BYTES, min_items=1
        )

    def render(
        self,
        request: Request,
        memory: Memory,
        pieces: Sequence[Piece],
        context: MemoryContext,
        *,
        left_out: bool = False,
    ) -> Prompt:
        """Render the prompt of this request. `memory.render_date` must be set. `left_out`: `pieces`
        lack the oldest messages of the tail."""
        block, hint = self._write_texts(memory, context, left_out=left_out)
        body = request.api.rewrite_body(request, block, hint, pieces, context.layout)
        log_chars = sum(len(entry.text) for entry in memory.log.entries)
        tokens = memory.log.tokens + (len(block) + len(hint) - log_chars) // 4  # 4 chars a token
        return Prompt(body, max(tokens, 0))

    def _write_texts(
        self, memory: Memory, context: MemoryContext, *, left_out: bool
    ) -> tuple[str, str]:
        """Return the observation block and the continuation hint; an empty text is left out."""
        date = datetime.fromtimestamp(
            memory.render_date or 0.0, find_zone(memory.timezone, context.effective.memory.timezone)
        )
        has_notes = bool(memory.log.entries or memory.other_threads_text)
        block = self._block(memory, date, context) if has_notes else ""
        hint = ""
        if has_notes:
            hint = continuation_hint(date.date(), begun=memory.coverage > 0)
        elif left_out:  # else the actor takes the first remaining message for the beginning
            hint = hint_without_notes(date.date())
        return block, hint

    def _block(self, memory: Memory, date: datetime, context: MemoryContext) -> str:
        options = context.context_options
        state = (
            memory.log.generation,
            tuple(hash(entry.text) for entry in memory.log.entries),
            hash(memory.other_threads_text),
            memory.scope,
        )
        hints = active_hints(memory)
        # only the day of `date`: the moment differs for each request. The zone: hints contain times.
        key = (memory.key, state, date.date(), str(date.tzinfo), options, hints)
        block = self._rendered.get(key)
        if block is None:
            parts = [section for entry in memory.log.entries for section in split_entry(entry)]
            block = observation_block(
                [section.text for section in parts],
                task=hints.task,
                suggestion=hints.suggestion,
                as_of=format_moment(datetime.fromtimestamp(hints.as_of, date.tzinfo))
                if hints.as_of
                else None,
                scope=f"resource:{memory.shared_log_ref.label}"
                if memory.shared_log_ref
                else "thread",
                render_date=date,
                options=options,
                labels=[section.label for section in parts],
                other_threads=memory.other_threads_text,
            )
            self._rendered.put(key, block, sys.getsizeof(block))
        return block
