"""Write observations and reflections by rule, as a small, honest memory model would.

Rules of observing. A user's sentence is 🔴 if it asserts (a number, a path, a limit, a wish, a
decision, "we"), 🟡 if it asks; small talk is dropped. An assistant's sentence is ✅ if it reports
something finished, 🟢 if it holds a finding. Of a tool's result, the first and the last line that
tell how it went are kept: errors, failures, totals.

Rules of reflecting. Nothing is rewritten. Lines are dropped until the requested size is reached, in
this order: repeated lines, 🟢, older 🟡, older ✅. 🔴 always stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

MAX_SENTENCE_CHARS = 220  # of a quoted sentence
MAX_QUESTION_CHARS = 140
MIN_SENTENCE_CHARS = 20  # a shorter sentence says nothing by itself
MAX_ARGUMENT_CHARS = 70  # of a tool call's arguments
MAX_RESULT_CHARS = 120  # of a line of a tool's result
TARGET_REFLECTION_SHARE = 0.55  # of its input; less if the prompt asks for less

# the transcript as agents/transcript_text.py writes it: the proxy's words begin at the left edge,
# messages are indented
_FENCE = re.compile(r"<transcript>\n(.*?)\n</transcript>", re.DOTALL)
_THREAD = re.compile(r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE)
_OPEN, _CLOSE = "<observations>\n", "\n</observations>"
_SPEAKER = re.compile(
    r"^(?P<who>User|Assistant|Tool call|Tool result)(?P<name>[^():#]*)(?: #\d+)?"
    r"(?: \((?P<time>\d\d:\d\d)\))?(?:, no result)?:(?P<text>.*)$"
)
_DATE = re.compile(r"^Date: (?P<bound>on or before )?(?:[A-Z][a-z]+day, )?(?P<day>.+)$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'“`*(-])")
_QUESTION = re.compile(
    r"\?\W*$|^(?:please|can|could|would|what|why|how|which|where|when|who|is|are|does|do|did|show|run|check|look|tell|give|find|"
    r"write|read|draft|list|open|pull|count|compare|put|add|make|walk)\b",
    re.IGNORECASE,
)
_ASSERTS = re.compile(
    r"\d|`|\w/\w|\b(?:we|must|never|always|only|decided|decision|prefer|want|need|because|limit|deadline|promised|instead|leave|away)\b",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"\b(?:done|fixed|passes|passing|all pass|merged|written|wrote|added|removed|renamed|saved|sent|created|deployed|replaced|moved|green|"
    r"booked|backfilled|reran|in place)\b",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\d|`|\b(?:because|cause|root|error|bug|fails?|failed|wrong|means|turns out|so far|decid\w+)\b",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"\b(?:Error|ERROR|[A-Z]\w+Error|Traceback|FAILED|failed|passed|total|denied|timed out|exceeded|done in)\b",
)
_BULLET = re.compile(r"^\s*[*\-•]\s*(?P<mark>[🔴🟡🟢✅])")
_SIZE = re.compile(r"; write at most (\d+)\.$", re.MULTILINE)  # as agents/wording.py asks for it
_HEADING = re.compile(r"^\W*date:\s*(.+?)\W*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One message of the transcript."""

    speaker: str  # User | Assistant | Tool call | Tool result
    name: str  # of the tool, or empty
    day: str  # the date heading, verbatim
    time: str | None  # HH:MM; None: not known
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    mark: str
    time: str | None
    text: str
    day: str  # the heading above it, verbatim

    def __str__(self) -> str:
        return (
            f"* {self.mark} ({self.time}) {self.text}"
            if self.time
            else f"* {self.mark} {self.text}"
        )


def observe(prompt: str) -> str:
    """Return the observer's whole answer to a prompt: observations, current task, suggested
    response. A prompt of several threads gets a section for each."""
    threads = _THREAD.findall(prompt)
    if threads:
        parts = (
            f'<thread id="{label}">\n{observe_one(text)}\n</thread>' for label, text in threads
        )
        return "<observations>\n{}\n</observations>".format(
            "\n".join(parts).replace(_OPEN, "").replace(_CLOSE, "")
        )
    return observe_one(prompt)


def observe_one(prompt: str) -> str:
    said = list(parse_transcript(prompt))
    notes = list(drop_repeats(note for message in said for note in write_notes(message)))
    if not notes:
        notes = [Note("🟢", None, "Nothing of note was said.", "")]
    asks = [n.text for n in notes if n.mark == "🟡"]
    ends = [clip(split_sentences(s.text)[0]) for s in said if s.speaker == "Assistant" and s.text]
    parts = [f"<observations>\n{render_notes(notes)}\n</observations>"]
    parts += [f"<current-task>{asks[-1]}</current-task>"] if asks else []
    parts += [f"<suggested-response>Continue from: {ends[-1]}</suggested-response>"] if ends else []
    return "\n".join(parts)


def reflect(prompt: str, tokens: Callable[[str], int]) -> str:
    """Return the reflector's whole answer: the same notes, fewer of them. Notes of several threads
    get a section for each."""
    threads = _THREAD.findall(prompt)
    if threads:
        texts: dict[str, list[str]] = {}
        for label, text in threads:
            texts.setdefault(label, []).append(text)
        parts = (
            f'<thread id="{label}">\n{reflect_one(chr(10).join(all_), tokens)}\n</thread>'
            for label, all_ in texts.items()
        )
        return "<observations>\n{}\n</observations>".format(
            "\n".join(parts).replace(_OPEN, "").replace(_CLOSE, "")
        )
    return reflect_one(prompt, tokens)


