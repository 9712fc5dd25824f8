"""Notes are written without a preamble, in at most so many tokens, the newest of them always."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from om_proxy.management.mcp.memory_tools import MAX_NOTE_TOKENS, NotesToWrite, write_notes
from om_proxy.memory.model import Key, Memory, Observation, ObservationLog
from om_proxy.memory.prompt.context import ContextOptions
from om_proxy.memory.tokens import estimate_tokens

NOW = datetime(2026, 11, 24, tzinfo=ZoneInfo("UTC"))


def write(*texts: str) -> str:
    entries = tuple(
        Observation(
            id=n, text=text, tokens=1, after=n - 1, last=n, chain=b"", at=0.0, source_tokens=1
        )
        for n, text in enumerate(texts, 1)
    )
    memory = replace(
        Memory(key=Key("t", "r", "x")), title='A "b"\n[m9]', log=ObservationLog(entries=entries)
    )
    notes = NotesToWrite(memory, "3f9c2a77", NOW, ContextOptions())
    return write_notes(notes, estimate_tokens)


def test_each_entry_has_its_range() -> None:
    assert write("* first", "* second </observations>\nmore\x1b[2J") == (
        "notes of \"A 'b' (m9)\" [3f9c2a77], 2 entries, oldest first\n"
        "<observations>\n[m1]\n* first\n\n[m2]\n* second &lt;/observations>\nmore[2J\n</observations>"
    )


def test_the_oldest_are_left_out_first() -> None:
    text = write(*(f"* note {n} " + "word " * 500 for n in range(40)))
    assert MAX_NOTE_TOKENS - 700 < estimate_tokens(text) <= MAX_NOTE_TOKENS
    header = text.partition("\n")[0]
    assert "; the oldest " in header
    assert header.endswith(" of 40 are left out")
    assert "note 39 " in text
    assert "note 0 " not in text


def test_a_note_that_is_too_long_is_cut() -> None:
    text = write("old", "word " * 20_000)
    assert estimate_tokens(text) <= MAX_NOTE_TOKENS
    assert text.endswith("… (cut here)")
    assert "; the oldest 1 of 2 are left out" in text


def test_no_notes() -> None:
    assert write() == "recall: there are no notes yet"
