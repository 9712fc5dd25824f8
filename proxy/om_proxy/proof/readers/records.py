"""What every reader needs: the records of a JSONL file, one at a time, however torn it is; times in
any form; the first bytes of a file, by which its program is found; and SQLite files."""

from __future__ import annotations

import json
import shutil
import sqlite3
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import orjson

from om_proxy.proof.conversation import (
    MISSING_TIMES,
    RAISED_TIMES,
    UNREADABLE_LINES,
    HistoryError,
    Message,
)

Record = dict[str, Any]

MAX_LINE_BYTES = 32 * 1024 * 1024  # a longer line is skipped without being held
HEAD_BYTES = 256 * 1024
MENDED_LINES = "mended lines"
OTHER_VALUES = "skipped: no object"
SQLITE_START = b"SQLite format 3\0"
BUSY_TIMEOUT_S = 1.0
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


def list_blocks(content: object) -> list[Mapping[str, Any]]:
    """Return the blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )


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


# ── SQLite files of other programs, opened for reading while those programs may run ───────────────


def has_tables(head: Head, *names: str) -> bool:
    """Return whether the file is a database with these tables."""
    if not head.start.startswith(SQLITE_START):
        return False
    with open_database(head.path, "a program that this reader knows") as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row["name"] for row in rows}.issuperset(names)


@contextmanager
def open_database(path: Path, made_by: str) -> Iterator[sqlite3.Connection]:
    """Open a file that its program may be writing. Without a write-ahead log nothing is written
    beside it. A busy one is copied with its log. Raise HistoryError for another schema than the
    one that `made_by` names."""
    with TemporaryDirectory(prefix="om-proxy-") as folder, closing(_connect(path, folder)) as found:
        found.row_factory = sqlite3.Row
        try:
            yield found
        except sqlite3.Error as exc:
            raise HistoryError(f"{path} is no database of {made_by}: {exc}") from exc


def _connect(path: Path, folder: str) -> sqlite3.Connection:
    log, shared_memory = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    if not log.exists():
        return _open_uri(path, "immutable=1")
    if shared_memory.exists():  # its program runs: the snapshot of any other reader
        connection = _open_uri(path, "mode=ro")
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT name FROM sqlite_master LIMIT 1")
            return connection
        except sqlite3.OperationalError:
            connection.close()
    copied = Path(folder, path.name)
    for one in (path, log):
        shutil.copyfile(one, copied.with_name(one.name))
    return _open_uri(copied, "mode=rw")


def _open_uri(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{options}", uri=True, timeout=BUSY_TIMEOUT_S
    )
