"""The look-ups of one reply: what the model asks, what it is told, and what is kept with the reply
for later prompts.

What is kept are messages of the reply's API, as its bytes: later prompts show them, and nothing
else reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from om_proxy.memory.value_bounds import Tokens

MAX_KEPT_BYTES = 16 * 1024  # of the look-ups of one reply

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
    """Answers the look-ups of one turn. It knows whose messages may be read and what the prompt
    shows; no argument of a call changes either. It is imported when it is first used."""

    async def answer(self, calls: Sequence[LookUpCall]) -> list[LookUpAnswer]:
        """Return an answer to each of these calls, in their order. All of them are one step.

        It raises nothing but cancellation: what goes wrong is told as text."""


class Round(NamedTuple):
    """One reply of the model server in which the model called our tool, with what it was told."""

    assistant: bytes  # the assistant's message as it came, but for the client's calls
    results: tuple[bytes, ...]  # a message for each call of ours in it, in their order

    def __repr__(self) -> str:
        """Leave out the messages: they must not be in a log or an error."""
        return f"<Round {len(self.results)} results, {count_bytes(self)} bytes>"


class LookedUp(NamedTuple):
    """The look-ups of one reply.

    `rounds`: those that came before the reply that the client saw the end of; oldest first.
    `beside`: of the last round, if our tool was called beside the client's tools. Its calls belong
    to the very message that the client has, without our calls.
    """

    rounds: tuple[Round, ...] = ()
    beside: Round | None = None
    tokens: Tokens = 0  # of all these messages, with framing; they are counted when the turn ends

    @property
    def json_bytes(self) -> int:
        beside = count_bytes(self.beside) if self.beside else 0
        return sum(map(count_bytes, self.rounds)) + beside

    def __repr__(self) -> str:
        """Leave out the messages, as `Round` does."""
        beside = " and one beside" if self.beside else ""
        return f"<LookedUp {len(self.rounds)} rounds{beside}, {self.tokens}t>"


def keep_rounds(rounds: Sequence[Round], beside: Round | None = None) -> LookedUp | None:
    """Return what is kept of a reply's look-ups; None for none.

    The first rounds are kept, as many as `MAX_KEPT_BYTES` holds: so the next prompt goes on with
    what the provider's cache holds. A round is kept whole or not at all, because a call without its
    result is refused.
    """
    kept: list[Round] = []
    free_bytes = MAX_KEPT_BYTES
    for one in (*rounds, *([beside] if beside else ())):
        free_bytes -= count_bytes(one)
        if free_bytes < 0:
            break
        kept.append(one)
    if not kept:
        return None
    if beside is not None and len(kept) > len(rounds):
        return LookedUp(tuple(kept[:-1]), kept[-1])
    return LookedUp(tuple(kept))


def count_bytes(one: Round) -> int:
    return len(one.assistant) + sum(map(len, one.results))
