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
THREAD_SECTION = re.compile(
    r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE
)
_OPEN, _CLOSE = "<observations>\n", "\n</observations>"
_SPEAKER = re.compile(
    r"^(?P<who>User|Assistant|Tool call|Tool result)(?P<name>[^():#]*)(?: #\d+)?"
    r"(?: \((?P<time>\d\d:\d\d)\))?(?:, no result|, corrects what was noted)?"
    r":(?P<text>.*)$"
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
_OUTCOME = re.compile(
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
    response. If the prompt holds several threads, the answer has a section for each."""
    threads = THREAD_SECTION.findall(prompt)
    if threads:
        return join_sections((label, observe_one(text)) for label, text in threads)
    return observe_one(prompt)


def join_sections(answers: Iterable[tuple[str, str]]) -> str:
    """Return one answer with a section for each thread, from the threads' labels and answers."""
    sections = (f'<thread id="{label}">\n{answer}\n</thread>' for label, answer in answers)
    return _OPEN + "\n".join(sections).replace(_OPEN, "").replace(_CLOSE, "") + _CLOSE


def observe_one(prompt: str) -> str:
    """Return the observer's whole answer for one thread."""
    messages = list(parse_transcript(prompt))
    notes = list(drop_repeats(note for message in messages for note in write_notes(message)))
    if not notes:
        notes = [Note("🟢", None, "Nothing of note was said.", "")]
    blocks = [f"<observations>\n{render_notes(notes)}\n</observations>"]
    questions = [note.text for note in notes if note.mark == "🟡"]
    if questions:
        blocks.append(f"<current-task>{questions[-1]}</current-task>")
    replies = [m.text for m in messages if m.speaker == "Assistant" and m.text]
    if replies:
        opening = clip(split_sentences(replies[-1])[0])
        blocks.append(f"<suggested-response>Continue from: {opening}</suggested-response>")
    return "\n".join(blocks)


def reflect(prompt: str, tokens: Callable[[str], int]) -> str:
    """Return the reflector's whole answer: the same notes, fewer of them. If the notes are of
    several threads, the answer has a section for each."""
    threads = THREAD_SECTION.findall(prompt)
    if threads:
        texts: dict[str, list[str]] = {}
        for label, text in threads:
            texts.setdefault(label, []).append(text)
        return join_sections(
            (label, reflect_one("\n".join(sections), tokens)) for label, sections in texts.items()
        )
    return reflect_one(prompt, tokens)


def reflect_one(prompt: str, tokens: Callable[[str], int]) -> str:
    """Return the reflector's whole answer for one thread."""
    all_notes = list(parse_notes(prompt))
    notes = list(drop_repeats(all_notes))
    target_tokens = min(
        TARGET_REFLECTION_SHARE * tokens(render_notes(all_notes)), find_requested_tokens(prompt)
    )
    surplus = tokens(render_notes(notes)) - target_tokens
    for mark in "🟢🟡✅":
        notes, surplus = drop_oldest(notes, mark, surplus, tokens)
    return f"<observations>\n{render_notes(notes)}\n</observations>"


def find_requested_tokens(prompt: str) -> float:
    """Find the size in tokens that the prompt asks for last. Return infinity if it asks for none."""
    sizes = _SIZE.findall(prompt)
    return float(sizes[-1]) if sizes else math.inf


def drop_oldest(
    notes: list[Note], mark: str, surplus: float, tokens: Callable[[str], int]
) -> tuple[list[Note], float]:
    """Drop the oldest notes of this mark until no surplus tokens are left. Return the kept notes
    and what is left of the surplus."""
    kept_notes = []
    for note in notes:
        if note.mark == mark and surplus > 0:
            surplus -= tokens(str(note))
        else:
            kept_notes.append(note)
    return kept_notes, surplus


def parse_transcript(prompt: str) -> Iterator[TranscriptMessage]:
    """Parse the messages to observe from the prompt's fence."""
    day = ""
    message: TranscriptMessage | None = None
    for line in extract_transcript(prompt).splitlines():
        if heading := _DATE.match(line):
            day = (heading["bound"] or "") + heading["day"]
        elif head := _SPEAKER.match(line):
            if message:
                yield message
            message = TranscriptMessage(
                head["who"], head["name"].strip(), day, head["time"], head["text"].strip()
            )
        elif message:
            text = f"{message.text}\n{line.removeprefix('  ')}".lstrip("\n")
            message = replace(message, text=text)
    if message:
        yield message


def extract_transcript(prompt: str) -> str:
    """Return the text in the prompt's fence, or an empty text if there is none."""
    fence = _FENCE.search(prompt)
    return fence[1] if fence else ""


def write_notes(message: TranscriptMessage) -> Iterator[Note]:
    for mark, text in _RULES[message.speaker](message):
        yield Note(mark, message.time, text, message.day)


def note_user_text(message: TranscriptMessage) -> Iterator[tuple[str, str]]:
    for sentence in split_sentences(message.text):
        if _QUESTION.search(sentence):
            yield "🟡", f"User asked: {clip(sentence, MAX_QUESTION_CHARS)}"
        elif len(sentence) >= MIN_SENTENCE_CHARS and _ASSERTS.search(sentence):
            yield "🔴", f"User said: {clip(sentence)}"


def note_assistant_text(message: TranscriptMessage) -> Iterator[tuple[str, str]]:
    candidates = [
        sentence
        for sentence in split_sentences(message.text)
        if len(sentence) >= MIN_SENTENCE_CHARS and not sentence.endswith("?")
    ]
    finished = [sentence for sentence in candidates if _FINISHED.search(sentence)]
    findings = [s for s in candidates if s not in finished and _FINDING.search(s)]
    if finished:
        yield "✅", clip(finished[0])
    max_findings = 1 if finished else 2
    yield from (("🟢", f"Assistant: {clip(finding)}") for finding in findings[:max_findings])


def note_tool_call(message: TranscriptMessage) -> Iterator[tuple[str, str]]:
    yield (
        "🟢",
        f"Assistant called {message.name}({clip(' '.join(message.text.split()), MAX_ARGUMENT_CHARS)})",
    )


def note_tool_result(message: TranscriptMessage) -> Iterator[tuple[str, str]]:
    """Note the first and the last line that tell how the call went."""
    outcomes = [
        " ".join(line.split()) for line in message.text.splitlines() if _OUTCOME.search(line)
    ]
    for line in dict.fromkeys([*outcomes[:1], *outcomes[-1:]]):
        yield "🟢", f"{message.name}: {clip(line, MAX_RESULT_CHARS)}"


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
    """Yield the notes without those whose text came before."""
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
    """Parse the notes in a prompt, and ignore other text. Sub-bullets stay with their bullet."""
    day = ""
    note: Note | None = None
    for line in prompt.splitlines():
        if heading := _HEADING.match(line):
            day = heading[1]
        elif bullet := _BULLET.match(line):
            if note:
                yield note
            text = line[bullet.end() :].strip()
            prefix = re.match(r"\((\d{1,2}:\d{2})\)\s*", text)
            time = prefix[1] if prefix else None
            note = Note(bullet["mark"], time, text[prefix.end() :] if prefix else text, day)
        elif note and re.match(r"\s+[*\-•]", line):
            note = replace(note, text=f"{note.text}\n{line}")
    if note:
        yield note
