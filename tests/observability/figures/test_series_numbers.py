"""Rows of numbers, in memory or in a file that others read while it grows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.observability.figures.metrics import METRICS
from om_proxy.observability.figures.series import (
    FIRST_BYTES,
    SPARE_NUMBERS,
    NumberArray,
    read_rows,
)


def open_array(file: Path) -> NumberArray:
    return NumberArray(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


@given(rows=st.lists(st.tuples(st.text(max_size=40).filter(str.isprintable), st.integers(1, 20))))
def test_rows_are_read_as_they_were_added(rows: list[tuple[str, int]]) -> None:
    array = NumberArray()
    for number, (name, count) in enumerate(rows):
        index = array.add_row(name, count)
        array.numbers[index + count - 1] += number + 0.5
    assert list(read_rows(array.copy())) == [
        (name, (*[0.0] * (count - 1), number + 0.5)) for number, (name, count) in enumerate(rows)
    ]


@pytest.mark.parametrize("kind", ["in memory", "in a file", "in a file on macOS"])
def test_numbers_stay_while_the_array_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "in a file on macOS":
        monkeypatch.delattr(os, "posix_fallocate")
    array = NumberArray() if kind == "in memory" else open_array(tmp_path / "a")
    first = array.add_row("first", 1)
    array.numbers[first] = 7.0
    rows = FIRST_BYTES // 8
    for number in range(rows):
        index = array.add_row(str(number), 1)  # first: the array may grow
        array.numbers[index] += 1.0
    array.numbers[first] += 1.0
    content = (tmp_path / "a").read_bytes() if kind != "in memory" else array.copy()
    assert len(content) > 2 * FIRST_BYTES
    found = dict(read_rows(content))
    assert found == {"first": (8.0,), **{str(number): (1.0,) for number in range(rows)}}


def test_a_disk_without_room_fails_no_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row without room shares numbers that nobody reads. Rows that are there go on."""
    array = open_array(tmp_path / "a")
    kept = array.add_row("kept", 1)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    lost = [array.add_row(str(number), SPARE_NUMBERS) for number in range(1_000)][-1]
    for offset in range(SPARE_NUMBERS):
        array.numbers[lost + offset] += 1.0
    array.numbers[kept] += 1.0
    found = dict(read_rows((tmp_path / "a").read_bytes()))
    assert found["kept"] == (1.0,)
    assert "999" not in found
    assert not any(any(numbers) for name, numbers in found.items() if name != "kept")


def test_every_series_fits_into_the_spare_numbers() -> None:
    assert max(metric.count_of_numbers for metric in METRICS) <= SPARE_NUMBERS


def test_a_closed_array_takes_additions_that_nobody_reads(tmp_path: Path) -> None:
    """Work that ends late must not fail for it."""
    array = open_array(tmp_path / "a")
    index = array.add_row("row", 1)
    array.numbers[index] += 1.0
    array.close()
    array.numbers[index] += 1.0
    assert dict(read_rows((tmp_path / "a").read_bytes())) == {"row": (1.0,)}


def test_a_closed_array_grows_in_memory(tmp_path: Path) -> None:
    """Another file may have its descriptor by then."""
    descriptor = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT, 0o600)
    array = NumberArray(descriptor)
    array.close()
    with (tmp_path / "b").open("w+b") as other:
        assert other.fileno() == descriptor
        array.add_row("a" * FIRST_BYTES, 1)
    assert (tmp_path / "b").stat().st_size == 0


@pytest.mark.parametrize("content", [b"", b"OMFIGS01", b"x" * 4_096])
def test_other_content_has_no_rows(content: bytes) -> None:
    assert list(read_rows(content)) == []
