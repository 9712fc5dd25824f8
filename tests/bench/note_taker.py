"""A memory model by script, whose notes have a given length: what it keeps is drawn evenly from
what it is shown.

It stands for no real model's judgement, only for its bill. Of each prompt it keeps the tokens; they
are counted, not invented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from om_proxy.testing import loopback
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.scripted import message_text

TEXT, RESULT = (
    "🟡",
    "🟢",
)  # what a bullet was drawn from; both marks cost the same, and neither is shown to the actor
PIECE = 160  # characters of a bullet
LEAST = 12  # characters that say something
HINTS = "<current-task>\ngo on with what was asked last\n</current-task>"
SHORTER = 0.5  # of its input: how long a reflection is, well below the 0.75 that is accepted

_SPEAKER = re.compile(
    r"^(?:User|Assistant|Tool call|Tool result)[^():]*(?: \(\d\d:\d\d\))?(?:, no result)?: ?"
)
_THREAD = re.compile(r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE)
_OURS = re.compile(r"^(?:Date: .*|</?transcript>)$")


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a memory model. Tokens."""

    reflects: bool
    read: int
    written: int


class NoteTaker:
    """The server. `ratio`: tokens of the transcript for one token of notes; `tools`: of what tools
    returned, where it differs."""

    def __init__(
        self, ratio: float, count: Callable[[str], int], tools: float | None = None
    ) -> None:
        self.ratio = ratio
        self.tools = tools or ratio
        self.asked: list[Asked] = []
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = orjson.loads(await loopback.read_body(receive))
        texts = [message_text(message) for message in request["messages"]]
        new = texts[-1].partition("# New messages")[2]
        answer = answered_apart(new, self._notes) if new else self._reflection(texts[-1])
        read, written = sum(map(self._count, texts)), self._count(answer)
        self.asked.append(Asked(not new, read, written))
        message = {"role": "assistant", "content": answer}
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "n", "object": "chat.completion", "created": 1, "model": request["model"]}
        await loopback.send_json(send, 200, {**head, "choices": [choice], "usage": usage})

    def _notes(self, new: str) -> str:
        date = re.search(r"^Date: .+$", new, re.M)
        notes = taken(
            new, self._count(new) / self.ratio, self._count(new) / self.tools, self._count
        )
        return f"<observations>\n{date.group() if date else ''}\n{notes}\n</observations>\n{HINTS}"

    def _reflection(self, log: str) -> str:
        lines = [line for line in log.splitlines() if line.startswith(("* ", "Date: "))]
        bullets = [line for line in lines if line.startswith("* ")]
        kept = set(evenly(bullets, SHORTER))
        notes = "\n".join(line for line in lines if line in kept or line.startswith("Date: "))
        return f"<observations>\n{notes}\n</observations>\n{HINTS}"


def answered_apart(new: str, notes: Callable[[str], str]) -> str:
    """The notes of new messages; those of several threads in a section for each."""
    threads = _THREAD.findall(new)
    sections = (f'<thread id="{label}">\n{notes(text)}\n</thread>' for label, text in threads)
    return "\n".join(sections) if threads else notes(new)


def taken(transcript: str, text: float, results: float, count: Callable[[str], int]) -> str:
    """Bullets in the transcript's order: of `text` tokens if all of it were text, of `results` if
    all were what tools returned."""
    bullets = list(drawn(transcript))
    sizes = {
        mark: count("\n".join(b for b in bullets if b.startswith(f"* {mark}")))
        for mark in (TEXT, RESULT)
    }
    whole = sum(sizes.values())
    kept: set[str] = set()
    for mark, tokens in ((TEXT, text), (RESULT, results)):
        if sizes[mark]:
            kept |= set(evenly([b for b in bullets if b.startswith(f"* {mark}")], tokens / whole))
    return "\n".join(b for b in bullets if b in kept) or f"* {RESULT} (10:00) nothing was said"


def drawn(transcript: str) -> Iterator[str]:
    """Each different line of what people and tools said, in bullets whose mark tells which."""
    told: dict[str, str] = {}
    mark = TEXT
    for line in transcript.splitlines():
        if _OURS.match(line):
            continue
        if _SPEAKER.match(line):
            mark = RESULT if line.startswith("Tool result") else TEXT
        told.setdefault(_SPEAKER.sub("", line).strip(), mark)
    for line, kind in told.items():
        for start in range(0, len(line), PIECE):
            if len(piece := line[start : start + PIECE].strip()) >= LEAST:
                yield f"* {kind} (10:00) {piece}"


def evenly(lines: list[str], share: float) -> list[str]:
    """This share of the lines, the first among them, spread over all."""
    count = min(len(lines), max(1, round(len(lines) * share)))
    return [lines[n * len(lines) // count] for n in range(count)] if lines else []
