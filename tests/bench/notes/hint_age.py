"""How old hints are where the actor is shown them: what was said between the hint and the newest
message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from om_proxy.memory.escaping import unescape
from om_proxy.testing.scripted import message_text

HINTS = ("current-task", "suggested-response")


@dataclass(frozen=True, slots=True)
class Shown:
    """A hint in one request's prompt. Behind it stand so many messages, of which so many are the
    user's."""

    name: str
    request: int
    messages: int
    user_messages: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Written:
    """A hint of an observation or reflection that covers the first `covered` messages."""

    name: str
    text: str
    covered: int


def hints_in(prompt: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Name → text of the hints that a prompt shows in its notes; what messages quote does not
    count."""
    found: dict[str, str] = {}
    for message in prompt:
        text = message_text(message)
        if message["role"] not in ("system", "developer", "user") or "<observations>" not in text:
            continue
        for name in HINTS:
            if match := re.search(
                rf"</observations>.*?^<{name}\b[^>]*>\n?(.*?)\n?</{name}>",
                text,
                re.DOTALL | re.MULTILINE,
            ):
                found.setdefault(name, unescape(match.group(1)).strip())
    return found


def age_hints(
    request: int,
    shown: Mapping[str, str],
    written: Sequence[Written],
    coverage: int,
    sent: Sequence[tuple[str, int]],
) -> list[Shown]:
    """`written`: hints known by now; `coverage`: messages that the notes in the prompt cover;
    `sent`: role and tokens of each message.

    A hint is as old as the newest active observation that wrote it. One that no observation wrote
    word for word is as old as the notes.
    """
    found = []
    for name, text in shown.items():
        candidates = [
            w.covered
            for w in written
            if w.name == name and w.text.strip() == text and w.covered <= coverage
        ]
        behind = sent[max(candidates, default=coverage) :]
        users = sum(role == "user" for role, _ in behind)
        found.append(Shown(name, request, len(behind), users, sum(tokens for _, tokens in behind)))
    return found


def summarise_ages(shown: Sequence[Shown], requests: int) -> dict[str, dict[str, float]]:
    """By hint: requests that showed it, those in which the user had spoken since, and how much
    stood behind it."""
    summary = {}
    for name in HINTS:
        if ages := [s for s in shown if s.name == name]:
            summary[name] = {
                "requests": requests,
                "shown": len(ages),
                "user_spoke_since": sum(s.user_messages > 0 for s in ages),
                "median_tokens": median(s.tokens for s in ages),
                "median_messages": median(s.messages for s in ages),
                "most_tokens": max(s.tokens for s in ages),
                "most_messages": max(s.messages for s in ages),
            }
    return summary
