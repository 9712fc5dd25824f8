"""Values of a benchmark: recorded sessions, and questions about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant"]
Message = Mapping[str, str]  # role and content


@dataclass(frozen=True, slots=True)
class Session:
    """One recorded conversation. `messages` alternate, begin with the user and end with the
    assistant."""

    name: str  # of the data; no prompt holds it
    at: float  # unix seconds, of its beginning
    date: str  # as the data writes it
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Question:
    name: str  # of the data; no prompt holds it
    kind: str
    text: str
    answer: str
    at: float  # unix seconds, of asking
    date: str  # as the data writes it
    evidence: frozenset[str]  # names of the sessions that hold the answer
    is_unanswerable: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """Sessions of one user in the order of their dates, and the questions asked behind them.
    `number` is the place in the data, from 1."""

    number: int
    sessions: Sequence[Session]
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a benchmark: where it is had, and how it is known."""

    name: str
    place: str
    size: int  # bytes
    sha256: str
    licence: str


def alternate(messages: Iterable[tuple[Role, str]]) -> list[Message]:
    """Return messages that alternate, begin with the user and end with the assistant: neighbours of
    one role become one message, and a missing side says nothing of substance."""
    joined: list[Message] = []
    for role, text in messages:
        if joined and joined[-1]["role"] == role:
            joined[-1] = {"role": role, "content": f"{joined[-1]['content']}\n{text}"}
        else:
            joined.append({"role": role, "content": text})
    if joined and joined[0]["role"] == "assistant":
        joined.insert(0, {"role": "user", "content": "Hello."})
    if joined and joined[-1]["role"] == "user":
        joined.append({"role": "assistant", "content": "I see."})
    return joined


def draw_sample(names: Iterable[str], count: int) -> set[str]:
    """Choose `count` names by their hash: the same ones for everybody, in whatever order the data
    stands."""
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])
