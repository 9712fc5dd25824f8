"""The log of a run: each call of a model, as it was asked and answered, in files that only grow.

A record is a line of JSON in a gzip member of its own, so a run that is killed in the middle of a
write loses that record alone.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from om_proxy.common.errors import UsageError

FILE_PATTERN = "calls-*.jsonl.gz"
MAX_FILE_BYTES = 32 << 20  # a new file begins then


class CallKey(NamedTuple):
    """What a call is known by. `occurrence`: of equal calls of the step and case, from 1."""

    step: str
    case: str
    occurrence: int
    body_sha256: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One answered call. `dollars` is None if the model's price is not known."""

    key: CallKey
    model: str
    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    dollars: float | None
    attempts: int

    @property
    def text(self) -> str:
        return find_text(self.answer)

    @property
    def input_tokens(self) -> int:
        return int((self.answer.get("usage") or {}).get("prompt_tokens") or 0)

    @property
    def output_tokens(self) -> int:
        return int((self.answer.get("usage") or {}).get("completion_tokens") or 0)


class CallLog:
    """The records of a folder. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        paths = sorted(folder.glob(FILE_PATTERN))
        if paths:
            cut_torn_end(paths[-1])
        self._number = max(1, len(paths))

    def append(self, record: CallRecord) -> None:
        """Write the record, and return once it survives a power cut."""
        path = self._folder / f"calls-{self._number:04}.jsonl.gz"
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            self._number += 1
            path = self._folder / f"calls-{self._number:04}.jsonl.gz"
        line = orjson.dumps(
            {
                **record.key._asdict(),
                "model": record.model,
                "request": record.request,
                "answer": record.answer,
                "dollars": record.dollars,
                "attempts": record.attempts,
            }
        )
        with path.open("ab") as file:
            file.write(gzip.compress(line + b"\n", mtime=0))
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[CallRecord]:
        return read_records(self._folder)


def read_records(folder: Path) -> Iterator[CallRecord]:
    """Yield all records in the order in which they were written.

    Raises UsageError, with file and line, for a line that is no record."""
    for path in sorted(folder.glob(FILE_PATTERN)):
        try:
            with gzip.open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    yield _read_record(line, path, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise UsageError(
                f"{path.name} is damaged ({exc}): `om-proxy eval resume` goes on behind its last"
                " whole call"
            ) from exc


def hash_body(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a request's body, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def find_text(answer: Mapping[str, Any]) -> str:
    """Return the text of a chat completion; empty if it has none."""
    choices = answer.get("choices") or [{}]
    return str((choices[0].get("message") or {}).get("content") or "")


def cut_torn_end(path: Path) -> None:
    """Remove what a killed run has written of its last record."""
    data, whole = path.read_bytes(), 0
    while whole < len(data):
        member = zlib.decompressobj(wbits=31)
        try:
            member.decompress(data[whole:])
        except zlib.error:
            break
        if not member.eof:
            break
        whole = len(data) - len(member.unused_data)
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _read_record(line: bytes, path: Path, number: int) -> CallRecord:
    try:
        row = orjson.loads(line)
        key = CallKey(row["step"], row["case"], row["occurrence"], row["body_sha256"])
        return CallRecord(
            key, row["model"], row["request"], row["answer"], row["dollars"], row["attempts"]
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{path.name}, line {number}, is no record of a call: {exc}") from exc
