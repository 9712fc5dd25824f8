"""Lines for a terminal: every kind of event, and no character that a terminal would obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.observability.console import escape_controls, render_event, render_tokens

TURN: dict[str, Any] = {
    "event": "turn",
    "level": "info",
    "timestamp": "2026-03-03T09:13:27+00:00",
    "status": 200,
    "memory": "applied",
    "reason": None,
    "thread": "9d4d0c7e11aa22bb",
    "name": "kitchen-rebuild",
    "model": "gpt-4o-mini",
    "tokens_received": 64_672,
    "tokens_sent": 5_873,
    "case": "extend",
    "end": "complete",
    "overhead_ms": 0.61,
    "total_ms": 10.2,
}


def line(**changed: Any) -> str:
    return render_event({**TURN, **changed}, "10:13:27", is_colored=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {},
            "10:13:27  200  kitchen-rebuild  gpt-4o-mini  applied  64,672 → 5,873 tokens (−91 %)  10 ms (+0.6)",
        ),
        (
            {"name": None, "memory": "raw", "tokens_sent": 64_672},
            "10:13:27  200  9d4d0c7e11aa22bb  gpt-4o-mini  raw  64,672 tokens  10 ms (+0.6)",
        ),
        (
            {"memory": "off", "reason": "no-thread", "thread": None, "name": None}
            | {"model": None, "tokens_received": None, "tokens_sent": None},
            "10:13:27  200  off: no-thread  10 ms (+0.6)",
        ),
        (
            {
                "status": 502,
                "memory": "degraded",
                "reason": "storage",
                "end": "om_upstream_unreachable",
            }
            | {"tokens_received": 9, "tokens_sent": 9, "total_ms": 61_400.0, "level": "warning"},
            "10:13:27  502  kitchen-rebuild  gpt-4o-mini  degraded: storage  9 tokens  61.4 s (+0.6)  om_upstream_unreachable",
        ),
        (
            {"name": "x" * 300, "model": "y" * 300, "tokens_received": 100, "tokens_sent": 150},
            f"10:13:27  200  {'x' * 39}…  {'y' * 39}…  applied  100 → 150 tokens (+50 %)  10 ms (+0.6)",
        ),
    ],
    ids=["applied", "raw, by its label", "no thread", "a failure", "long names"],
)
def test_a_turn(changed: dict[str, Any], said: str) -> None:
    """A request's line shows status, thread, model, what memory did, tokens, times, and how it
    ended if it did not end well."""
    assert line(**changed) == said


def test_any_other_event() -> None:
    """The line shows level, name and fields, without fields of None."""
    event = {
        "event": "observe.failed",
        "level": "warning",
        "timestamp": "t",
        "thread": "9d",
        "error": None,
        "failures": 2,
    }
    assert (
        render_event(event, "10:13:40", is_colored=False)
        == "10:13:40  warning  observe.failed  thread=9d  failures=2"
    )


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("info", "\x1b[2m1\x1b[0m  {}"),
        ("warning", "\x1b[2m1\x1b[0m  \x1b[33m{}\x1b[0m"),
        ("error", "\x1b[2m1\x1b[0m  \x1b[31m{}\x1b[0m"),
    ],
)
def test_colors(level: str, shown: str) -> None:
    """A warning is yellow, an error red, the time faint."""
    event = {"event": "due.failed", "level": level}
    assert render_event(event, "1", is_colored=True) == shown.format(f"{level}  due.failed")


@given(st.text())
def test_nothing_that_a_terminal_obeys(text: str) -> None:
    """No escape sequence, line end or lone surrogate of a client's names reaches the terminal."""
    shown = line(model=text, name=text, end=text)
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("ключ café 🔴", "ключ café 🔴"), ("a\x1b[2Jb\n", "a\\x1b[2Jb\\n"), ("\ud800", "\\ud800")],
)
def test_escape_controls(text: str, shown: str) -> None:
    """Letters of any script stay; other characters are written as Python writes them."""
    assert escape_controls(text) == shown


@pytest.mark.parametrize(
    ("received", "sent", "said"),
    [
        (None, 3, ""),
        (0, 0, "0 tokens"),
        (0, 5, "0 → 5 tokens"),
        (1_000, 999, "1,000 → 999 tokens (+0 %)"),
    ],
)
def test_tokens(received: int | None, sent: int | None, said: str) -> None:
    """A missing count gives no text, and nothing is divided by zero."""
    assert render_tokens(received, sent) == said
