"""What the actor is sent: the rendered memory around the tail, rendered once per state of the log
(docs/spec/behaviour.md#context)."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from om_proxy.memory import context, lifecycle
from om_proxy.memory.dates import zone
from om_proxy.memory.model import Memory
from om_proxy.memory.sections import sections
from om_proxy.memory.tail import Piece
from om_proxy.observing import Call
from om_proxy.wire.chat import ChatRequest

RENDERED = 256  # blocks kept
BYTES = 32 * 2**20  # of them; a full one is 0.7 MB: a text with one 🔴 takes four bytes a character


@dataclass(frozen=True, slots=True)
class Prompt:
    """Raw JSON messages in order, and the tokens of what is ours among them."""

    messages: tuple[bytes, ...]
    tokens: int


class Prompts:
    """Keeps rendered blocks, so that a request between two activations renders nothing."""

    def __init__(self) -> None:
        self._rendered: OrderedDict[tuple[object, ...], str] = OrderedDict()
        self._held = 0  # bytes

    def assemble(
        self, request: ChatRequest, memory: Memory, pieces: Sequence[Piece], call: Call, *, left_out: bool = False
    ) -> Prompt:
        """The prompt of this request. `memory.render_date` is set. `left_out`: `pieces` lack the oldest messages of the tail."""
        date = datetime.fromtimestamp(memory.render_date or 0.0, zone(memory.timezone, call.effective.memory.timezone))
        told = bool(memory.log or memory.others)
        block = self._block(memory, date, call) if told else ""
        hint = ""
        if told:
            hint = context.continuation_hint(date.date(), begun=memory.coverage > 0)
        elif left_out:  # the actor must not take the first message that is left for the beginning
            hint = context.hint_without_notes(date.date())
        messages = context.assemble(
            request.instructions, request.instruction_roles, block, hint, [p.raw for p in pieces], call.layout
        )
        entries = sum(len(o.text) for o in memory.log)
        ours = memory.log_tokens + (len(block) + len(hint) - entries) // 4
        return Prompt(messages, max(ours, 0))

    def _block(self, memory: Memory, date: datetime, call: Call) -> str:
        options = call.context_options
        # the day, not the moment, which moves; and the zone, in which the hints' time is told
        state = (memory.generation, tuple(hash(o.text) for o in memory.log), hash(memory.others), memory.scope)
        hints = lifecycle.active_hints(memory)
        key = (memory.key, state, date.date(), str(date.tzinfo), options, hints)
        found = self._rendered.get(key)
        if found is None:
            parts = [section for o in memory.log for section in sections(o)]
            found = context.observation_block(
                [section.text for section in parts],
                task=hints.task,
                suggestion=hints.suggestion,
                as_of=context.written_moment(datetime.fromtimestamp(hints.as_of, date.tzinfo)) if hints.as_of else None,
                scope=f"resource:{memory.hub.label}" if memory.hub else "thread",
                render_date=date,
                options=options,
                labels=[section.label for section in parts],
                others=memory.others,
            )
            self._rendered[key] = found
            self._held += sys.getsizeof(found)
            while len(self._rendered) > RENDERED or (self._held > BYTES and len(self._rendered) > 1):
                _, gone = self._rendered.popitem(last=False)
                self._held -= sys.getsizeof(gone)
        else:
            self._rendered.move_to_end(key)
        return found
