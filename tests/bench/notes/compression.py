"""How much shorter notes are than what they stand for, of chat and of work with tools.

Notes do not say which message a line came from. So an observation counts as a whole: as `tools`
where calls and results make half of its messages' tokens or more, else as `chat`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.cost_compression import Kind

CHAT, TOOLS = "chat", "tools"


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens of one message, and whether it calls a tool or answers one."""

    tokens: int
    is_tools: bool

    @classmethod
    def of(cls, message: Mapping[str, Any], tokens: int) -> Said:
        return cls(
            tokens, message["role"] in ("tool", "function") or bool(message.get("tool_calls"))
        )


@dataclass(frozen=True, slots=True)
class Noted:
    """Notes of so many tokens, which stand for messages `after` to `last`, numbered from 0, the
    last not included."""

    after: int
    last: int
    tokens: int


def compress_by_kind(said: Sequence[Said], noted: Iterable[Noted]) -> dict[str, Kind]:
    """By kind of observation: tokens of its messages and of its notes."""
    found = {CHAT: Kind(), TOOLS: Kind()}
    for notes in noted:
        messages = said[notes.after : notes.last]
        whole = sum(m.tokens for m in messages)
        of_tools = sum(m.tokens for m in messages if m.is_tools)
        name = TOOLS if whole and 2 * of_tools >= whole else CHAT
        found[name] += Kind(whole, notes.tokens)
    return {name: kind for name, kind in found.items() if kind.source}
