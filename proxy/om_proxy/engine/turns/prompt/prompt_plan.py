"""Hold a prompt before it is written: its texts, and the messages that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from om_proxy.engine.turns.turn import OpenedTurn
from om_proxy.memory.prompt import prompt_cost
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
