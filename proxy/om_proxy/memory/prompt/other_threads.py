"""Render the resource's other threads for the actor: the newest messages that no notes cover yet,
in short (docs/contributing/behaviour.md#scopes).

They are for reference, never the actor's own history. Each thread is a block of its own, no part of
a message is longer than 500 characters, and all blocks together are a page or two. The oldest
messages are left out first; they are observed all the same. Notes that are ready, but must not
enter the log while their own thread's prompt cache is warm, are shown here in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from om_proxy.memory.escaping import escape

MAX_THREADS = 8  # those that spoke last
MAX_THREAD_MESSAGES = 12  # the newest of each thread
MAX_PART_CHARS = 500  # docs/contributing/behaviour.md#scopes
MAX_MESSAGES_CHARS = 12_000  # of all threads together: some 3 000 tokens
MAX_NOTED_THREADS = 24  # those that spoke last, of the threads whose notes wait
MAX_NOTES_CHARS = 60_000  # of all these threads together: some 15 000 tokens

Excerpt = tuple[str, Sequence[str]]  # the speaker, and the parts of the message


def render_other_threads(
    threads: Sequence[tuple[str, Sequence[Excerpt]]], notes: Mapping[str, str] | None = None
) -> str:
    """Write the blocks, the thread that spoke last first.

    `threads`: labels, each with its messages from old to new, without those that `notes` cover.
    `notes`: by label. In both the thread that spoke last comes first."""
    notes = notes or {}
    messages = dict(threads)
    free_message_chars = MAX_MESSAGES_CHARS
    free_note_chars = MAX_NOTES_CHARS
    blocks: list[str] = []
    for label in dict.fromkeys((*messages, *notes)):
        note_lines = _note_lines(notes.get(label, ""), free_note_chars)
        free_note_chars -= sum(map(len, note_lines))
        message_lines = _message_lines(messages.get(label, ()), free_message_chars)
        free_message_chars -= sum(map(len, message_lines))
        if note_lines or message_lines:
            since = ["Said since:"] if note_lines and message_lines else []
            inside = "\n".join((*note_lines, *since, *message_lines))
            blocks.append(f'<other-conversation id="{label}">\n{inside}\n</other-conversation>')
    return "\n\n".join(blocks)


def _note_lines(notes: str, max_chars: int) -> list[str]:
    """Return all of the notes, or none if they are too long. They are indented, so that no line can
    pass for a speaker's."""
    if not notes.strip() or len(notes) > max_chars:
        return []
    return ["Notes:", *(f"  {escape(line)}" for line in notes.splitlines())]


def _message_lines(messages: Sequence[Excerpt], max_chars: int) -> list[str]:
    """Return the newest messages, as many as fit, in their order."""
    lines: list[str] = []
    for speaker, parts in reversed([m for m in messages if m[1]]):
        line = f"{escape(' '.join(speaker.split()))}: " + "\n  ".join(
            _clip_part(part) for part in parts
        )
        if len(line) > max_chars:
            break
        max_chars -= len(line)
        lines.append(line)
    return lines[::-1]


def _clip_part(part: str) -> str:
    """Clip a part of a message. Its further lines are indented, so that no text can pass for
    another speaker's."""
    clipped = part if len(part) <= MAX_PART_CHARS else f"{part[: MAX_PART_CHARS - 1].rstrip()}…"
    return escape("\n  ".join(clipped.splitlines()))
