"""Faults of a scripted model server, switched on by a test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["nothing", "prose", "refusal", "loop", "http", "hang", "slow", "cut"]

ANSWERS_BY_KIND: dict[str, str] = {
    "nothing": "",
    "prose": "There is nothing here that I would call worth noting, so I will leave it at that.",
    "refusal": "I'm sorry, but I can't help with that request.",
    "loop": "<observations>\n"
    + "* 🟢 (09:00) The same line over and over\n" * 400
    + "</observations>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. It strikes `times` requests of the matching models; None: every request."""

    kind: Kind
    model: str = "*"  # a glob
    times: int | None = None
    status: int = 503  # of "http"
    code: str = "overloaded"  # of "http": the error's `code`
    retry_after: float | None = None  # of "http", in seconds
    seconds: float = 0.05  # of "slow": the delay before the first byte


class Faults:
    """The faults of one server. Each counts how often it has struck."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._left: list[tuple[Fault, int | None]] = []
        self.switch(*faults)

    def switch(self, *faults: Fault) -> None:
        """Replace all faults by these; without arguments, the server is healthy."""
        self._left = [(fault, fault.times) for fault in faults]

    def take_next(self, model: str) -> Fault | None:
        """Take the first fault that strikes a request to this model, and count it."""
        for i, (fault, left) in enumerate(self._left):
            if fnmatchcase(model, fault.model) and left != 0:
                self._left[i] = (fault, None if left is None else left - 1)
                return fault
        return None
