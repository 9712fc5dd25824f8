"""Cut a message into passages: the units that the index holds and ranking reads.

What is indexed of a message is in docs/contributing/recall.md#what-is-indexed. A passage has
words of its own, and *side words*: the speaker's name and the date, which a question may name
although the message does not say them.

A *visit* is a run of messages of one thread without a pause of more than VISIT_PAUSE_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from om_proxy.memory.dates import MONTH_NAMES, WEEKDAY_NAMES
from om_proxy.memory.recall.words import words

PASSAGE_WORDS = 150
MAX_PASSAGES = 40  # of what people and models say in one message
MAX_CALL_WORDS = 300
RESULT_FIRST_WORDS = 600
RESULT_LAST_WORDS = 150
VISIT_PAUSE_S = 1_800.0
# words are made of at most so many characters of one text, so that no message costs seconds
MAX_TEXT_CHARS = 200_000


class MessageText(NamedTuple):
    """The text of a message that is indexed, before it becomes words."""

    seq: int
    role: str
    at: float  # unix seconds
    speaker: str = ""  # the name that the message carries; empty: none
    spoken: tuple[str, ...] = ()  # texts, names and titles of images and files
    called: tuple[str, ...] = ()  # names of tools, and the texts among their arguments
    result: tuple[str, ...] = ()  # texts of a tool's result


class IndexPlace(NamedTuple):
    """How far a thread is indexed: what the next message's passages go on from."""

    indexed_to: int = 0  # seq
    position: int = 0  # the number of messages with passages
    visit: int = 0  # of the last of them
    at: float | None = None  # unix seconds of the last of them; None: there is none


class Passage(NamedTuple):
    """A passage of one message, as the index holds it."""

    seq: int
    place: int  # of the passage in the message, from 0
    position: int  # of the message among those of its thread that have passages, from 1
    visit: int  # of the message in its thread, from 1
    role: str
    at: float  # unix seconds
    length: int  # words of the whole message
    words: tuple[str, ...]  # its own, in order
    side_words: tuple[str, ...]


def cut_passages(
    messages: Iterable[MessageText], place: IndexPlace, zone_name: str | None
) -> tuple[list[Passage], IndexPlace]:
    """Return the passages of messages that follow `place` in a thread, in order of seq, and the
    place after them. `zone_name`: the thread's time zone, for dates; UTC if it is None or unknown.

    A message without words has no passage.
    """
    zone = _find_zone(zone_name)
    passages: list[Passage] = []
    for message in messages:
        stretches = [stretch for stretch in _list_stretches(message) if stretch]
        place = place._replace(indexed_to=message.seq)
        if not stretches:
            continue
        pauses = place.at is None or message.at - place.at > VISIT_PAUSE_S
        place = IndexPlace(
            message.seq, place.position + 1, place.visit + 1 if pauses else place.visit, message.at
        )
        side_words = tuple(
            dict.fromkeys(words(f"{message.speaker} {_write_date(message.at, zone)}"))
        )
        length = sum(map(len, stretches))
        passages += (
            Passage(
                message.seq,
                number,
                place.position,
                place.visit,
                message.role,
                message.at,
                length,
                stretch,
                side_words,
            )
            for number, stretch in enumerate(stretches)
        )
    return passages, place


def _list_stretches(message: MessageText) -> Iterator[tuple[str, ...]]:
    yield from _cut(_read_words(message.spoken), MAX_PASSAGES * PASSAGE_WORDS)
    yield from _cut(_read_words(message.called), MAX_CALL_WORDS)
    if message.result:
        yield from _cut(_shorten_result(message.result), RESULT_FIRST_WORDS + RESULT_LAST_WORDS)


def _read_words(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from words(text[:MAX_TEXT_CHARS])


def _shorten_result(texts: Sequence[str]) -> Iterator[str]:
    """Yield the first and the last words of a tool's result."""
    text = "\n".join(texts)
    if len(text) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    found = words(text)
    yield from found[:RESULT_FIRST_WORDS]
    yield from found[RESULT_FIRST_WORDS:][-RESULT_LAST_WORDS:]


def _cut(found: Iterator[str], limit: int) -> Iterator[tuple[str, ...]]:
    limited = islice(found, limit)
    while stretch := tuple(islice(limited, PASSAGE_WORDS)):
        yield stretch


def _find_zone(name: str | None) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _write_date(at: float, zone: tzinfo) -> str:
    """Return a date as people name it: `Monday May 8 2023`; nothing for a time that is no date."""
    try:
        day = datetime.fromtimestamp(at, zone)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{WEEKDAY_NAMES[day.weekday()]} {MONTH_NAMES[day.month - 1]} {day.day} {day.year}"
