"""Write observations by rule: what a small, honest memory model would keep of a transcript, and of older notes.

Rules of observing. A user's sentence is 🔴 when it asserts (a number, a path, a limit, a decision, "I", "we"), 🟡 when it
asks; small talk is dropped. An assistant's sentence is ✅ when it reports something finished, 🟢 when it holds a finding.
Of a tool's result the lines that say something stay: errors, failures, totals, and the first one.

Rules of reflecting. Nothing is rewritten; lines are dropped until the target is met, in this order: repeated lines, 🟢, older
🟡, older ✅. 🔴 always stays.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

CLIP = 220  # characters of a quoted sentence
CLIP_RESULT = 150  # characters of a quoted line of a tool's result
SHRINK = 0.55  # share of its input a reflection aims at

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAMED_DATE = re.compile(r"\b([A-Z][a-z]{2})[a-z]*\.? (\d{1,2}),? (\d{4})\b")
_ISO_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_SPEAKER = re.compile(
    r"^[\s\[*#>_—-]*(?:\(?(?P<before>\d{1,2}:\d{2})\)?[\s\])—·|-]*)?"
    r"(?P<who>user|human|assistant|tool[ _-]?(?:call|result|output)s?|tool|result|system|developer)\b"
    r"(?P<head>[^:\n]{0,120}?)(?:\(?(?P<after>\d{1,2}:\d{2})\)?)?(?P<rest>[^:\n]{0,80}):(?P<text>.*)$",
    re.IGNORECASE,
)
_FENCE = re.compile(r"<\s*([\w-]*(?:messages?|transcript|conversation)[\w-]*)\b[^>]*>(.*)<\s*/\s*\1\s*>", re.S | re.I)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'“`*(-])")
_QUESTION = re.compile(
    r"\?\W*$|^(?:please|can|could|would|what|why|how|which|where|when|who|is|are|does|do|did|show|run|check|look|tell|give|find|"
    r"write|read|draft|list|open|pull|count|compare|put|add|make|walk)\b",
    re.IGNORECASE,
)
_ASSERTS = re.compile(
    r"\d|`|\b(?:I|I'm|I've|we|we're|we've|my|our|must|never|always|only|decided|prefer|want|need|because|agreed|limit|rule)\b|\w/\w"
)
_FINISHED = re.compile(
    r"\b(?:done|fixed|passes|passing|all pass|merged|written|wrote|added|removed|renamed|saved|sent|created|deployed|replaced|moved|green|"
    r"booked|backfilled|reran|in place)\b",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\d|`|\b(?:because|cause|root|error|bug|fails?|failed|wrong|means|turns out|so far|decid\w+)\b", re.IGNORECASE
)
_TELLING = re.compile(
    r"\b(?:error|exception|fail(?:ed|ure|ures)?|warn(?:ing)?|traceback|passed|total|rows?|denied|timeout|exceeded|breach|killed|sum|slow)\b",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*[*\-•]\s*(?P<mark>[🔴🟡🟢✅])")
_HEADING = re.compile(r"^\W*date:\s*(.+?)\W*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the transcript, as far as it could be made out."""

    who: str  # user | assistant | call | result | other
    day: date | None
    time: str | None  # HH:MM
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    mark: str
    time: str | None
    text: str
    day: str  # the heading it stands under, verbatim

    def __str__(self) -> str:
        return f"* {self.mark} ({self.time}) {self.text}" if self.time else f"* {self.mark} {self.text}"


def observe(prompt: str) -> str:
    """The observer's whole answer to a prompt: observations, current task, suggested response."""
    said = list(transcript(prompt))
    notes = list(unique(note for message in said for note in notes_of(message)))
    if not notes:
        notes = [Note("🟢", None, "Nothing of note was said.", "")]
    asks = [n.text for n in notes if n.mark == "🟡"]
    ends = [first_sentence(s.text) for s in said if s.who == "assistant" and s.text.strip()]
    parts = [f"<observations>\n{render(notes)}\n</observations>"]
    parts += [f"<current-task>{asks[-1]}</current-task>"] if asks else []
    parts += [f"<suggested-response>Continue from: {ends[-1]}</suggested-response>"] if ends else []
    return "\n".join(parts)


def reflect(prompt: str, tokens: Callable[[str], int]) -> str:
    """The reflector's whole answer: the same notes, fewer of them."""
    notes = list(unique(parsed(prompt)))
    goal = SHRINK * tokens(render(notes))
    for mark in "🟢🟡✅":
        notes = thinned(notes, mark, goal, tokens)
    return f"<observations>\n{render(notes)}\n</observations>"


def thinned(notes: list[Note], mark: str, goal: float, tokens: Callable[[str], int]) -> list[Note]:
    """Without the oldest notes of this mark, as many as the goal asks for."""
    surplus = sum(tokens(str(n)) for n in notes) - goal
    kept = []
    for note in notes:
        if note.mark == mark and surplus > 0:
            surplus -= tokens(str(note))
        else:
            kept.append(note)
    return kept


