"""A strict judge of notes: what it is asked, and how its answer is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench.notes.facts import ADVERSARIAL, Fact, Verdict

_SYSTEM = """\
You judge whether notes of a conversation keep facts. You are strict.

You get notes and a list of facts, each with an id. Judge each fact by the notes alone, not by what you know or find likely.

- kept: a reader who has only these notes can give the whole answer, with its names, numbers and dates. Other words are fine. A date \
may follow from what the notes say.
- partly: the notes hold some of the answer; a part is missing, vaguer, or open to doubt.
- lost: the notes do not hold it, or say otherwise.

A fact that is marked "trap" asks about the wrong person: its answer belongs to somebody else. It is kept if no reader of the notes \
would give this answer for the person asked about; partly if a reader might; lost if the notes themselves say it of that person.

Answer with one line for each fact and nothing else: its id, a colon, and one of kept, partly, lost."""

_FACT_LINE_PATTERN = re.compile(
    r"^[\s*`>-]*(?P<id>[\w.-]+)[`*]*(?: *\([^()\n]*\))?[`*]*\s*:[\s*`]*(?P<verdict>kept|partly|lost)\b",
    re.IGNORECASE | re.MULTILINE,
)


def batch_facts(facts: Sequence[Fact], size: int) -> Iterator[Sequence[Fact]]:
    """In order, as many in one prompt as `size`."""
    for start in range(0, len(facts), size):
        yield facts[start : start + size]


def write_prompt(facts: Sequence[Fact], notes: str, people: str) -> tuple[tuple[str, str], ...]:
    """Role and text of the messages to a judge. `people`: who the user and the assistant are, or
    nothing."""
    listed = "\n".join(_line(fact) for fact in facts)
    who = f"{people}\n\n" if people else ""
    return (
        ("system", _SYSTEM),
        (
            "user",
            f"{who}# Notes\n\n{notes}\n\n# Facts\n\n{listed}\n\nJudge each of these facts now.",
        ),
    )


def _line(fact: Fact) -> str:
    trap = " (trap)" if fact.category == ADVERSARIAL else ""
    asked = f"{fact.question} → " if fact.question else ""
    return f"- {fact.id}{trap}: {asked}{' '.join(fact.answer.split())}"


def read_verdicts(answer: str, facts: Sequence[Fact]) -> dict[str, Verdict]:
    """Verdicts by the fact's id. Raises ValueError naming the facts that the answer leaves out: a
    judge's silence is no verdict."""
    verdicts: Mapping[str, Any] = {
        m["id"]: m["verdict"].lower() for m in _FACT_LINE_PATTERN.finditer(answer)
    }
    if missing := [fact.id for fact in facts if fact.id not in verdicts]:
        raise ValueError(f"the judge's answer has no verdict on {', '.join(missing)}")
    return {fact.id: verdicts[fact.id] for fact in facts}
