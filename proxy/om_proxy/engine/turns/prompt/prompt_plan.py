"""Hold a prompt before it is written: its texts, the messages that it keeps, and the tokens of its
parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from om_proxy.common.late_patterns import compile_late
from om_proxy.engine.turns.turn import OpenedTurn
from om_proxy.memory.prompt import prompt_cost
from om_proxy.memory.prompt.prompt_cost import BYTES_PER_TOKEN
from om_proxy.memory.prompt.tail import Piece


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
