"""Write a thread's notes as the text of an answer: the observation block without its preamble."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from om_proxy.memory.dates import read_time
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.model import Memory, Observation
from om_proxy.memory.notes.sections import split_entry
from om_proxy.memory.prompt.context import ContextOptions, format_moment, observation_block
from om_proxy.memory.prompt.ranges import write_range_line
from om_proxy.memory.recall.clipping import CountTokens, find_fitting_chars
from om_proxy.memory.recall.quoted_message import clean_line, clean_text

MAX_NOTE_TOKENS = 8_000
MAX_NAME_CHARS = 60
_CUT = "\n… (cut here)"


class NotesToWrite(NamedTuple):
    """The notes of a thread or, without its name, of a resource. `now`: in the reader's zone."""

    memory: Memory
    label: str
    now: datetime
    options: ContextOptions


def write_notes(notes: NotesToWrite, count_tokens: CountTokens) -> str:
    """Write the notes in at most MAX_NOTE_TOKENS, the oldest left out first. The first line tells
    how many are."""
    entries = [entry for entry in notes.memory.log.entries if not entry.is_withdrawn]
    if not entries and not notes.memory.log.pins:
        return "recall: there are no notes yet"
    fewest, most = 0, len(entries)  # the number of entries left out, by halving
    text = _write(notes, entries, 0)
    if count_tokens(text) > MAX_NOTE_TOKENS:
        while fewest < most:
            middle = (fewest + most) // 2
            fits = count_tokens(_write(notes, entries, middle)) <= MAX_NOTE_TOKENS
            fewest, most = (fewest, middle) if fits else (middle + 1, most)
        # the newest is shown, cut if need be
        text = _write(notes, entries, min(fewest, max(len(entries) - 1, 0)))
    if count_tokens(text) <= MAX_NOTE_TOKENS:
        return text
    room = MAX_NOTE_TOKENS - count_tokens(_CUT)
    return text[: find_fitting_chars(text, room, count_tokens)] + _CUT


def _write(notes: NotesToWrite, entries: list[Observation], left_out: int) -> str:
    memory, log = notes.memory, notes.memory.log
    sections = [(entry, part) for entry in entries[left_out:] for part in split_entry(entry)]
    hints = active_hints(memory)
    block = observation_block(
        [part.text for _, part in sections],
        task=hints.task,
        suggestion=None,
        as_of=format_moment(read_time(hints.as_of, notes.now.tzinfo)) if hints.as_of else None,
        scope="thread",
        render_date=notes.now,
        options=notes.options,
        labels=[part.label for _, part in sections],
        pins=[pin.text for pin in log.pins],
        ranges=[
            write_range_line(entry, part.label, memory.thread_label) for entry, part in sections
        ],
    )
    header = _write_header(notes, len(entries), left_out)
    # the preamble speaks to an actor; it has no empty line
    return f"{header}\n{clean_text(block.partition(chr(10) * 2)[2])}"


def _write_header(notes: NotesToWrite, count: int, left_out: int) -> str:
    title = clean_line(notes.memory.title or "", MAX_NAME_CHARS)
    named = f'"{title}"' if title else "an untitled conversation"
    whose = f"of {named} [{notes.label}]" if notes.label else "that conversations share"
    told = f"; the oldest {left_out} of {count} are left out" if left_out else ""
    return f"notes {whose}, {count} entr{'y' if count == 1 else 'ies'}, oldest first{told}"
