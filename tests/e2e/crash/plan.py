"""Which kills there are: the points of the promise, the passages each stands for, and a plan that
takes them in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle, islice
from typing import NamedTuple

AROUND = (
    "written",
    "committed",
    "begun",
    "due",
)  # before COMMIT, after it, early in the transaction, before it

# point → passages of launcher.py
POINTS: dict[str, tuple[str, ...]] = {
    "before upstream": ("upstream asked",),
    "mid stream": ("reply piece", "upstream answered"),
    "in a turn's commit": ("turn written", "turn begun", "turn due"),
    "commit to [DONE]": ("turn committed",),
    "after [DONE]": ("reply ended",),
    "before observer": ("observer asked",),
    "after observer": ("observer answered",),
    "mid chunk": tuple(f"chunk {stage}" for stage in AROUND),
    "mid activation": tuple(f"activation {stage}" for stage in AROUND),
    "mid reflection": (
        *("reflection written", "swap written", "reflector asked", "reflector answered"),
        *("swap begun", "swap committed", "reflection begun", "reflection committed"),
    ),
    "mid rollback": tuple(f"rollback {stage}" for stage in AROUND),
    "mid migration": ("migration statement", "migration written", "migration begun"),
}
# passages, by how they begin → how often they come by at most before one kills; any other: twice
OFTEN = {"upstream": 6, "reply": 12, "turn": 6, "migration statement": 15, "migration": 1}


class Kill(NamedTuple):
    point: str
    passage: str
    nth: int  # passing at which it kills

    @property
    def forks(self) -> bool:
        """Whether only a client that takes something back comes this way."""
        return self.point == "mid rollback"

    @property
    def starts(self) -> bool:
        """Whether it happens while the program starts on a new file."""
        return self.point == "mid migration"


def kills(seed: int) -> Iterator[Kill]:
    """For ever: the points in turn, of each its passages in turn, each at one of its first
    passings."""
    dice = random.Random(seed)
    passages = {point: cycle(names) for point, names in POINTS.items()}
    for point in cycle(POINTS):
        passage = next(passages[point])
        yield Kill(point, passage, dice.randint(1, often(passage)))


def often(passage: str) -> int:
    return next((times for start, times in OFTEN.items() if passage.startswith(start)), 2)


def planned(number: int, seed: int = 0) -> list[Kill]:
    return list(islice(kills(seed), number))
