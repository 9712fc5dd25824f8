"""The text of a shared log in sections: what was noted of one thread stands between tags that name
it (docs/spec/behaviour.md#scopes).

A thread's name is a keyed hash of it, its *label*: 16 hexadecimal digits. An observation is one section; a reflection may hold
several, and matter that belongs to no single thread besides: its text is kept with the tags, and what stands between them escaped,
so that no note can pass for another thread's. Every section is escaped where it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.escaping import escape, unescape
from om_proxy.memory.model import Observation
from om_proxy.memory.observations import without_reasoning

_STORED = re.compile(r'^<thread id="(?P<label>[0-9a-f]{16})">\n(?P<text>.*?)\n</thread>$', re.MULTILINE | re.DOTALL)
_QUOTE = "[\"'`“”„‘’«»]"
# As models write it: any case, any quotes, anything else in the tag. The blanks are possessive, and a run of them is begun at its
# first only: an answer may be long.
_WRITTEN = re.compile(
    r"(?<![ \t])[ \t]*+<\s*+"
    rf"(?:(?P<close>/)\s*+thread\s*+>|thread\s++(?:id\s*+=\s*+)?{_QUOTE}?(?P<label>[0-9a-f]{{16}})(?!\w){_QUOTE}?[^<>\n]*+>)",
    re.IGNORECASE,
)
# A line that a parser of notes keeps wherever it stands, for it takes it for a date. 0: no thread.
_MARK = re.compile(r"^[^\S\n]*\[\[date: thread (?P<number>\d{1,5})\]\][^\S\n]*$", re.MULTILINE)


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
    return reflected(entry.text, {part.label for part in entry.parts})


def reflected(text: str, labels: Collection[str]) -> list[Section]:
    """A reflection's text, as `stored` has written it, by thread."""
    return [section._replace(text=unescape(section.text)) for section in _stored(text, labels)]


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


def with_label(entry: Observation, label: str) -> Observation:
    """An entry of a thread's own log with its text as a shared one has it."""
    return replace(entry, text=tagged(label, escape(entry.text))) if entry.kind == "reflection" else entry


def plain_text(entry: Observation) -> str:
    """The text of an entry that is about one thread, as that thread's own log has it."""
    return "\n\n".join(section.text for section in sections(entry))


def shown(found: Iterable[Section]) -> str:
    """Sections as any model reads them: escaped, each in its tags. What comes later never changes what stands before."""
    return "\n\n".join(tagged(section.label, escape(section.text)) for section in found)


def tagged(label: str | None, text: str) -> str:
    return text if label is None else f'<thread id="{label}">\n{text}\n</thread>'


def plain(found: Iterable[Section]) -> list[str]:
    """Sections for an observer that is reminded of them: who is spoken of is said in words, for single lines may be left out."""
    return [s.text if s.label is None else f"In conversation {s.label}:\n{s.text}" for s in found]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_thread(answer: str, labels: Collection[str]) -> dict[str, str]:
    """What an answer says of each of these threads; several sections of one are joined. A section ends where the next begins, and goes
    on where one inside it ends."""
    said: dict[str, list[str]] = {}
    for label, text in _written(without_reasoning(answer)):
        if label is not None and label in labels and text.strip():
            said.setdefault(label, []).append(text)
    return {label: "\n".join(texts) for label, texts in said.items()}


def _written(answer: str) -> Iterator[Section]:
    inside: list[str] = []
    start = 0
    for tag in _WRITTEN.finditer(answer):
        yield Section(inside[-1] if inside else None, answer[start : tag.start()])
        start = tag.end()
        if tag["label"]:
            inside.append(tag["label"].lower())
        elif inside:
            inside.pop()
    yield Section(inside[-1] if inside else None, answer[start:])


def marked(answer: str, labels: Collection[str]) -> str:
    """The answer with lines in place of its thread tags that a parser of notes leaves alone; `stored` turns them back."""
    numbers = {label: number for number, label in enumerate(sorted(labels), 1)}

    def mark(tag: re.Match[str]) -> str:
        number = numbers.get(tag["label"].lower(), 0) if tag["label"] else 0
        return f"\n[[date: thread {number}]]\n"

    return _WRITTEN.sub(mark, _MARK.sub("", without_reasoning(answer)))


def stored(text: str, labels: Collection[str]) -> str:
    """Parsed notes with their marks as the tags that `reflected` reads. A section ends where the next begins."""
    names = dict(enumerate(sorted(labels), 1))
    found: list[Section] = []
    label, start = None, 0
    for mark in [*_MARK.finditer(text), None]:
        body = text[start : mark.start() if mark else len(text)].strip("\n")
        if body and label is None and found and found[-1].label is None:
            found[-1] = Section(None, f"{found[-1].text}\n\n{body}")
        elif body:
            found.append(Section(label, body))
        if mark:
            label, start = names.get(int(mark["number"])), mark.end()
    return shown(found)
