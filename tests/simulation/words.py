"""The language of the simulation: every message carries an id (`A17`), and notes name the ids they
are about (`A17`, `A20..25`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from random import Random
from typing import Any

import orjson

WORDS = (
    "crate",
    "dock",
    "van",
    "apple",
    "pier",
    "quarry",
    "lamp",
    "ledger",
    "harbor",
    "rope",
    "sail",
    "tide",
    "mast",
)
_ID = re.compile(r"\b([A-Z])(\d+)(?:\.\.(\d+))?\b")
_MARKER = re.compile(r"\bm\d+\b")


def ids_in(text: str) -> set[str]:
    """All ids a text names, ranges written out."""
    return {
        f"{m[1]}{n}" for m in _ID.finditer(text) for n in range(int(m[2]), int(m[3] or m[2]) + 1)
    }


def markers_in(*texts: str) -> set[str]:
    """What people wrote, wherever it stands."""
    return {marker for text in texts for marker in _MARKER.findall(text)}


def rewritten(text: str, marker: str) -> str:
    """The text as a person writes it: it names what it named, and holds no other marker."""
    lines = _MARKER.sub("", text).split("\n")
    place = next((i for i, line in enumerate(lines) if ids_in(line)), None)
    if place is None:
        return f"* {marker}"
    lines[place] += f" {marker}"
    return "\n".join(lines).strip()


@lru_cache(maxsize=200_000)
def id_of(raw: bytes) -> str | None:
    """The id of a message: the first one it names. None: the message is not one of the
    simulation's."""
    found = _ID.search(raw.decode())
    return found[1] + found[2] if found else None


def filler(rng: Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def ids_of(sent: bytes) -> list[str]:
    """The id of a message that is sent; of neighbours that a plain prompt joins, each one's."""
    said = sent.decode().replace("\\n", "\n").split("\n\n")
    found = (one for part in said if (one := id_of(part.encode())))
    return [one for one, _ in groupby(found)]


def message(role: str, content: str | None, **more: Any) -> bytes:
    return orjson.dumps({"role": role, "content": content, **more})


def numbered(ids: Iterable[str]) -> list[str]:
    return sorted(ids, key=lambda one: (one[0], int(one[1:])))


def ranges(ids: Iterable[str]) -> str:
    """The shortest way to name them: `A1..17 A20`. Ids that are not among them are never inside a
    range."""
    spans: list[tuple[str, int, int]] = []
    for one in numbered(ids):
        thread, number = one[0], int(one[1:])
        if spans and (spans[-1][0], spans[-1][2]) == (thread, number - 1):
            spans[-1] = (thread, spans[-1][1], number)
        else:
            spans.append((thread, number, number))
    return " ".join(f"{t}{a}" if a == b else f"{t}{a}..{b}" for t, a, b in spans)


def notes(bullets: Sequence[str]) -> str:
    body = "\n".join(f"* 🔴 (10:00) {bullet}" for bullet in bullets)
    return f"<observations>\nDate: Nov 14, 2023\n{body}\n</observations>"
