"""What can go wrong with a scripted model server, switched on by the one who tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["nothing", "prose", "refusal", "loop", "http", "hang", "slow", "cut"]

ANSWERS: dict[str, str] = {
    "nothing": "",
    "prose": "There is nothing here that I would call worth noting, so I will leave it at that.",
    "refusal": "I'm sorry, but I can't help with that request.",
    "loop": "<observations>\n"
    + "* 🟢 (09:00) The same line over and over\n" * 400
    + "</observations>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; `times` requests of the models that match suffer it, all of them where None."""

    kind: Kind
    model: str = "*"  # a glob
    times: int | None = None
    status: int = 503  # of "http"
    code: str = "overloaded"  # of "http": the error's `code`
    retry_after: float | None = None  # seconds, of "http"
    seconds: float = 0.05  # of "slow": before the first byte


class Faults:
    """The faults of one server, counting down as they strike."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._left: list[tuple[Fault, int | None]] = []
        self.switch(*faults)

    def switch(self, *faults: Fault) -> None:
        """From now on these, and no others; without any, all is well."""
        self._left = [(fault, fault.times) for fault in faults]

    def next_for(self, model: str) -> Fault | None:
        """The first fault that strikes this request; it counts as struck."""
        for i, (fault, left) in enumerate(self._left):
            if fnmatchcase(model, fault.model) and left != 0:
                self._left[i] = (fault, None if left is None else left - 1)
                return fault
        return None