def reflect_one(prompt: str, tokens: Callable[[str], int]) -> str:
    given = list(parse_notes(prompt))
    notes = list(drop_repeats(given))
    surplus = tokens(render_notes(notes)) - min(
        TARGET_REFLECTION_SHARE * tokens(render_notes(given)), requested_tokens(prompt)
    )
    for mark in "🟢🟡✅":
        notes, surplus = drop_oldest(notes, mark, surplus, tokens)
    return f"<observations>\n{render_notes(notes)}\n</observations>"


def requested_tokens(prompt: str) -> float:
    """Return the size in tokens that the prompt asks for last; infinity if it asks for none."""
    sizes = _SIZE.findall(prompt)
    return float(sizes[-1]) if sizes else math.inf


def drop_oldest(
    notes: list[Note], mark: str, surplus: float, tokens: Callable[[str], int]
) -> tuple[list[Note], float]:
    """Drop the oldest notes of this mark until no surplus tokens are left. Return the kept notes
    and what is left of the surplus."""
    kept = []
    for note in notes:
        if note.mark == mark and surplus > 0:
            surplus -= tokens(str(note))
        else:
            kept.append(note)
    return kept, surplus


def parse_transcript(prompt: str) -> Iterator[TranscriptMessage]:
    """Parse the messages to observe from the prompt's fence."""
    day = ""
    said: TranscriptMessage | None = None
    for line in extract_transcript(prompt).splitlines():
        if dated := _DATE.match(line):
            day = (dated["bound"] or "") + dated["day"]
        elif head := _SPEAKER.match(line):
            if said:
                yield said
            said = TranscriptMessage(
                head["who"], head["name"].strip(), day, head["time"], head["text"].strip()
            )
        elif said:
            said = replace(said, text=f"{said.text}\n{line.removeprefix('  ')}".lstrip("\n"))
    if said:
        yield said


def extract_transcript(prompt: str) -> str:
    """Return the text in the prompt's fence; empty if there is none."""
    found = _FENCE.search(prompt)
    return found[1] if found else ""


def write_notes(said: TranscriptMessage) -> Iterator[Note]:
    for mark, text in _RULES[said.speaker](said):
        yield Note(mark, said.time, text, said.day)


def note_user_text(said: TranscriptMessage) -> Iterator[tuple[str, str]]:
    for sentence in split_sentences(said.text):
        if _QUESTION.search(sentence):
            yield "🟡", f"User asked: {clip(sentence, MAX_QUESTION_CHARS)}"
        elif len(sentence) >= MIN_SENTENCE_CHARS and _ASSERTS.search(sentence):
            yield "🔴", f"User said: {clip(sentence)}"


def note_assistant_text(said: TranscriptMessage) -> Iterator[tuple[str, str]]:
    candidates = [
        s
        for s in split_sentences(said.text)
        if len(s) >= MIN_SENTENCE_CHARS and not s.endswith("?")
    ]
    done = [s for s in candidates if _FINISHED.search(s)]
    found = [s for s in candidates if s not in done and _FINDING.search(s)]
    yield from (("✅", clip(s)) for s in done[:1])
    yield from (("🟢", f"Assistant: {clip(s)}") for s in found[: 2 - len(done[:1])])


def note_tool_call(said: TranscriptMessage) -> Iterator[tuple[str, str]]:
    yield (
        "🟢",
        f"Assistant called {said.name}({clip(' '.join(said.text.split()), MAX_ARGUMENT_CHARS)})",
    )


def note_tool_result(said: TranscriptMessage) -> Iterator[tuple[str, str]]:
    """Note the first and the last line that tell how the call went."""
    telling = [" ".join(line.split()) for line in said.text.splitlines() if _TELLING.search(line)]
    for line in dict.fromkeys([*telling[:1], *telling[-1:]]):
        yield "🟢", f"{said.name}: {clip(line, MAX_RESULT_CHARS)}"


_RULES: dict[str, Callable[[TranscriptMessage], Iterator[tuple[str, str]]]] = {
    "User": note_user_text,
    "Assistant": note_assistant_text,
    "Tool call": note_tool_call,
    "Tool result": note_tool_result,
}


def split_sentences(text: str) -> list[str]:
    return [s.strip() for line in text.splitlines() for s in _SENTENCE_END.split(line) if s.strip()]


def clip(text: str, limit: int = MAX_SENTENCE_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def drop_repeats(notes: Iterable[Note]) -> Iterator[Note]:
    """Yield each text once, at its first place."""
    seen: set[str] = set()
    for note in notes:
        if note.text not in seen:
            seen.add(note.text)
            yield note


def render_notes(notes: Sequence[Note]) -> str:
    """Render notes as lines, with a `Date:` heading wherever the day changes."""
    lines: list[str] = []
    day = ""
    for note in notes:
        if note.day and note.day != day:
            lines.append(f"Date: {note.day}")
            day = note.day
        lines.append(str(note))
    return "\n".join(lines)


def parse_notes(prompt: str) -> Iterator[Note]:
    """Parse the notes in a prompt; other text is ignored. Sub-bullets stay with their bullet."""
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
            note = Note(
                bullet["mark"],
                timed[1] if timed else None,
                rest[timed.end() :] if timed else rest,
                day,
            )
        elif note and re.match(r"\s+[*\-•]", line):
            note = replace(note, text=f"{note.text}\n{line}")
    if note:
        yield note
