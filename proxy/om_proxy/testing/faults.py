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
    """A fault that strikes `times` requests to the matching models; None: every request."""

    kind: Kind
    model: str = "*"  # a glob
    times: int | None = None
    status: int = 503  # of "http"
    code: str = "overloaded"  # of "http": the error's `code`
    retry_after: float | None = None  # of "http", in seconds
    seconds: float = 0.05  # of "slow": the delay before the first byte


class Faults:
    """The faults of one server, each with the number of requests that it still strikes."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._remaining: list[tuple[Fault, int | None]] = []
        self.switch(*faults)

    def switch(self, *faults: Fault) -> None:
        """Replace all faults by these. Without arguments, the server is healthy."""
        self._remaining = [(fault, fault.times) for fault in faults]

    def take_next(self, model: str) -> Fault | None:
        """Take the first fault that strikes a request to this model, and count it."""
        for index, (fault, times) in enumerate(self._remaining):
            if fnmatchcase(model, fault.model) and times != 0:
                self._remaining[index] = (fault, None if times is None else times - 1)
                return fault
        return None
