"""Render the resource's other threads for the actor: the newest messages that no notes cover yet, in
short (docs/spec/behaviour.md#scopes).

They are for reference, never the actor's own history. Each thread is a block of its own, no part of
a message is longer than 500 characters, and all blocks together are a page or two. The oldest gives
way first; nothing is lost by that, for it is observed all the same. Notes that are ready, but must
not enter the log while their own thread's prompt cache is warm, are shown there in full.
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

Excerpt = tuple[str, Sequence[str]]  # the speaker, and the parts of the message


def render_other_threads(
    threads: Sequence[tuple[str, Sequence[Excerpt]]], notes: Mapping[str, str] | None = None
) -> str:
    """Write the blocks, the thread that spoke last first. `threads`: labels, each with its messages
    from old to new, without those that `notes` cover. `notes`: by label, the thread that spoke last
    first."""
    left, room, blocks, said = MAX_MESSAGES_CHARS, MAX_NOTES_CHARS, list[str](), dict(threads)
    for label in dict.fromkeys((*said, *(notes or {}))):
        noted = _note_lines((notes or {}).get(label, ""), room)
        room -= sum(map(len, noted))
        lines = _message_lines(said.get(label, ()), left)
        left -= sum(map(len, lines))
        if noted or lines:
            since = ["Said since:"] if noted and lines else []
            inside = "\n".join((*noted, *since, *lines))
            blocks.append(f'<other-conversation id="{label}">\n{inside}\n</other-conversation>')
    return "\n\n".join(blocks)


def _note_lines(notes: str, room: int) -> list[str]:
    """Return the notes, indented, so that none can pass for a speaker: all of them or none."""
    if not notes.strip() or len(notes) > room:
        return []
    return ["Notes:", *(f"  {escape(line)}" for line in notes.splitlines())]


def _message_lines(messages: Sequence[Excerpt], room: int) -> list[str]:
    """Return the newest messages, as many as fit, in their order."""
    lines: list[str] = []
    for speaker, parts in reversed([m for m in messages if m[1]]):
        line = f"{escape(' '.join(speaker.split()))}: " + "\n  ".join(
            _clip_part(part) for part in parts
        )
        if len(line) > room:
            break
        room -= len(line)
        lines.append(line)
    return lines[::-1]


def _clip_part(part: str) -> str:
    """Clip a part of a message; its further lines are indented, so that no text can pass for another
    speaker's."""
    cut = part if len(part) <= MAX_PART_CHARS else f"{part[: MAX_PART_CHARS - 1].rstrip()}…"
    return escape("\n  ".join(cut.splitlines()))
