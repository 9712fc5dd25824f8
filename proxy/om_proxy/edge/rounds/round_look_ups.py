"""Answer the calls of the proxy's tool that a round of a reply makes."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from om_proxy.edge.exchange import Exchange
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.edge.rounds.round_requests import report_fault
from om_proxy.engine.event_feed.inline import write_comment, write_part
from om_proxy.memory.recall.look_ups import LookUpAnswer, LookUpCall, LookUps
from om_proxy.memory.rounds import Round
from om_proxy.observability.facts import Facts, LookUpsMade
from om_proxy.wire.apis.api import RoundEnd, require_recall


class RoundLookUps:
    """The look-ups of one reply, as its record tells them."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        create_look_ups: Callable[[], Awaitable[LookUps]],
        facts: Facts,
    ) -> None:
        assert exchange.request is not None  # only a readable request has memory
        self._exchange = exchange
        self._api = require_recall(exchange.request)
        self._record = record
        self._create_look_ups = create_look_ups
        self._look_ups: LookUps | None = None  # None: nothing was looked up yet
        self._facts = facts
        self.has_failed = False  # whether look-ups failed by a fault of the proxy

    @property
    def has_steps(self) -> bool:
        """Whether the model may call the tool once more."""
        return self._record.steps < self._record.max_steps

    async def try_look_up(self, end: RoundEnd) -> list[LookUpAnswer] | None:
        """Answer the calls of a round. None: a fault of the proxy; then it is as if the next round
        were lost."""
        try:
            return await self._look_up(end)
        except Exception as exc:
            report_fault(self._exchange, exc)
            self.has_failed = True
            return None

    async def _look_up(self, end: RoundEnd) -> list[LookUpAnswer]:
        """Answer the calls of a round: one step."""
        started = time.perf_counter()
        if self._look_ups is None:
            self._look_ups = await self._create_look_ups()
        answers = await self._look_ups.answer([LookUpCall(*call) for call in end.calls])
        seconds = time.perf_counter() - started
        assert self._exchange.caller.key is not None  # only a request with a thread has memory
        figures = tuple((answer.mode, answer.outcome) for answer in answers)
        self._facts.emit(LookUpsMade(self._exchange.caller.key, figures, seconds))
        assert end.message is not None  # else nothing can be looked up
        results = [
            self._api.write_answer(call, answer.text)
            for call, answer in zip(end.calls, answers, strict=True)
        ]
        self._record.steps += 1
        self._record.seconds = seconds
        look_ups = Round(end.message, tuple(results))
        if end.is_shared:
            self._record.beside = look_ups
        else:
            self._record.rounds.append(look_ups)
        return answers

    def write_comments(self, answers: Sequence[LookUpAnswer]) -> Iterator[bytes]:
        """Write a comment for each look-up, where the client asked for them."""
        if self._exchange.comments is None or self._record.is_whole:
            return
        shared = {"step": self._record.steps, "ms": round(self._record.seconds * 1_000)}
        for answer in answers:
            data = {**shared, "mode": answer.mode, "found": answer.found}
            yield write_comment(write_part("data-om-recall", json.dumps(data)))
