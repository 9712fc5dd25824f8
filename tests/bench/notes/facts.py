"""Facts that notes should keep, and a plain measure by words of whether they do.

The measure asks whether the words of an answer stand anywhere in the notes. It is cheap and blind:
it takes a word about something else for a hit, and a date that is written in another way for a
miss. It compares runs; the judge (judge.py) decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["kept", "partly", "lost"]
ADVERSARIAL = 5  # LoCoMo's category of questions that ask one person about what the other one said
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", ADVERSARIAL: "adversarial"}

_WORD = re.compile(r"[^\W_]+(?:['’.][^\W_]+)*")
_TURN = re.compile(r"D:?(\d+):(\d+)")
_CONTENT_FREE_WORDS = re.compile(
    "an?|and|any|are|as|at|be|been|by|did|do|does|for|from|had|has|have|he|hers?|him|his|i|in|into|is|its?|likely|me|my|no|not"
    "|of|on|or|our|she|so|some|such|than|that|the|theirs?|them|then|there|these|they|this|those|to|too|very|was|we|were|what|when"
    "|which|while|who|will|with|would|yes|your?"
)
_MONTH = re.compile(
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(?:t|uary|ruary|ch|il|e|y|ust|tember|ober|ember)?"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """`evidence`: numbers of the messages that tell it, from 0, without the instructions; empty: it
    always counts.

    `patterns`: regular expressions that all must be found in notes that keep it; without them its
    answer's words must.
    """

    id: str
    question: str
    answer: str
    category: int | None = None
    evidence: tuple[int, ...] = ()
    patterns: tuple[str, ...] = ()

    def is_told_within(self, messages: int) -> bool:
        """Whether the first `messages` of the conversation hold all of its evidence."""
        return max(self.evidence, default=-1) < messages


def read_questions(asked: Iterable[Mapping[str, Any]], turns: Mapping[str, int]) -> Iterator[Fact]:
    """LoCoMo's questions. `turns`: number of a turn's message by its name (D3:7). A question
    without known evidence is left out.

    An adversarial question has no right answer: its wrong one is kept, which belongs to the other
    person.
    """
    for number, one in enumerate(asked):
        names = [
            f"D{int(session)}:{int(turn)}"
            for text in one["evidence"]
            for session, turn in _TURN.findall(text)
        ]
        if names and all(name in turns for name in names):
            answer = (
                one.get("adversarial_answer") if one["category"] == ADVERSARIAL else one["answer"]
            )
            evidence = tuple(sorted({turns[name] for name in names}))
            yield Fact(
                f"q{number}",
                one["question"],
                str(answer or one.get("answer")),
                one["category"],
                evidence,
            )


def read_facts(path: Path) -> list[Fact]:
    """A file of facts: a line each, as text, or as JSON with `id`, `text` or `patterns` (or both),
    and `message` where one tells it.

    Raises ValueError naming the line that cannot be read."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return [
        _read_fact(number, line.strip())
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]


def _read_fact(number: int, line: str) -> Fact:
    if not line.startswith("{"):
        return Fact(f"f{number}", "", line)
    try:
        told = json.loads(line)
    except json.JSONDecodeError as exc:
        raise ValueError(f"line {number} of the facts is no JSON: {exc}") from exc
    patterns = tuple(told.get("patterns", ()))
    text = told.get("text") or " ".join(patterns)
    if not text:
        raise ValueError(f'line {number} of the facts has neither "text" nor "patterns"')
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise ValueError(
                f"line {number} of the facts: {pattern!r} is no regular expression: {exc}"
            ) from exc
    evidence = (int(told["message"]),) if "message" in told else ()
    return Fact(
        str(told.get("id", f"f{number}")), told.get("question", ""), text, None, evidence, patterns
    )


# ── the measure by words ──────────────────────────────────────────────────────────────────────────


def judge_by_words(fact: Fact, notes: str) -> Verdict:
    """kept: all words of the answer (or all patterns) are in the notes; partly: at least half;
    lost: fewer."""
    if fact.patterns:
        found = [bool(re.search(pattern, notes, re.IGNORECASE)) for pattern in fact.patterns]
    else:
        known = frozenset(content_words(notes))
        found = [word in known for word in content_words(fact.answer)]
    if not found:
        return "lost"  # an answer without a word that says something: words cannot judge it
    if all(found):
        return "kept"
    return "partly" if 2 * sum(found) >= len(found) else "lost"


def content_words(text: str) -> list[str]:
    """Words that say something, each once: in lower case, without endings; months by three letters,
    numbers without zeros."""
    words = (word.lower().replace("’", "'").removesuffix("'s") for word in _WORD.findall(text))
    return list(
        dict.fromkeys(_stem(word) for word in words if not _CONTENT_FREE_WORDS.fullmatch(word))
    )


def _stem(word: str) -> str:
    if month := _MONTH.fullmatch(word):
        return f"month {month.group(1)}"
    if number := re.fullmatch(r"0*(\d+)(?:st|nd|rd|th)?", word):
        return number.group(1)
    for ending in ("ing", "ies", "ed", "es", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            stem = word.removesuffix(ending)
            return (
                stem[:-1]
                if ending in ("ing", "ed") and stem[-1] == stem[-2] and len(stem) > 3
                else stem
            )
    return word


# ── counting ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tally:
    kept: int = 0
    partly: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        return self.kept + self.partly + self.lost

    @property
    def share(self) -> float | None:
        """Kept of all; partly counts as not kept. None where there is nothing."""
        return self.kept / self.total if self.total else None

    def __str__(self) -> str:
        share = "" if self.share is None else f" = {self.share:.1%}"
        return f"{self.kept}/{self.total}{share} (partly {self.partly}, lost {self.lost})"


def tally(verdicts: Iterable[Verdict]) -> Tally:
    found = list(verdicts)
    return Tally(found.count("kept"), found.count("partly"), found.count("lost"))


def tally_by_category(facts: Sequence[Fact], verdicts: Mapping[str, Verdict]) -> dict[str, Tally]:
    """Facts with a verdict: first all but the adversarial ones, then each category."""
    judged = [fact for fact in facts if fact.id in verdicts]
    groups = {"all": [fact for fact in judged if fact.category != ADVERSARIAL]}
    for category, name in CATEGORIES.items():
        groups[name] = [fact for fact in judged if fact.category == category]
    return {
        name: tally(verdicts[fact.id] for fact in group) for name, group in groups.items() if group
    }
