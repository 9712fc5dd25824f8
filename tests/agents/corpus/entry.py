"""One answer of the corpus, and what must become of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Entry:
    """`kept`: the notes that must be read out of the answer, to the character; None: nothing of it
    may enter a memory."""

    name: str
    answer: str = field(repr=False)
    kept: str | None = field(repr=False)
    reason: str = ""  # of what is unusable: empty, refusal, prose, loop, oversized
    source_tokens: int = 60_000  # of the messages it is about


def tagged(notes: str) -> str:
    """As the prompt asks for it."""
    return f"<observations>\n{notes}\n</observations>"


def usable(name: str, notes: str, answer: str = "", source_tokens: int = 60_000) -> Entry:
    """Without an answer of its own: the notes in the form that was asked for."""
    return Entry(name, answer or tagged(notes), notes, source_tokens=source_tokens)


def unusable(name: str, reason: str, answer: str, source_tokens: int = 60_000) -> Entry:
    return Entry(name, answer, None, reason, source_tokens)


def sections(file: str) -> Iterator[tuple[str, str]]:
    """The texts of a file, each under a line `=== name`, without the empty line before the next
    one."""
    for section in HERE.joinpath(file).read_text(encoding="utf-8").split("\n=== ")[1:]:
        name, _, text = section.partition("\n")
        yield name, text.strip("\n")
