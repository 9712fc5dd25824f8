"""The look-ups of one reply: what the model asks, and what it is told.

The object that answers look-ups is made for one turn. It knows whose messages may be read and what
the prompt shows; no argument of a call changes either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

LookUpMode = Literal["search", "messages", "threads"]
# `nothing`: the call was understood, and there is nothing to show; `error`: the call cannot be
# carried out as it is; `unavailable`: the store is down or too slow
LookUpOutcome = Literal["found", "nothing", "error", "unavailable"]


class LookUpCall(NamedTuple):
    """One call of the model to our tool."""

    id: str
    arguments: str  # JSON as the model wrote it, whatever it is

    def __repr__(self) -> str:
        """Leave out the arguments: a query must not be in a log or an error."""
        return f"<LookUpCall {len(self.arguments)} characters>"


class LookUpAnswer(NamedTuple):
    """The text that the model is told, and what may be counted of it."""

    text: str
    mode: LookUpMode
    outcome: LookUpOutcome
    found: int  # number of messages or threads that the text shows

    def __repr__(self) -> str:
        """Leave out the text: messages must not be in a log or an error."""
        return f"<LookUpAnswer {self.mode} {self.outcome} {self.found}>"


class LookUps(Protocol):
    """Answers the look-ups of one turn."""

    async def answer(self, calls: Sequence[LookUpCall]) -> list[LookUpAnswer]:
        """Return an answer to each of these calls, in their order. All of them are one step.

        It raises nothing but cancellation: what goes wrong is told as text."""
