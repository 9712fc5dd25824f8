"""Every record of a torn file is read or counted, and every time is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from om_proxy.proof.readers import records
from om_proxy.proof.readers.records import read_records, read_time, set_times


def read(folder: Path, data: bytes) -> tuple[list[object], dict[str, int]]:
    path, notices = folder / "history.jsonl", Counter[str]()
    path.write_bytes(data)
    return list(read_records(path, notices)), dict(notices)


@pytest.mark.parametrize(
    ("line", "found", "notice"),
    [
        (b'{"a":"caf\xff"}', [{"a": "caf\ufffd"}], "mended lines"),
        (b'{"a":"cut \\ud83d"}', [{"a": "cut ?"}], "mended lines"),
        (b'{"a":', [], "unreadable lines"),
        (b"[" * 100_000, [], "unreadable lines"),
        (b"[1]", [], "skipped: no object"),
    ],
)
def test_a_broken_line_is_mended_or_counted(
    tmp_path: Path, line: bytes, found: list[object], notice: str
) -> None:
    got, notices = read(tmp_path, b'{"n":1}\n' + line + b'\n\n{"n":2}')
    assert got == [{"n": 1}, *found, {"n": 2}]
    assert notices == {"lines": 3, notice: 1}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    got, notices = read(tmp_path, b'\xef\xbb\xbf{"n":1}\r\n{"n":2}\r\n')
    assert got == [{"n": 1}, {"n": 2}]
    assert notices == {"lines": 2}


def test_a_line_that_is_too_long_is_skipped_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 16)
    got, notices = read(tmp_path, b'{"n":1}\n{"a":"' + b"x" * 100 + b'"}\n{"n":2}\n')
    assert got == [{"n": 1}, {"n": 2}]
    assert notices == {"lines": 3, "unreadable lines": 1}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1767348000, 1767348000.0),
        (1767348000500, 1767348000.5),
        ("2026-01-02T10:00:00Z", 1767348000.0),
        ("2026-01-02T12:00:00+02:00", 1767348000.0),
        ("2026-01-02T10:00:00", 1767348000.0),
        ("soon", None),
        (None, None),
        (True, None),
    ],
)
def test_a_time_is_read_in_any_form(value: object, seconds: float | None) -> None:
    assert read_time(value) == seconds


def test_times_never_fall_and_none_is_missing() -> None:
    notices: Counter[str] = Counter()
    given = [{"created_at": at} for at in (None, 100.0, 90.0, None)]
    assert [m["created_at"] for m in set_times(given, notices)] == [0.0, 100.0, 100.0, 130.0]
    assert notices == {"times missing": 2, "times raised": 1}
