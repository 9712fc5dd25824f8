"""What every reader needs: the records of a JSONL file, one at a time, however torn it is; times in
any form; and the first bytes of a file, by which its program is found."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from om_proxy.proof.conversation import MISSING_TIMES, RAISED_TIMES, UNREADABLE_LINES, Message

Record = dict[str, Any]

MAX_LINE_BYTES = 32 * 1024 * 1024  # a longer line is skipped without being held
HEAD_BYTES = 256 * 1024
MENDED_LINES = "mended lines"
OTHER_VALUES = "skipped: no object"
SPACING_S = 30.0  # between messages without a time
MIN_MILLISECONDS = 100_000_000_000  # as seconds this would be the year 5138


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, for `fits`."""

    path: Path
    start: bytes  # HEAD_BYTES at most; empty for a folder
    records: tuple[Record, ...]  # the whole JSON objects among the first lines


def read_head(path: Path) -> Head:
    if path.is_dir():
        return Head(path, b"", ())
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
        # a log of requests may begin with a long line
        first = start if b"\n" in start else start + file.readline(MAX_LINE_BYTES)
    lines = first.split(b"\n")
    whole_lines = lines if len(start) < HEAD_BYTES else lines[:-1]
    records = (parse_record(line, Counter()) for line in whole_lines if line.strip())
    return Head(path, start, tuple(record for record in records if record is not None))


def read_records(path: Path, notices: Counter[str]) -> Iterator[Record]:
    """Yield the object of each line. Lines that are none are counted, and so are all lines, under
    "lines"."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
            if is_whole and not line.strip():
                continue
            notices["lines"] += 1
            if not is_whole:
                notices[UNREADABLE_LINES] += 1
                _skip_line(file)
            elif (record := parse_record(line, notices)) is not None:
                yield record


def _skip_line(file: BinaryIO) -> None:
    while (piece := file.readline(MAX_LINE_BYTES)) and not piece.endswith(b"\n"):
        pass


def parse_record(line: bytes, notices: Counter[str]) -> Record | None:
    """Parse one line; None if it holds no object. Invalid UTF-8 and halves of characters, which
    programs write when they cut a text, become replacement characters."""
    try:
        value = orjson.loads(line.removeprefix(BOM_UTF8))
    except ValueError:
        try:
            text = json.dumps(json.loads(line.decode("utf-8", "replace")), ensure_ascii=False)
            value = orjson.loads(text.encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            notices[UNREADABLE_LINES] += 1
            return None
        notices[MENDED_LINES] += 1
    if not isinstance(value, dict):
        notices[OTHER_VALUES] += 1
        return None
    return value


def read_time(value: object) -> float | None:
    """Return unix seconds, from seconds, milliseconds or ISO 8601; None if it is no time. A time
    without a zone is in UTC."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value / 1000 if value >= MIN_MILLISECONDS else float(value)
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def set_times(
    messages: Iterable[Mapping[str, Any]], notices: Counter[str], start: float = 0.0
) -> Iterator[Message]:
    """Yield each message with a `created_at` that never falls. A missing one (None, or none) comes
    30 s after the one before."""
    last: float | None = None
    for message in messages:
        at = message.get("created_at")
        if at is None:
            notices[MISSING_TIMES] += 1
            at = start if last is None else last + SPACING_S
        elif last is not None and at < last:
            notices[RAISED_TIMES] += 1
            at = last
        last = at
        yield {**message, "created_at": at}


def raise_times(messages: list[dict[str, Any]], notices: Counter[str]) -> list[dict[str, Any]]:
    """Set the times of these messages as `set_times` does, in place: calls share the messages."""
    for message, timed in zip(messages, set_times(messages, notices), strict=True):
        message["created_at"] = timed["created_at"]
    return messages
