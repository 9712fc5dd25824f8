"""Read LoCoMo: ten long conversations of two people over dated sessions, with 1 986 questions.

Category 5 asks for what nobody said. 99 of the other 1 540 answers are known to be wrong, so no
system can be right in more than 93.6 %.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from om_proxy.proof.evaluation.benchmarks import (
    Benchmark,
    Case,
    Question,
    Role,
    Session,
    Source,
    alternate,
    draw_sample,
)

UNANSWERABLE = "5 adversarial"
KINDS = {1: "1 multi-hop", 2: "2 temporal", 3: "3 open-domain", 4: "4 single-hop", 5: UNANSWERABLE}
NOT_SAID = "The conversation does not say this."
QUESTION_DELAY_S = 7 * 86_400.0  # behind the last session: the data has no date of asking
_DATE_FORMAT = "%I:%M %p on %d %B, %Y"
_ARTICLES = re.compile(r"\b(?:a|an|the|and)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_EVIDENCE_PATTERN = re.compile(r"D(\d+):\d+")


def read_cases(path: Path) -> Iterator[Case]:
    for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8")), 1):
        sessions = sorted(_read_sessions(entry["conversation"]), key=lambda session: session.at)
        asked_at = sessions[-1].at + QUESTION_DELAY_S
        questions = [
            _read_question(f"{entry['sample_id']}-{place}", asked, asked_at)
            for place, asked in enumerate(entry["qa"])
        ]
        yield Case(number, sessions, questions)


def choose(questions: Sequence[Question], count: int | None) -> Collection[str]:
    """Return the names of the sample's questions, by hash: of the four kinds that have an answer,
    if it is not all."""
    if count is None:
        return {question.name for question in questions}
    return draw_sample(
        (question.name for question in questions if not question.is_unanswerable), count
    )


def score(question: Question, reply: str) -> float:
    """Return LoCoMo's F1 of a reply, without stemming."""
    if question.kind == KINDS[1]:
        return score_parts_f1(reply, question.answer)
    answer = question.answer.split(";")[0] if question.kind == KINDS[3] else question.answer
    return score_f1(reply, answer)


def score_f1(reply: str, answer: str) -> float:
    """Return the F1 of the words of both, without articles and punctuation. Unlike LoCoMo's own
    script, words are not stemmed."""
    said, wanted = Counter(_split_words(reply)), Counter(_split_words(answer))
    shared = (said & wanted).total()
    if not shared:
        return 0.0
    precision, recall = shared / said.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def score_parts_f1(reply: str, answer: str) -> float:
    """Return the mean, over the answer's parts between commas, of the best F1 of a reply's part."""
    parts = answer.split(",")
    return sum(max(score_f1(said, part) for said in reply.split(",")) for part in parts) / len(
        parts
    )


def _split_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _read_sessions(said: Mapping[str, Any]) -> Iterator[Session]:
    for number in range(1, len(said)):
        if turns := said.get(f"session_{number}"):
            date = said[f"session_{number}_date_time"]
            at = datetime.strptime(date, _DATE_FORMAT).replace(tzinfo=UTC).timestamp()
            messages = alternate(_read_turn(turn, said["speaker_a"]) for turn in turns)
            yield Session(str(number), at, date, messages)


def _read_turn(turn: Mapping[str, Any], user: str) -> tuple[Role, str]:
    caption = turn.get("blip_caption")
    picture = f" [shares a picture: {caption}]" if caption else ""
    role: Role = "user" if turn["speaker"] == user else "assistant"
    return role, f"{turn['speaker']}: {turn['text']}{picture}"


def _read_question(name: str, asked: Mapping[str, Any], at: float) -> Question:
    kind = KINDS[asked["category"]]
    is_unanswerable = kind == UNANSWERABLE
    evidence = _EVIDENCE_PATTERN.findall(" ".join(asked["evidence"]))
    return Question(
        name=name,
        kind=kind,
        text=asked["question"],
        answer=NOT_SAID if is_unanswerable else str(asked["answer"]),
        at=at,
        date=datetime.fromtimestamp(at, UTC).strftime(_DATE_FORMAT),
        evidence=frozenset(str(int(number)) for number in evidence),
        is_unanswerable=is_unanswerable,
    )


LOCOMO = Benchmark(
    "locomo",
    Source(
        "locomo10.json",
        "GitHub, snap-research/locomo, data/locomo10.json",
        2_805_274,
        "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
        "CC BY-NC 4.0",
    ),
    read_cases,
    choose,
    score,
    ceiling=0.936,
)
