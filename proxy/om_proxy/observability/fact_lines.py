"""Write facts as lines of the logger."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.model import Key
from om_proxy.observability import facts
from om_proxy.observability.logs import (
    WarningLimit,
    get_shown_thread_name,
    redact_model_name,
)

logger = structlog.get_logger("memory")

COUNTED_ONLY: tuple[type[facts.Fact], ...] = (
    facts.TurnPriced,
    facts.RequestRefused,
    facts.MemoryCallEnded,
    facts.LookUpsMade,
)
MAX_REFUSALS_A_MINUTE = 1  # of each kind of credential
REFUSAL_ADVICE = (
    "a client has a wrong one, or somebody is guessing; om_credentials_refused_total counts"
)
LOGGED_FACTS = tuple(kind for kind in facts.FACT_KINDS if kind not in COUNTED_ONLY)


class FactLines:
    """The subscriber that writes a line for each fact. `name_for_log` returns a thread's label, or
    None for a thread that the log does not name."""

    def __init__(self, name_for_log: Callable[[Key], str | None]) -> None:
        self._name_for_log = name_for_log
        # a bound logger: an unbound one is looked up again for every event
        self._turn_logger = structlog.get_logger("turn").bind()
        self._refusal_limits: dict[str, WarningLimit] = {}  # by the kind of credential

    def __call__(self, fact: facts.Fact) -> None:
        match fact:  # the most frequent one first
            case facts.TurnEnded():
                self._write_turn(fact)
            case (
                facts.TurnPriced()
                | facts.RequestRefused()
                | facts.MemoryCallEnded()
                | facts.LookUpsMade()
            ):
                pass  # COUNTED_ONLY
            case facts.UnreachedTurnEnded():
                self._write_unreached_turn(fact)
            case facts.Bypassed(reason=reason):
                # an unreadable request is the client's fault: no operator has to act
                write = logger.info if reason is Reason.UNREADABLE else logger.error
                thread = self._name(fact.key)
                write("memory.bypassed", error=fact.error, reason=reason, thread=thread, at=fact.at)
            case facts.Uncommitted() | facts.ExtraFailed():
                self._write_lost(fact)
            case facts.CredentialRefused(kind=kind):
                self._write_refusal(kind)
            case facts.Observed() | facts.Reflected():
                self._write_notes(fact)
            case facts.MemoryWorkFailed(work=work, error=error, failures=failures):
                advice = {"advice": fact.advice} if fact.advice else {}
                thread = self._name_for_log(fact.key)
                logger.warning(
                    f"{work}.failed", thread=thread, error=error, failures=failures, **advice
                )
            case facts.Forgotten() | facts.Retired() | facts.LogRetired():
                self._write_forgotten(fact)
            case facts.NotesChanged() | facts.ForgottenMeanwhile():
                self._write_change(fact)
            case facts.Decided(key=key, place=place, decision=decision):
                thread = self._name_for_log(key)
                logger.info(
                    "decision", thread=thread, place=place, decision=decision, **fact.numbers
                )
            case _:
                assert_never(fact)

    def _write_change(self, fact: facts.NotesChanged | facts.ForgottenMeanwhile) -> None:
        thread = self._name_for_log(fact.key)
        if isinstance(fact, facts.NotesChanged):
            logger.info("memory.changed", thread=thread, change=fact.change)
        else:
            logger.info("memory.forgotten_meanwhile", thread=thread)

    def _write_refusal(self, kind: str) -> None:
        """Write one line a minute for each kind: a guesser does not fill the log."""
        limit = self._refusal_limits.setdefault(kind, WarningLimit(MAX_REFUSALS_A_MINUTE))
        fields = limit.take()
        if fields is not None:
            logger.warning("credential.refused", kind=kind, advice=REFUSAL_ADVICE, **fields)

    def _write_forgotten(self, fact: facts.Forgotten | facts.Retired | facts.LogRetired) -> None:
        thread = self._name_for_log(fact.key)
        if isinstance(fact, facts.LogRetired):
            logger.info("memory.log_retired", thread=thread, why=fact.why, count=fact.count)
            return
        fields = {"messages": fact.messages, "bytes": fact.bytes}
        if isinstance(fact, facts.Retired):
            logger.info(
                "memory.retired", thread=thread, why=fact.why, threads=fact.threads, **fields
            )
        else:
            logger.info("memory.forgotten", thread=thread, **fields)

    def _write_notes(self, fact: facts.Observed | facts.Reflected) -> None:
        fields = {
            "source": fact.source_tokens,
            "tokens": fact.tokens,
            "model": redact_model_name(fact.model),
        }
        thread = self._name_for_log(fact.key)
        if isinstance(fact, facts.Observed):
            logger.info("observed", thread=thread, **fields, kept=fact.kept)
        else:
            logger.info("reflected", thread=thread, **fields)

    def _write_turn(self, turn: facts.TurnEnded) -> None:
        """Write one line for each request. A failure of the proxy is a warning; an error from the
        model server is not."""
        name = get_shown_thread_name(turn.key)
        turn_logger = self._turn_logger.bind(name=name) if name else self._turn_logger
        write = turn_logger.warning if is_own_failure(turn) else turn_logger.info
        write(
            "turn",
            status=turn.status,
            memory=turn.memory,
            reason=turn.reason,
            api=turn.api,
            thread=self._name(turn.key),
            model=redact_model_name(turn.model),
            observer=redact_model_name(turn.observer),
            tokens_received=turn.tokens_received,
            tokens_sent=turn.tokens_sent,
            case=turn.case,
            end=turn.end,
            overhead_ms=round(turn.overhead_ms, 2),
            total_ms=round(turn.total_ms, 1),
            **({"recall": turn.recall, "recall_steps": turn.recall_steps} if turn.recall else {}),
            **({"program": turn.client} if turn.client else {}),
        )

    def _write_unreached_turn(self, turn: facts.UnreachedTurnEnded) -> None:
        name = get_shown_thread_name(turn.key)
        write = self._turn_logger.warning if is_own_failure(turn) else self._turn_logger.info
        write(
            "turn",
            status=turn.status,
            memory=Status.OFF,
            reason=Reason.ROUTE,
            api=turn.api,
            route=turn.route,
            program=turn.client,
            thread=self._name(turn.key),
            **({"name": name} if name else {}),
            case=None,
            end=turn.end,
            overhead_ms=0.0,
            total_ms=round(turn.total_ms, 1),
        )

    def _write_lost(self, fact: facts.Uncommitted | facts.ExtraFailed) -> None:
        thread = self._name(fact.key)
        if isinstance(fact, facts.ExtraFailed):
            logger.error(f"{fact.extra}.failed", error=fact.error, thread=thread, at=fact.at)
            return
        optional_fields = {"at": fact.at, "turns": fact.turns}
        fields = {name: value for name, value in optional_fields.items() if value is not None}
        logger.error("memory.uncommitted", error=fact.error, thread=thread, **fields)

    def _name(self, key: Key | None) -> str | None:
        return self._name_for_log(key) if key else None


def is_own_failure(turn: facts.TurnEnded | facts.UnreachedTurnEnded) -> bool:
    """Return whether the proxy failed the request, rather than the model server or the client."""
    return turn.status >= 500 and turn.end.startswith("om_")
