"""Read LongMemEval_S: 500 questions, each with some fifty dated sessions of its own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from om_proxy.proof.evaluation.benchmarks import (
    Benchmark,
    Case,
    Question,
    Session,
    Source,
    alternate,
    draw_sample,
)

# questions of a sample of 60; larger and smaller samples keep these shares
SAMPLE_BY_KIND = {
    "single-session-user": 8,
    "single-session-assistant": 7,
    "single-session-preference": 4,
    "multi-session": 16,
    "temporal-reasoning": 16,
    "knowledge-update": 9,
}


def read_cases(path: Path) -> Iterator[Case]:
    """Yield each question with its sessions, in the order of their dates."""
    for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8")), 1):
        sessions = sorted(_read_sessions(entry), key=lambda session: session.at)
        yield Case(number, sessions, [_read_question(entry)])


def choose(questions: Sequence[Question], count: int | None) -> Collection[str]:
    """Return the names of the sample's questions: by hash, in the shares of the kinds."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        by_kind[question.kind].append(question.name)
    if count is None:
        return {name for names in by_kind.values() for name in names}
    chosen: set[str] = set()
    for kind, names in by_kind.items():
        chosen |= draw_sample(names, round(SAMPLE_BY_KIND.get(kind, 0) * count / 60))
    return chosen


def _read_sessions(entry: dict[str, Any]) -> Iterator[Session]:
    for name, date, turns in zip(
        entry["haystack_session_ids"],
        entry["haystack_dates"],
        entry["haystack_sessions"],
        strict=True,
    ):
        messages = alternate((turn["role"], turn["content"]) for turn in turns)
        yield Session(name, _read_date(date), date, messages)


def _read_question(entry: dict[str, Any]) -> Question:
    return Question(
        name=entry["question_id"],
        kind=entry["question_type"],
        text=entry["question"],
        answer=str(entry["answer"]),  # 32 of them are numbers
        at=_read_date(entry["question_date"]),
        date=entry["question_date"],
        evidence=frozenset(entry["answer_session_ids"]),
        is_unanswerable="_abs" in entry["question_id"],
    )


def _read_date(text: str) -> float:
    """Return unix seconds of `2023/05/20 (Sat) 02:21`, taken as UTC."""
    day, _, time = text.split()
    return datetime.strptime(f"{day} {time}", "%Y/%m/%d %H:%M").replace(tzinfo=UTC).timestamp()


LONGMEMEVAL = Benchmark(
    "longmemeval-s",
    Source(
        "longmemeval_s_cleaned.json",
        "Hugging Face, dataset xiaowu0162/longmemeval-cleaned",
        277_383_467,
        "d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442",
        "MIT",
    ),
    read_cases,
    choose,
)
