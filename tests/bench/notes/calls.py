"""What a memory model's call is made of, in tokens: system prompt, previous notes, transcript;
notes and hints that come back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

Kind = Literal["observer", "reflector"]
Text = tuple[str, str]  # role and text of a prompt's message

_TRANSCRIPT = re.compile(r"<transcript>.*?</transcript>", re.DOTALL)
_PREVIOUS = re.compile(r"<previous-observations>.*?</previous-observations>", re.DOTALL)
_HINTS = re.compile(
    r"<(current-task|suggested-response|thread-title)\b[^>]*>.*?(?:</\1>|\Z)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of one call. `other_in`: hints that are known, questions, what frames the rest."""

    system: int
    previous: int
    transcript: int
    other_in: int
    notes: int
    hints: int

    @property
    def read(self) -> int:
        return self.system + self.previous + self.transcript + self.other_in

    @property
    def written(self) -> int:
        return self.notes + self.hints


@dataclass(frozen=True, slots=True)
class MemoryCall:
    kind: Kind
    prompt: tuple[Text, ...]
    answer: str


def kind_of(prompt: Iterable[Text]) -> Kind:
    """An observer is shown messages, a reflector notes alone."""
    return (
        "observer"
        if any(_TRANSCRIPT.search(text) for role, text in prompt if role == "user")
        else "reflector"
    )


def measure_call(call: MemoryCall, count: Callable[[str], int]) -> Sizes:
    system = sum(count(text) for role, text in call.prompt if role != "user")
    user = "\n".join(text for role, text in call.prompt if role == "user")
    transcript = count("\n".join(_found(_TRANSCRIPT, user)))
    previous = count("\n".join(_found(_PREVIOUS, _TRANSCRIPT.sub("", user))))
    hints = count("\n".join(_found(_HINTS, call.answer)))
    other = max(0, count(user) - transcript - previous)
    return Sizes(system, previous, transcript, other, max(0, count(call.answer) - hints), hints)


def _found(pattern: re.Pattern[str], text: str) -> list[str]:
    return [match.group() for match in pattern.finditer(text)]


def mean_sizes(sizes: Sequence[Sizes]) -> dict[str, float]:
    """Each part's mean, and the means of all that was read and written."""
    if not sizes:
        return {}
    means = {
        field.name: sum(getattr(s, field.name) for s in sizes) / len(sizes)
        for field in fields(Sizes)
    }
    return {
        **means,
        "read": sum(s.read for s in sizes) / len(sizes),
        "written": sum(s.written for s in sizes) / len(sizes),
    }
