"""Write facts as lines of the log: the first subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from om_proxy.facts import (
    Bypassed,
    Fact,
    Forgotten,
    ForgottenMeanwhile,
    MemoryWorkFailed,
    Observed,
    Reflected,
    TurnEnded,
    Uncommitted,
    UnreachedTurnEnded,
)
from om_proxy.memory.model import Key
from om_proxy.reasons import Reason, Status
from om_proxy.telemetry.logs import model_name, thread_name

log = structlog.get_logger("memory")


class FactLines:
    """Writes a line for each fact. `label` returns a thread's name in the log."""

    def __init__(self, label: Callable[[Key], str | None]) -> None:
        self._label = label
        # the logger itself: a lazy one is looked up anew for every event
        self._turn_log = structlog.get_logger("turn").bind()

    def __call__(self, fact: Fact) -> None:
        match fact:  # the most frequent one first
            case TurnEnded():
                self._write_turn(fact)
            case UnreachedTurnEnded():
                self._write_unreached_turn(fact)
            case Bypassed(reason=reason):
                # the client's fault needs no operator's attention
                write = log.info if reason is Reason.UNREADABLE else log.error
                thread = self._name(fact.key)
                write("memory.bypassed", error=fact.error, reason=reason, thread=thread, at=fact.at)
            case Uncommitted():
                self._write_uncommitted(fact)
            case Observed(key=key, tokens=tokens, kept=kept):
                source = fact.source_tokens
                log.info(
                    "observed", thread=self._label(key), source=source, tokens=tokens, kept=kept
                )
            case Reflected(key=key, tokens=tokens):
                source = fact.source_tokens
                log.info("reflected", thread=self._label(key), source=source, tokens=tokens)
            case MemoryWorkFailed(work=work, error=error, failures=failures):
                advice = {"advice": fact.advice} if fact.advice else {}
                thread = self._label(fact.key)
                log.warning(
                    f"{work}.failed", thread=thread, error=error, failures=failures, **advice
                )
            case Forgotten(key=key, messages=messages):
                thread = self._label(key)
                log.info("memory.forgotten", thread=thread, messages=messages, bytes=fact.bytes)
            case ForgottenMeanwhile(key=key):
                log.info("memory.forgotten_meanwhile", thread=self._label(key))
            case _:
                assert_never(fact)

    def _write_turn(self, turn: TurnEnded) -> None:
        """Write one line for each request. A failure of the proxy is a warning; an error from the
        model server is not."""
        name = thread_name(turn.key)  # None: the log may not show it
        turn_log = self._turn_log.bind(name=name) if name else self._turn_log
        write = turn_log.warning if is_own_failure(turn) else turn_log.info
        write(
            "turn",
            status=turn.status,
            memory=turn.memory,
            reason=turn.reason,
            thread=self._name(turn.key),
            model=model_name(turn.model),
            tokens_received=turn.tokens_received,
            tokens_sent=turn.tokens_sent,
            case=turn.case,
            end=turn.end,
            overhead_ms=round(turn.overhead_ms, 2),
            total_ms=round(turn.total_ms, 1),
        )

    def _write_unreached_turn(self, turn: UnreachedTurnEnded) -> None:
        name = thread_name(turn.key)
        write = self._turn_log.warning if is_own_failure(turn) else self._turn_log.info
        write(
            "turn",
            status=turn.status,
            memory=Status.OFF,
            reason=Reason.ROUTE,
            route=turn.route,
            thread=self._name(turn.key),
            **({"name": name} if name else {}),
            case=None,
            end=turn.end,
            overhead_ms=0.0,
            total_ms=round(turn.total_ms, 1),
        )

    def _write_uncommitted(self, fact: Uncommitted) -> None:
        at = {} if fact.at is None else {"at": fact.at}
        turns = {} if fact.turns is None else {"turns": fact.turns}
        thread = self._name(fact.key)
        log.error("memory.uncommitted", error=fact.error, thread=thread, **at, **turns)

    def _name(self, key: Key | None) -> str | None:
        return self._label(key) if key else None


def is_own_failure(turn: TurnEnded | UnreachedTurnEnded) -> bool:
    """Whether the proxy failed the request, rather than the model server or the client."""
    return turn.status >= 500 and turn.end.startswith("om_")
