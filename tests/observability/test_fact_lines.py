"""Each fact is one line of the log, with the names and fields that operators know."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.model import Key
from om_proxy.observability.fact_lines import REFUSAL_ADVICE, FactLines
from om_proxy.observability.facts import (
    Bypassed,
    CredentialRefused,
    Decided,
    ExtraFailed,
    Fact,
    Forgotten,
    ForgottenMeanwhile,
    LogRetired,
    MemoryWorkFailed,
    NotesChanged,
    Observed,
    Reflected,
    Retired,
    TurnEnded,
    Uncommitted,
    UnreachedTurnEnded,
)

KEY = Key("tenant", "resource", "kitchen")
TURN = {
    "status": 200,
    "memory": "applied",
    "reason": None,
    "api": "chat",
    "thread": "kitchen",
    "model": "m",
    "observer": None,
    "tokens_received": 9,
    "tokens_sent": 5,
    "case": "append",
    "end": "complete",
    "overhead_ms": 0.26,
    "total_ms": 10.1,
}
UNREACHED = {
    "status": 200,
    "memory": "off",
    "reason": "route",
    "program": "codex",
    "api": "responses",
    "route": "/v1/responses",
    "thread": "kitchen",
    "case": None,
    "end": "complete",
    "overhead_ms": 0.0,
    "total_ms": 2.1,
}


def turn_ended(status: int = 200, end: str = "complete", key: Key | None = KEY) -> TurnEnded:
    return TurnEnded(key, status, Status.APPLIED, None, "m", 9, 5, "append", end, 0.2551, 10.13)


def line(event: str, level: str, **fields: Any) -> dict[str, Any]:
    return {"event": event, "log_level": level, **fields}


@pytest.mark.parametrize(
    ("fact", "written"),
    [
        (turn_ended(), line("turn", "info", **TURN)),
        (turn_ended(key=None), line("turn", "info", **{**TURN, "thread": None})),
        (
            structs.replace(turn_ended(), memory=Status.OFF, client="curl"),
            line("turn", "info", **{**TURN, "memory": "off", "program": "curl"}),
        ),
        (turn_ended(502), line("turn", "info", **{**TURN, "status": 502})),
        (
            turn_ended(502, "om_upstream_unreachable"),
            line("turn", "warning", **{**TURN, "status": 502, "end": "om_upstream_unreachable"}),
        ),
        (
            UnreachedTurnEnded(KEY, 200, "/v1/responses", "complete", 2.12, "responses", "codex"),
            line("turn", "info", **UNREACHED),
        ),
        (
            UnreachedTurnEnded(
                KEY, 504, "/v1/responses", "om_upstream_timeout", 2.12, "responses", "codex"
            ),
            line("turn", "warning", **{**UNREACHED, "status": 504, "end": "om_upstream_timeout"}),
        ),
        (
            Bypassed(KEY, Reason.STORAGE, "StorageError", "store.py:7"),
            line(
                "memory.bypassed",
                "error",
                error="StorageError",
                reason="storage",
                thread="kitchen",
                at="store.py:7",
            ),
        ),
        (
            Bypassed(None, Reason.UNREADABLE, "Unreadable", "chat.py:7"),
            line(
                "memory.bypassed",
                "info",
                error="Unreadable",
                reason="unreadable",
                thread=None,
                at="chat.py:7",
            ),
        ),
        (
            Uncommitted(KEY, "KeyError", at="store.py:7"),
            line(
                "memory.uncommitted", "error", error="KeyError", thread="kitchen", at="store.py:7"
            ),
        ),
        (
            Uncommitted(KEY, "SpoolFull", turns=2),
            line("memory.uncommitted", "error", error="SpoolFull", thread="kitchen", turns=2),
        ),
        (
            ExtraFailed(KEY, "ledger", "KeyError", "ledger.py:7"),
            line("ledger.failed", "error", error="KeyError", thread="kitchen", at="ledger.py:7"),
        ),
        (
            Decided(KEY, "request", "activate", {"count": 2, "why": "threshold"}),
            line(
                "decision",
                "info",
                thread="kitchen",
                place="request",
                decision="activate",
                count=2,
                why="threshold",
            ),
        ),
        (
            Observed(KEY, 900, 90, True, "m"),
            line("observed", "info", thread="kitchen", source=900, tokens=90, model="m", kept=True),
        ),
        (
            Reflected(KEY, 900, 90, "m"),
            line("reflected", "info", thread="kitchen", source=900, tokens=90, model="m"),
        ),
        (
            MemoryWorkFailed(KEY, "observe", "om_model_busy", 2, ""),
            line("observe.failed", "warning", thread="kitchen", error="om_model_busy", failures=2),
        ),
        (
            MemoryWorkFailed(KEY, "reflect", "om_model", 1, "set a key"),
            line(
                "reflect.failed",
                "warning",
                thread="kitchen",
                error="om_model",
                failures=1,
                advice="set a key",
            ),
        ),
        (
            Forgotten(KEY, 3, "gone"),
            line("memory.forgotten", "info", thread="kitchen", messages=3, bytes="gone"),
        ),
        (
            Retired(KEY, "ttl", 1, 3, "gone"),
            line(
                "memory.retired",
                "info",
                thread="kitchen",
                why="ttl",
                threads=1,
                messages=3,
                bytes="gone",
            ),
        ),
        (
            LogRetired(KEY, "max_observations", 2),
            line("memory.log_retired", "info", thread="kitchen", why="max_observations", count=2),
        ),
        (
            NotesChanged(KEY, "edited"),
            line("memory.changed", "info", thread="kitchen", change="edited"),
        ),
        (
            CredentialRefused("admin"),
            line("credential.refused", "warning", kind="admin", advice=REFUSAL_ADVICE),
        ),
        (ForgottenMeanwhile(KEY), line("memory.forgotten_meanwhile", "info", thread="kitchen")),
    ],
)
def test_lines(fact: Fact, written: dict[str, Any]) -> None:
    """A fact's line has this level and these fields, and the thread's label for its name."""
    with capture_logs() as lines:
        FactLines(lambda key: key.thread)(fact)
    assert lines == [written]


def test_guesses_do_not_fill_the_log() -> None:
    """One line a minute for each kind of credential."""
    write = FactLines(lambda key: key.thread)
    with capture_logs() as lines:
        for kind in ("admin", "key", "admin", "key"):
            write(CredentialRefused(kind))
    assert [one["kind"] for one in lines] == ["admin", "key"]
