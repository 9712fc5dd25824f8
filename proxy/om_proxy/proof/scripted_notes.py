"""A memory model by script, whose notes have a given length: what it keeps is drawn evenly from
what it is shown.

It stands for no real model's judgement, only for its bill. Of each prompt it keeps the tokens; they
are counted, not invented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from om_proxy.testing.notes import THREAD_SECTION
from om_proxy.testing.scripted import message_text

# what a bullet was drawn from; both marks cost the same, and neither is shown to the actor
TEXT_MARK, RESULT_MARK = "🟡", "🟢"
BULLET_CHARS = 160
MIN_BULLET_CHARS = 12  # that say something
HINTS = "<current-task>\ngo on with what was asked last\n</current-task>"
# of its input: how long a reflection is, well below the 0.75 that is accepted
REFLECTED_SHARE = 0.5

_SPEAKER = re.compile(
    r"^(?:User|Assistant|Tool call|Tool result)[^():]*(?: \(\d\d:\d\d\))?(?:, no result)?: ?"
)
_OWN_LINE = re.compile(r"^(?:Date: .*|</?transcript>)$")


@dataclass(frozen=True, slots=True)
class NotesCall:
    """The tokens of one call of a memory model."""

    reflects: bool
    read: int
    written: int


class ScriptedNotes:
    """The model, as an answer function of a stage.

    `text_rate`: tokens of the transcript for one token of notes; `result_rate`: of what tools
    returned, where it differs."""

    def __init__(
        self,
        text_rate: float,
        count: Callable[[str], int],
        result_rate: float | None = None,
    ) -> None:
        self.text_rate = text_rate
        self.result_rate = result_rate or text_rate
        self.calls: list[NotesCall] = []
        self._count = count

    async def __call__(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an assistant message with its usage."""
        texts = [message_text(message) for message in request["messages"]]
        new = texts[-1].partition("# New messages")[2]
        answer = (
            answer_by_thread(new, self._write_notes) if new else self._write_reflection(texts[-1])
        )
        call = NotesCall(not new, sum(map(self._count, texts)), self._count(answer))
        self.calls.append(call)
        usage = {"prompt_tokens": call.read, "completion_tokens": call.written}
        return {"role": "assistant", "content": answer, "usage": usage}

    def _write_notes(self, new: str) -> str:
        date = re.search(r"^Date: .+$", new, re.M)
        tokens = self._count(new)
        notes = draw_notes(new, tokens / self.text_rate, tokens / self.result_rate, self._count)
        return f"<observations>\n{date.group() if date else ''}\n{notes}\n</observations>\n{HINTS}"

    def _write_reflection(self, log: str) -> str:
        lines = [line for line in log.splitlines() if line.startswith(("* ", "Date: "))]
        bullets = [line for line in lines if line.startswith("* ")]
        kept = set(choose_evenly(bullets, REFLECTED_SHARE))
        notes = "\n".join(line for line in lines if line in kept or line.startswith("Date: "))
        return f"<observations>\n{notes}\n</observations>\n{HINTS}"


def answer_by_thread(new: str, write_notes: Callable[[str], str]) -> str:
    """Return the notes of new messages; those of several threads in a section for each."""
    threads = THREAD_SECTION.findall(new)
    sections = (f'<thread id="{label}">\n{write_notes(text)}\n</thread>' for label, text in threads)
    return "\n".join(sections) if threads else write_notes(new)


def draw_notes(
    transcript: str, text_tokens: float, result_tokens: float, count: Callable[[str], int]
) -> str:
    """Return bullets in the transcript's order: of `text_tokens` if all of it were text, of
    `result_tokens` if all were what tools returned."""
    bullets = list(list_bullets(transcript))
    by_mark = {
        mark: [bullet for bullet in bullets if bullet.startswith(f"* {mark}")]
        for mark in (TEXT_MARK, RESULT_MARK)
    }
    sizes = {mark: count("\n".join(of_mark)) for mark, of_mark in by_mark.items()}
    whole = sum(sizes.values())
    kept: set[str] = set()
    for mark, tokens in ((TEXT_MARK, text_tokens), (RESULT_MARK, result_tokens)):
        if sizes[mark]:
            kept |= set(choose_evenly(by_mark[mark], tokens / whole))
    lines = "\n".join(bullet for bullet in bullets if bullet in kept)
    return lines or f"* {RESULT_MARK} (10:00) nothing was said"


def list_bullets(transcript: str) -> Iterator[str]:
    """Yield each different line of what people and tools said, in bullets whose mark tells which."""
    marks: dict[str, str] = {}
    mark = TEXT_MARK
    for line in transcript.splitlines():
        if _OWN_LINE.match(line):
            continue
        if _SPEAKER.match(line):
            mark = RESULT_MARK if line.startswith("Tool result") else TEXT_MARK
        marks.setdefault(_SPEAKER.sub("", line).strip(), mark)
    for line, kind in marks.items():
        for start in range(0, len(line), BULLET_CHARS):
            if len(piece := line[start : start + BULLET_CHARS].strip()) >= MIN_BULLET_CHARS:
                yield f"* {kind} (10:00) {piece}"


def choose_evenly(lines: list[str], share: float) -> list[str]:
    """Return this share of the lines, the first among them, spread over all."""
    count = min(len(lines), max(1, round(len(lines) * share)))
    return [lines[n * len(lines) // count] for n in range(count)] if lines else []
