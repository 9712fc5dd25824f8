"""Render events as lines for a person at a terminal.

    10:13:27  200  kitchen-rebuild  gpt-5.4-mini  applied  64,672 → 5,873 tokens (−91 %)  10 ms
    (+0.6) 10:13:31  502  kitchen-rebuild  gpt-5.4-mini  raw  1,204 tokens  3 ms (+0.4)
    om_upstream_unreachable 10:13:40  warning  observe.failed  thread=9d4d…  error=om_model_busy

A `turn` shows: status, thread, model, what memory did and why, the tokens received and sent, the
milliseconds in all and (+) those of the proxy, and how the reply ended if it did not end well. Any
other event shows its level, name and fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

YELLOW, RED, DIM, RESET = "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
COLORS_BY_LEVEL = {"warning": YELLOW, "error": RED, "critical": RED}
FIELDS_OF_EVERY_EVENT = ("event", "level", "timestamp")
MAX_NAME_CHARS = 40  # of a thread or model in a line of a turn


def render_event(event: Mapping[str, Any], clock_time: str, *, is_colored: bool) -> str:
    """Render the line of one event. `clock_time`: the local time at which it happened
    (HH:MM:SS)."""
    level = str(event.get("level", "info"))
    words = render_turn(event) if event.get("event") == "turn" else render_fields(event, level)
    line = escape_controls("  ".join(word for word in words if word))
    if not is_colored:
        return f"{clock_time}  {line}"
    if color := COLORS_BY_LEVEL.get(level):
        line = f"{color}{line}{RESET}"
    return f"{DIM}{clock_time}{RESET}  {line}"


def render_turn(event: Mapping[str, Any]) -> list[str]:
    """Render the words of a request's line."""
    end = event.get("end")
    return [
        str(event.get("status", "")),
        clip(event.get("name") or event.get("thread")),
        clip(event.get("model")),
        render_memory(event),
        render_tokens(event.get("tokens_received"), event.get("tokens_sent")),
        render_times(event.get("total_ms"), event.get("overhead_ms")),
        "" if end in (None, "complete") else str(end),
    ]


def render_memory(event: Mapping[str, Any]) -> str:
    """Render what memory did, with the reason if there is one: `applied`, `degraded: storage`."""
    status, reason = event.get("memory"), event.get("reason")
    return f"{status}: {reason}" if status and reason else str(status or "")


def render_tokens(received: int | None, sent: int | None) -> str:
    """Render `64,672 → 5,873 tokens (−91 %)`, or one number if both are equal. Return an empty
    text if nothing was counted."""
    if received is None or sent is None:
        return ""
    if received == sent:
        return f"{sent:,} tokens"
    change = (
        f" ({round(100 * (sent - received) / received):+d} %)".replace("-", "−") if received else ""
    )
    return f"{received:,} → {sent:,} tokens{change}"


def render_times(total_ms: float | None, overhead_ms: float | None) -> str:
    """Render `10 ms (+0.6)`: the time of the whole request, and the proxy's own part of it."""
    if total_ms is None:
        return ""
    total = f"{total_ms:,.0f} ms" if total_ms < 10_000 else f"{total_ms / 1_000:,.1f} s"
    return total if overhead_ms is None else f"{total} (+{overhead_ms:.1f})"


def render_fields(event: Mapping[str, Any], level: str) -> list[str]:
    """Render level, name and every field of an event other than a turn."""
    fields = [
        f"{key}={value}"
        for key, value in event.items()
        if key not in FIELDS_OF_EVERY_EVENT and value is not None
    ]
    return [level, str(event.get("event", "")), *fields]


def clip(name: object) -> str:
    """Cut a name to `MAX_NAME_CHARS` characters."""
    text = "" if name is None else str(name)
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 1]}…"


def escape_controls(text: str) -> str:
    """Escape every character that a terminal would obey: clients choose the names of models."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
