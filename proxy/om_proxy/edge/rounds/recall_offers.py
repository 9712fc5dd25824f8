"""Decide for each request whether it is offered the tool that looks up earlier messages, by what its
model server took so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from om_proxy.common.errors import StorageError
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.recall.conversations import OfferedThreads
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.prompt.context import Layout, adds_system_message, layout_without_system
from om_proxy.memory.recall.offering import PLAIN_USE, Offer, ToolUse, decide_offering
from om_proxy.memory.rounds import Round
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.additions import NOTHING, Addition, LessonBook, Trial
from om_proxy.wire.apis.api import Request

PROMPT_ADDITIONS = Addition.TOOL | Addition.SYSTEM | Addition.FORM | Addition.HISTORY


@dataclass(slots=True)
class RecallRecord:
    """The outcome of the offer in one exchange."""

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
    # of each round of the reply that has ended; None: not reported
    usages: list[Usage | None] = field(default_factory=list)
    # reads what a later round under way has reported so far; None: none is under way
    read_open_usage: Callable[[], Usage | None] | None = None
    use: ToolUse = PLAIN_USE  # of the request

    def withdraw(self, word: Offer) -> None:
        """The answer is to a request without the tool."""
        self.tool, self.word = None, word

    def end_round(self, usage: Usage | None) -> None:
        """Note that the round under way has ended."""
        self.usages.append(usage)
        self.read_open_usage = None

    def list_usages(self) -> list[Usage | None]:
        """Return the usage of each round. The turn is stored before the last round has ended: the
        end of a stream waits for that."""
        open_usages = [self.read_open_usage()] if self.read_open_usage else []
        return [*self.usages, *open_usages]


class RecallOffers:
    """The offers of one process, and what model servers refused of them. `clock`: seconds that only
    grow. Refusals of each tenant's requests count for that tenant alone: what one sends says nothing
    of what a server takes from others."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        offered_threads: OfferedThreads | None = None,
    ) -> None:
        self._clock = clock
        self._offered_threads = offered_threads
        self._lessons = LessonBook()

    def begin_trial(
        self, request: Request, tenant: str, upstream: str, use: ToolUse = PLAIN_USE
    ) -> Trial:
        """Begin the way of a request to this server. A server may take the tool, and not in a stream,
        or together with JSON, another option or a picture."""
        kind = (
            tenant,
            upstream,
            request.model,
            request.stream,
            request.offers_tools,
            use.wants_json,
            bool(request.instructions),
            request.options,
        )
        lessons = self._lessons.find(kind)
        # no body is searched before the server refused one with a picture
        if lessons.with_pictures is not None and request.api.has_pictures(request.body):
            lessons = lessons.with_pictures
        return Trial(lessons, PROMPT_ADDITIONS, self._clock)

    async def can_look_up(self, turn: PreparedTurn) -> bool:
        """Return whether there is anything that the prompt does not show
        (docs/contributing/recall.md#offered)."""
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


def offer_additions(
    offers: RecallOffers,
    request: Request,
    tenant: str,
    upstream: str,
    context: MemoryContext,
    *,
    can_look_up: bool = True,
) -> tuple[RecallRecord | None, Trial, MemoryContext]:
    """Decide what memory may add to the request, by what its server refused lately. Return the offer
    of the look-up tool, the way of the request, and the context with the layout that the server
    takes. None for the offer: look-ups are off, or the request's tools cannot be read."""
    retrieval = context.effective.memory.retrieval
    recall = request.api.recall
    use = None
    if recall is not None and can_look_up and retrieval.enabled:
        use = recall.read_tool_use(request)
    trial = offers.begin_trial(request, tenant, upstream, use or PLAIN_USE)
    record = None
    if use is not None:
        offering = decide_offering(
            use,
            is_refused=Addition.TOOL not in trial.sent,
            is_automatic=retrieval.enabled == "auto",
            # a model whose client offers tools is taken to call them
            calls_tools=context.calls_tools or request.offers_tools,
        )
        record = RecallRecord(offering.word, offering.tool, retrieval.max_steps, use=use)
    elif recall is None and can_look_up and retrieval.enabled:
        record = RecallRecord(Offer.API, None)
    if trial.sent != PROMPT_ADDITIONS:
        context = context.with_layout(choose_layout(context.layout, request, trial.sent))
    return record, trial, context


def choose_layout(layout: Layout, request: Request, sent: Addition) -> Layout:
    """Return the layout of a prompt with these additions."""
    has_instructions = bool(request.instructions)
    if Addition.SYSTEM in sent or not adds_system_message(
        layout, has_instructions=has_instructions
    ):
        return layout
    return layout_without_system(has_instructions=has_instructions)


def list_additions(turn: PreparedTurn, recall: RecallRecord | None) -> Addition:
    """Return what memory adds to the request of this turn."""
    adds_system = turn.has_notes and adds_system_message(
        turn.opened.context.layout, has_instructions=bool(turn.opened.request.instructions)
    )
    has_tool = recall is not None and bool(recall.tool)
    return _join_additions(has_tool, turn.body is not None, adds_system)


@cache
def _join_additions(has_tool: bool, has_body: bool, adds_system: bool) -> Addition:
    additions = Addition.TOOL if has_tool else NOTHING
    additions |= Addition.FORM | Addition.HISTORY if has_body else NOTHING
    return additions | (Addition.SYSTEM if adds_system else NOTHING)
