"""The text of a shared log in sections: what was noted of one thread stands between tags that name it (behaviour.md 9).

A thread's name is a keyed hash of it, its *label*: 16 hexadecimal digits. An observation is one section; a reflection may hold
several, and matter that belongs to no single thread besides. Text that only looks like a tag of ours is escaped where it is shown,
and read as a tag only if it names a thread the entry is really about.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from proxy.memory.escaping import escape
from proxy.memory.model import Observation
from proxy.memory.observations import without_reasoning

_STORED = re.compile(r'^<thread id="(?P<label>[0-9a-f]{16})">\n(?P<text>.*?)\n</thread>$', re.MULTILINE | re.DOTALL)
# As models write it: any case, any quotes, anything else in the tag. The blanks are possessive: an answer may be long.
_WRITTEN = re.compile(
    r"[ \t]*+<\s*+(?:(?P<close>/)\s*+thread\s*+>|thread\s++(?:id\s*+=\s*+)?[\"'“”]?(?P<label>[0-9a-f]{16})[\"'“”]?[^<>\n]*+>)",
    re.IGNORECASE,
)
_MARK = re.compile(r"^\[\[thread (?P<label>[0-9a-f]{16})?\]\]$", re.MULTILINE)


class Section(NamedTuple):
    """Notes of one thread, or of none in particular."""

    label: str | None
    text: str


def sections(entry: Observation) -> list[Section]:
    """An entry's text by thread. Of a log that is one thread's own: all of it, without a label."""
    if not entry.parts:
        return [Section(None, entry.text)]
    if entry.kind != "reflection":
        return [Section(entry.parts[0].label, entry.text)]
    return list(_stored(entry.text, {part.label for part in entry.parts}))


def _stored(text: str, labels: Collection[str]) -> Iterator[Section]:
    rest = 0
    for found in _STORED.finditer(text):
        if found["label"] not in labels:
            continue
        if between := text[rest : found.start()].strip("\n"):
            yield Section(None, between)
        yield Section(found["label"], found["text"])
        rest = found.end()
    if rest_of_it := text[rest:].strip("\n"):
        yield Section(None, rest_of_it)


def shown(found: Iterable[Section]) -> str:
    """Sections as any model reads them: escaped, each in its tags. What comes later never changes what stands before."""
    return "\n\n".join(tagged(section.label, escape(section.text)) for section in found)


def tagged(label: str | None, text: str) -> str:
    return text if label is None else f'<thread id="{label}">\n{text}\n</thread>'


def plain(entries: Sequence[Observation]) -> list[str]:
    """The entries for an observer that is reminded of them: who is spoken of is said in words, for single lines may be left out."""
    return [
        section.text if section.label is None else f"In conversation {section.label}:\n{section.text}"
        for entry in entries
        for section in sections(entry)
    ]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_thread(answer: str, labels: Collection[str]) -> dict[str, str]:
    """What an answer says of each of these threads; several sections of one are joined. A section ends where the next begins."""
    said: dict[str, list[str]] = {}
    for label, text in _written(without_reasoning(answer)):
        if label is not None and label in labels:
            said.setdefault(label, []).append(text)
    return {label: "\n".join(texts) for label, texts in said.items()}


def _written(answer: str) -> Iterator[Section]:
    label, start = None, 0
    for tag in _WRITTEN.finditer(answer):
        yield Section(label, answer[start : tag.start()])
        label, start = tag["label"].lower() if tag["label"] else None, tag.end()
    yield Section(label, answer[start:])


def marked(answer: str, labels: Collection[str]) -> str:
    """The answer with lines in place of its thread tags that a parser of notes leaves alone; `stored` turns them back."""

    def mark(tag: re.Match[str]) -> str:
        label = tag["label"].lower() if tag["label"] else ""
        return f"\n[[thread {label}]]\n" if not label or label in labels else "\n"

    return _WRITTEN.sub(mark, _MARK.sub("", without_reasoning(answer)))


def stored(text: str) -> str:
    """Parsed notes with their marks as the tags that `sections` reads. A section ends where the next begins."""
    found: list[str] = []
    label, start = None, 0
    for mark in [*_MARK.finditer(text), None]:
        body = text[start : mark.start() if mark else len(text)].strip("\n")
        if body:
            found.append(tagged(label, body))
        if mark:
            label, start = mark["label"], mark.end()
    return "\n\n".join(found)
