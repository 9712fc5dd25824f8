"""Decide for each request whether it is offered the tool that looks up earlier messages, and
remember which model servers refused it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from om_proxy.apis.api import Request
from om_proxy.errors import StorageError
from om_proxy.look_ups.offered_threads import OfferedThreads
from om_proxy.memory.recall.offering import PLAIN_USE, Offer, ToolUse, decide_offering
from om_proxy.memory.rounds import Round
from om_proxy.memory.usage import Usage
from om_proxy.turns.turn import PreparedTurn

# A refusal counts if the same request without the tool was accepted.
MAX_REFUSALS_IN_A_ROW = 2
REFUSED_FOR_S = 3_600.0
MAX_REMEMBERED_REFUSALS = 1_024  # clients name models as they like


@dataclass(slots=True)
class RecallRecord:
    """What became of the offer in one exchange."""

    word: Offer
    tool: str | None  # the tool's name; None: this request does not offer it
    max_steps: int = 0
    is_whole: bool = False  # whether the reply was no stream, so its steps are known before it
    steps: int = 0  # answered
    seconds: float = 0.0  # that the newest step took
    # those whose answers the model was sent; oldest first
    rounds: list[Round] = field(default_factory=list)
    # of the last round, if the client's tools were called too
    beside: Round | None = None
    # of each round of the reply; None: not reported
    usages: list[Usage | None] = field(default_factory=list)
    use: ToolUse = PLAIN_USE  # of the request

    def withdraw(self, word: Offer) -> None:
        """The answer is to a request without the tool."""
        self.tool, self.word = None, word

    @property
    def later_usages(self) -> list[Usage | None]:
        """The usage of each round after the first."""
        return self.usages[1:]


class _Refusals(Struct):
    in_a_row: int = 0
    refused_until: float = 0.0  # seconds of the clock


class RecallOffers:
    """The offers of one process. `clock`: seconds that only grow. Refusals of each tenant's requests
    count for that tenant alone: what one sends says nothing of what a server takes from others."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        offered_threads: OfferedThreads | None = None,
    ) -> None:
        self._clock = clock
        self._offered_threads = offered_threads
        self._refusals: dict[tuple[str, str, str | None], _Refusals] = {}

    def decide(
        self, request: Request, tenant: str, upstream: str, max_steps: int
    ) -> RecallRecord | None:
        """Return the offer to this request. None: its tools cannot be read."""
        use = request.api.read_tool_use(request)
        if use is None:
            return None
        refusals = self._refusals.get((tenant, upstream, request.model))
        is_refused = refusals is not None and self._clock() < refusals.refused_until
        offering = decide_offering(use, is_refused=is_refused)
        return RecallRecord(offering.word, offering.tool, max_steps, use=use)

    async def can_look_up(self, turn: PreparedTurn) -> bool:
        """Return whether there is anything that the prompt does not show
        (docs/spec/recall.md#offered)."""
        retrieval = turn.opened.context.effective.memory.retrieval
        if turn.has_notes or not turn.opened.can_rewrite or retrieval.offer == "notes":
            return turn.has_notes
        if turn.body is not None:
            return True  # messages are left out of it, or it shows earlier look-ups
        if turn.opened.look_up_scope == "thread" or self._offered_threads is None:
            return False
        try:
            return await self._offered_threads.has_others(turn.opened.key)
        except (StorageError, TimeoutError):
            return False  # nothing can be looked up either

    def drop_threads(self) -> None:
        """Forget which threads have others beside them: threads were forgotten."""
        if self._offered_threads is not None:
            self._offered_threads.clear()

    def count_accepted(self, tenant: str, upstream: str, model: str | None) -> None:
        if self._refusals:
            self._refusals.pop((tenant, upstream, model), None)

    def count_refused(self, tenant: str, upstream: str, model: str | None) -> None:
        """Count a request that was accepted only without the tool."""
        if len(self._refusals) >= MAX_REMEMBERED_REFUSALS:
            self._refusals.clear()
        refusals = self._refusals.setdefault((tenant, upstream, model), _Refusals())
        refusals.in_a_row += 1
        if refusals.in_a_row >= MAX_REFUSALS_IN_A_ROW:
            refusals.refused_until = self._clock() + REFUSED_FOR_S
            refusals.in_a_row = 0
