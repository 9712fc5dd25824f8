"""What an actor is told of its resource's other threads: the newest of what no notes cover yet, in
short (docs/spec/behaviour.md#scopes).

For reference, never as its own history: each thread is a block of its own, no part of a message is longer than 500 characters, and
all of it together no longer than a page or two. The oldest gives way first; nothing is lost by that, for it is observed all the same.
Notes that are ready, but must not enter the log while their own thread's prompt cache is warm, are told there in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from om_proxy.memory.escaping import escape

MAX_THREADS = 8  # the ones that spoke last
MAX_THREAD_MESSAGES = 12  # of each, the newest
MAX_PART_CHARS = 500  # docs/spec/behaviour.md#scopes
MAX_MESSAGES_CHARS = 12_000  # of all threads together: some 3 000 tokens
MAX_NOTED_THREADS = 24  # the ones that spoke last, of those whose notes wait
MAX_NOTES_CHARS = 60_000  # of all these threads together: some 15 000 tokens

Excerpt = tuple[str, Sequence[str]]  # who speaks, and the parts of what they say


def told(threads: Sequence[tuple[str, Sequence[Excerpt]]], notes: Mapping[str, str] | None = None) -> str:
    """The blocks, the thread that spoke last first. `threads`: label, and its messages from old to new, without those that `notes`
    stand for; `notes`: by label, the thread that spoke last first."""
    left, room, blocks, said = MAX_MESSAGES_CHARS, MAX_NOTES_CHARS, list[str](), dict(threads)
    for label in dict.fromkeys((*said, *(notes or {}))):
        noted = _noted((notes or {}).get(label, ""), room)
        room -= sum(map(len, noted))
        lines = _lines(said.get(label, ()), left)
        left -= sum(map(len, lines))
        if noted or lines:
            since = ["Said since:"] if noted and lines else []
            inside = "\n".join((*noted, *since, *lines))
            blocks.append(f'<other-conversation id="{label}">\n{inside}\n</other-conversation>')
    return "\n\n".join(blocks)


def _noted(notes: str, room: int) -> list[str]:
    """Indented, so that no note can pass for a speaker; all of them or none."""
    if not notes.strip() or len(notes) > room:
        return []
    return ["Notes:", *(f"  {escape(line)}" for line in notes.splitlines())]


def _lines(messages: Sequence[Excerpt], room: int) -> list[str]:
    """As many of the newest as fit, in their order."""
    lines: list[str] = []
    for speaker, parts in reversed([m for m in messages if m[1]]):
        line = f"{escape(' '.join(speaker.split()))}: " + "\n  ".join(_short(part) for part in parts)
        if len(line) > room:
            break
        room -= len(line)
        lines.append(line)
    return lines[::-1]


def _short(part: str) -> str:
    """On lines of its own indented, so that no text can pass for another speaker's."""
    cut = part if len(part) <= MAX_PART_CHARS else f"{part[: MAX_PART_CHARS - 1].rstrip()}…"
    return escape("\n  ".join(cut.splitlines()))
