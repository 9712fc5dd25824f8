"""A benchmark: recorded sessions and questions about them, and which of them a run plays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from om_proxy.common.errors import UsageError
from om_proxy.proof.playing import keep_thresholds
from om_proxy.settings.config.effective import merge_levels

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


# of memory; the rest are the product's defaults
SETTINGS: Mapping[str, Any] = {"scope": "resource", "observation": {"buffer_on_idle": True}}
SHIPPED_PROMPTS = ("default", "condensed")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`choose` returns the names of a sample's questions. `score`, where the benchmark has a measure
    of its own beside the judge, returns it for a reply. `ceiling`: the share that can be right."""

    name: str
    source: Source
    read_cases: Callable[[Path], Iterator[Case]]
    choose: Callable[[Sequence[Question], int | None], Collection[str]]
    score: Callable[[Question, str], float] | None = None
    ceiling: float | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)


def lay_settings(benchmark: Benchmark, memory: object) -> Benchmark:
    """Return the benchmark with these settings of memory over its own, without the models and
    addresses they name. Raise UsageError for what is no mapping, and for a prompt in a file: who
    checks the run lacks it."""
    if not isinstance(memory, Mapping):
        raise UsageError(
            "the settings of memory must be a mapping, as in memory: {scope: resource}"
        )
    kept = keep_thresholds({"memory": memory}).get("memory", {})
    observation = kept.get("observation")
    prompt = observation.get("prompt") if isinstance(observation, Mapping) else None
    if prompt not in (None, *SHIPPED_PROMPTS):
        raise UsageError(
            f"memory.observation.prompt must be {' or '.join(SHIPPED_PROMPTS)}: a prompt of your own"
            " is not in the folder of a run, so nobody could check it; memory.observation.instruction"
            " adds words of yours"
        )
    return replace(benchmark, settings=merge_levels([benchmark.settings, kept]))


def check_data(source: Source, path: Path) -> None:
    """Raise UsageError unless the file is the benchmark's, byte for byte."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be read ({exc.strerror}); {source.name} is had at {source.place}"
        ) from exc
    if found != source.sha256:
        raise UsageError(
            f"{path} has the SHA-256 {found}, and {source.name} of {source.place} has"
            f" {source.sha256}: figures from other data cannot be compared"
        )


def choose_cases(
    benchmark: Benchmark, path: Path, count: int | None, case_count: int | None
) -> list[Case]:
    """Return the cases that have a question of the sample, with these questions alone.
    `case_count`: of the first so many cases only."""
    cases = list(benchmark.read_cases(path))[:case_count]
    questions = [question for case in cases for question in case.questions]
    names = benchmark.choose(questions, count)
    chosen = [
        Case(case.number, case.sessions, [q for q in case.questions if q.name in names])
        for case in cases
    ]
    return [case for case in chosen if case.questions]
