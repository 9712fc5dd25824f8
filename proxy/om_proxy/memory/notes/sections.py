"""Read and write the text of a shared log in sections: the notes of one thread are between tags
that name it (docs/contributing/behaviour.md#scopes).

A thread is named by its *label*, a keyed hash of its name: 16 hexadecimal digits. An observation is
one section. A reflection may hold several sections, and text that belongs to no single thread. It
is stored with the tags and with escaped text between them, so that no note can pass for another
thread's. Every section is escaped where it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.escaping import escape, unescape
from om_proxy.memory.model import Observation
from om_proxy.memory.notes.observations import remove_reasoning

_STORED_SECTION = re.compile(
    r'^<thread id="(?P<label>[0-9a-f]{16})">\n(?P<text>.*?)\n</thread>$', re.MULTILINE | re.DOTALL
)
_QUOTE = "[\"'`“”„‘’«»]"
# The tag as models write it: any case, any quotes, anything else in it. The blanks are possessive,
# and a match starts only at the first of a run of blanks: a long answer must stay linear to read.
_WRITTEN_TAG = re.compile(
    r"(?<![ \t])[ \t]*+<\s*+"
    rf"(?:(?P<close>/)\s*+thread\s*+>|thread\s++(?:id\s*+=\s*+)?{_QUOTE}?(?P<label>[0-9a-f]{{16}})(?!\w){_QUOTE}?[^<>\n]*+>)",
    re.IGNORECASE,
)
# The parser of notes keeps such a line anywhere, because it reads like a date. 0: no thread.
_MARK_LINE = re.compile(r"^[^\S\n]*\[\[date: thread (?P<number>\d{1,5})\]\][^\S\n]*$", re.MULTILINE)


class Section(NamedTuple):
    """Notes of one thread, or of none in particular."""

    label: str | None
    text: str


def split_entry(entry: Observation) -> list[Section]:
    """Split an entry's text by thread. In a thread's own log the text is one section without a
    label. A withdrawn entry has no section."""
    if entry.is_withdrawn:
        return []
    if not entry.parts:
        return [Section(None, entry.text)]
    if entry.kind != "reflection":
        return [Section(entry.parts[0].label, entry.text)]
    return split_reflection(entry.text, {part.label for part in entry.parts})


def split_reflection(text: str, labels: Collection[str]) -> list[Section]:
    """Split a reflection's text, as `restore_tags` has written it, by thread."""
    return [section._replace(text=unescape(section.text)) for section in _read_stored(text, labels)]


def _read_stored(text: str, labels: Collection[str]) -> Iterator[Section]:
    start = 0
    for section in _STORED_SECTION.finditer(text):
        if section["label"] not in labels:
            continue
        if between := text[start : section.start()].strip("\n"):
            yield Section(None, between)
        yield Section(section["label"], section["text"])
        start = section.end()
    if after := text[start:].strip("\n"):
        yield Section(None, after)


def add_label(entry: Observation, label: str) -> Observation:
    """Write the text of an entry of a thread's own log as a shared log has it."""
    return (
        replace(entry, text=wrap_in_tag(label, escape(entry.text)))
        if entry.kind == "reflection" and not entry.is_withdrawn
        else entry
    )


def plain_text(entry: Observation) -> str:
    """Return the text of an entry that is about one thread, as that thread's own log has it."""
    return "\n\n".join(section.text for section in split_entry(entry))


def render_sections(sections: Iterable[Section]) -> str:
    """Write sections as models read them: escaped, each in its tags. Later sections never change
    the text before them."""
    return "\n\n".join(wrap_in_tag(section.label, escape(section.text)) for section in sections)


def wrap_in_tag(label: str | None, text: str) -> str:
    """Return the text between the tags of this thread, or as it is without a label."""
    return text if label is None else f'<thread id="{label}">\n{text}\n</thread>'


def render_plain(sections: Iterable[Section]) -> list[str]:
    """Write sections for the observer's excerpt. Each names its thread in words, because single
    lines may be left out."""
    return [
        f"In conversation {label}:\n{text}" if label is not None else text
        for label, text in sections
    ]


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def split_by_thread(answer: str, labels: Collection[str]) -> dict[str, str]:
    """Split an answer by these threads; several sections of one thread are joined. A section ends
    where the next begins, and goes on after a section inside it."""
    texts_by_label: dict[str, list[str]] = {}
    for label, text in _read_written(remove_reasoning(answer)):
        if label is not None and label in labels and text.strip():
            texts_by_label.setdefault(label, []).append(text)
    return {label: "\n".join(texts) for label, texts in texts_by_label.items()}


def _read_written(answer: str) -> Iterator[Section]:
    inside: list[str] = []
    start = 0
    for tag in _WRITTEN_TAG.finditer(answer):
        yield Section(inside[-1] if inside else None, answer[start : tag.start()])
        start = tag.end()
        if tag["label"]:
            inside.append(tag["label"].lower())
        elif inside:
            inside.pop()
    yield Section(inside[-1] if inside else None, answer[start:])


def mark_tags(answer: str, labels: Collection[str]) -> str:
    """Replace thread tags by lines that the parser of notes keeps. `restore_tags` turns the lines
    back into tags."""
    numbers = {label: number for number, label in enumerate(sorted(labels), 1)}

    def mark(tag: re.Match[str]) -> str:
        number = numbers.get(tag["label"].lower(), 0) if tag["label"] else 0
        return f"\n[[date: thread {number}]]\n"

    return _WRITTEN_TAG.sub(mark, _MARK_LINE.sub("", remove_reasoning(answer)))


def restore_tags(text: str, labels: Collection[str]) -> str:
    """Turn the lines that `mark_tags` wrote back into the tags that `split_reflection` reads. A
    section ends where the next begins."""
    names = dict(enumerate(sorted(labels), 1))
    sections: list[Section] = []
    label = None
    start = 0
    for mark in [*_MARK_LINE.finditer(text), None]:
        body = text[start : mark.start() if mark else len(text)].strip("\n")
        if body and label is None and sections and sections[-1].label is None:
            sections[-1] = Section(None, f"{sections[-1].text}\n\n{body}")
        elif body:
            sections.append(Section(label, body))
        if mark:
            label = names.get(int(mark["number"]))
            start = mark.end()
    return render_sections(sections)