def transcript(prompt: str) -> Iterator[Said]:
    """The messages to observe: what stands in the fence, or everything where there is none."""
    fenced = _FENCE.search(prompt)
    day: date | None = None
    head: Said | None = None
    lines: list[str] = []
    for line in html.unescape(fenced[2] if fenced else prompt).splitlines():
        found = _SPEAKER.match(line)
        if found is None:
            alone = day_of(line) if len(line) < 60 and not lines_are_data(head) else None
            day = alone or day
            lines += [] if alone else [line]
            continue
        if head:
            yield replace(head, text="\n".join(lines).strip())
        day = day_of(line[: found.start("text")]) or day
        head = Said(speaker(found["who"], found["head"]), day, found["before"] or found["after"], "")
        lines = [found["text"]]
    if head:
        yield replace(head, text="\n".join(lines).strip())


def lines_are_data(head: Said | None) -> bool:
    """Dates inside a tool's result are its own, not the transcript's."""
    return head is not None and head.who in ("result", "call")


def speaker(who: str, head: str) -> str:
    who = who.lower()
    if who.startswith(("tool", "result")):
        return "call" if "call" in who + head.lower() else "result"
    if who == "assistant" and "call" in head.lower():
        return "call"
    return {"user": "user", "human": "user", "assistant": "assistant"}.get(who, "other")


def day_of(line: str) -> date | None:
    if found := _ISO_DATE.search(line):
        year, month, day = (int(g) for g in found.groups())
    elif (found := _NAMED_DATE.search(line)) and found[1].lower() in _MONTHS:
        year, month, day = int(found[3]), _MONTHS.index(found[1].lower()) + 1, int(found[2])
    else:
        return None
    return date(year, month, day) if 1 <= month <= 12 and 1 <= day <= 28 else _checked(year, month, day)


def _checked(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def notes_of(said: Said) -> Iterator[Note]:
    heading = f"{said.day:%b} {said.day.day}, {said.day.year}" if said.day else ""
    pick = {"user": of_user, "assistant": of_assistant, "call": of_call, "result": of_result}.get(said.who)
    for mark, text in pick(said.text) if pick else ():
        yield Note(mark, said.time, text, heading)


def of_user(text: str) -> Iterator[tuple[str, str]]:
    for sentence in sentences(text):
        if _QUESTION.search(sentence):
            yield "🟡", f"User asked: {clipped(sentence)}"
        elif _ASSERTS.search(sentence):
            yield "🔴", f"User said: {clipped(sentence)}"


def of_assistant(text: str) -> Iterator[tuple[str, str]]:
    said = [s for s in sentences(text) if not s.endswith("?")]
    done = [s for s in said if _FINISHED.search(s)]
    found = [s for s in said if s not in done and _FINDING.search(s)]
    yield from (("✅", clipped(s)) for s in done[:1])
    yield from (("🟢", f"Assistant: {clipped(s)}") for s in found[: 2 - len(done[:1])])


def of_call(text: str) -> Iterator[tuple[str, str]]:
    if text.strip():
        yield "🟢", f"Assistant called {clipped(' '.join(text.split()), CLIP_RESULT)}"


def of_result(text: str) -> Iterator[tuple[str, str]]:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    for line in list(dict.fromkeys([*telling[:1], *telling[-1:]] or lines[-1:])):
        yield "🟢", f"Result: {clipped(line, CLIP_RESULT)}"


def sentences(text: str) -> list[str]:
    return [s.strip() for line in text.splitlines() for s in _SENTENCE_END.split(line) if s.strip()]


def first_sentence(text: str) -> str:
    return clipped(sentences(text)[0])


def clipped(text: str, limit: int = CLIP) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def unique(notes: Iterable[Note]) -> Iterator[Note]:
    """Each text once, at its first place."""
    seen: set[str] = set()
    for note in notes:
        if note.text not in seen:
            seen.add(note.text)
            yield note


def render(notes: Sequence[Note]) -> str:
    """Notes as lines, a `Date:` heading wherever the day changes."""
    lines: list[str] = []
    day = ""
    for note in notes:
        if note.day and note.day != day:
            lines.append(f"Date: {note.day}")
            day = note.day
        lines.append(str(note))
    return "\n".join(lines)


def parsed(prompt: str) -> Iterator[Note]:
    """The notes that stand in a prompt, whatever stands around them; sub-bullets stay with their bullet."""
    day = ""
    note: Note | None = None
    for line in prompt.splitlines():
        if heading := _HEADING.match(line):
            day = heading[1]
        elif bullet := _BULLET.match(line):
            if note:
                yield note
            rest = line[bullet.end() :].strip()
            timed = re.match(r"\((\d{1,2}:\d{2})\)\s*", rest)
            note = Note(bullet["mark"], timed[1] if timed else None, rest[timed.end() :] if timed else rest, day)
        elif note and re.match(r"\s+[*\-•]", line):
            note = replace(note, text=f"{note.text}\n{line}")
    if note:
        yield note
