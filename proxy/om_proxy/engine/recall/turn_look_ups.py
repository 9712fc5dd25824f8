"""Answer the look-ups of one reply: what goes wrong is told as text, and the reply goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from om_proxy.common.errors import OmError, Overloaded, raise_site
from om_proxy.engine.recall.performing import LookUpPerformer, ReadingRights
from om_proxy.memory.recall.arguments import (
    CANNOT_READ_NOW,
    LOOKED_UP_ALREADY,
    NO_LOOK_UPS_LEFT,
    NOT_AN_OBJECT,
    TOO_MANY_LOOK_UPS,
    LookUp,
    LookUpFault,
    find_mode,
    read_look_up,
)
from om_proxy.memory.rounds import LookUpAnswer, LookUpCall, LookUpMode, LookUpOutcome
from om_proxy.wire.apis.json_text import parse_lax, replace_lone_surrogates
from om_proxy.wire.server.capacity.work_queues import WorkQueue

MAX_CALLS_A_STEP = 8
MAX_ARGUMENT_CHARS = 1_000_000

logger = structlog.get_logger("recall")


class TurnLookUps:
    """The look-ups of one reply (`memory.rounds.LookUps`).

    `max_steps`: steps that are answered; the last one says that no more are left. Each step waits
    for a slot of `queue`. `timeout_s`: of each step, from then on. What the store cannot give in
    that time is told, and may be asked again.
    """

    def __init__(
        self,
        performer: LookUpPerformer,
        rights: ReadingRights,
        queue: WorkQueue,
        *,
        max_steps: int,
        timeout_s: float,
    ) -> None:
        self._performer = performer
        self._rights = rights
        self._queue = queue
        self._conversations = performer.open_conversations(rights)
        self._max_steps = max_steps
        self._timeout_s = timeout_s
        self._steps = 0
        self._answered: set[LookUp] = set()

    async def answer(self, calls: Sequence[LookUpCall]) -> list[LookUpAnswer]:
        """Answer the calls of one step, one after the other. It raises nothing but
        cancellation."""
        self._steps += 1
        is_last = self._steps >= self._max_steps
        answered_calls = MAX_CALLS_A_STEP if self._steps <= self._max_steps else 0
        rights = self._rights
        if is_last and calls:
            # room for the words behind the last answer
            room = self._performer.count_tokens(f"\n{NO_LOOK_UPS_LEFT}") + 1
            rights = rights._replace(max_tokens=rights.max_tokens - room)
        answers = await self._answer_in_slot(calls[:answered_calls], rights)
        if is_last and answers:
            last = answers[-1]
            answers[-1] = last._replace(text=f"{last.text}\n{NO_LOOK_UPS_LEFT}")
        left_out = calls[answered_calls:]
        return answers + [
            LookUpAnswer(NO_LOOK_UPS_LEFT, _guess_mode(call), "error", 0) for call in left_out
        ]

    async def _answer_in_slot(
        self, calls: Sequence[LookUpCall], rights: ReadingRights
    ) -> list[LookUpAnswer]:
        if not calls:
            return []
        try:
            slot = await self._queue.take(rights.key.tenant)
        except Overloaded:
            busy = TOO_MANY_LOOK_UPS
            return [LookUpAnswer(busy, _guess_mode(call), "unavailable", 0) for call in calls]
        with slot:
            ends_at = asyncio.get_running_loop().time() + self._timeout_s
            return [await self._answer_call(call, rights, ends_at) for call in calls]

    async def _answer_call(
        self, call: LookUpCall, rights: ReadingRights, ends_at: float
    ) -> LookUpAnswer:
        fields = parse_arguments(call.arguments)
        if fields is None:
            return LookUpAnswer(NOT_AN_OBJECT, "messages", "error", 0)
        mode = find_mode(fields)
        try:
            look_up = read_look_up(fields, rights.zone)
            if look_up in self._answered:
                return LookUpAnswer(LOOKED_UP_ALREADY, mode, "error", 0)
            async with asyncio.timeout_at(ends_at):
                result = await self._performer.perform(look_up, rights, self._conversations)
        except LookUpFault as fault:
            return LookUpAnswer(fault.text, mode, "error", 0)
        except (OmError, TimeoutError):
            return LookUpAnswer(CANNOT_READ_NOW, mode, "unavailable", 0)
        except Exception as exc:  # the reply goes on, whatever is wrong here
            logger.error("recall.failed", error=type(exc).__name__, at=raise_site(exc))
            return LookUpAnswer(CANNOT_READ_NOW, mode, "unavailable", 0)
        self._answered.add(look_up)
        outcome: LookUpOutcome = "found" if result.found else "nothing"
        return LookUpAnswer(result.text, result.mode, outcome, result.found)


def parse_arguments(arguments: str) -> Mapping[str, object] | None:
    """Parse the arguments as the model wrote them. Nothing and `null` are none; None: they are no
    JSON object."""
    if len(arguments) > MAX_ARGUMENT_CHARS:
        return None
    if arguments.strip() in ("", "null"):
        return {}
    data = arguments.encode("utf-8", "replace")
    return parse_lax(replace_lone_surrogates(data) or data)


def _guess_mode(call: LookUpCall) -> LookUpMode:
    return find_mode(parse_arguments(call.arguments) or {})
