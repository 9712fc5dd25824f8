"""Hold the numbers of one process, find those of a series, and add to them.

The numbers are named rows of doubles, in memory or in a mapped file. A mapped file keeps each
addition when the process is killed: its pages belong to the kernel. The file can be read while it
grows, because a row is complete before `used` counts its bytes:

    magic · used (8 bytes) · spare numbers · rows: length of name (4), numbers (4), name, numbers

A name is UTF-8, padded with zeros to 8 bytes. A number is a double in the machine's byte order.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from om_proxy.observability.figures.metrics import METRICS_BY_NAME, Metric

MAGIC = b"OMFIGS01"
USED_OFFSET = len(MAGIC)
# Rows that find no room share these numbers, which nobody reads: counting never fails a request.
SPARE_OFFSET = 16
SPARE_NUMBERS = 32
ROWS_OFFSET = SPARE_OFFSET + 8 * SPARE_NUMBERS
FIRST_BYTES = 1 << 16
ROW_HEAD = struct.Struct("=II")

# a metric's name, then its labels as names and values in turn
SeriesName = tuple[str, ...]
Sums = dict[SeriesName, tuple[float, ...]]

MAX_CACHED_NAMES = 20_000  # each scrape decodes all names again
ABSENT = math.nan  # a gauge that has no value now


class NumberArray:
    """An array of doubles, in the file of `descriptor` or without one in memory. `numbers` is
    replaced when the array grows, so it must not be kept."""

    __slots__ = ("_bytes", "_descriptor", "_used", "numbers")

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._bytes = memoryview(b"")
        self._bytes = self._resize(FIRST_BYTES)
        self._bytes[:USED_OFFSET] = MAGIC
        self.numbers = self._bytes.cast("d")
        self._set_used(ROWS_OFFSET)

    def add_row(self, name: str, count: int) -> int:
        """Add a row of `count` zeros. Return the index of its first number in `numbers`."""
        encoded = name.encode()
        name_offset = self._used + ROW_HEAD.size
        numbers_offset = _pad(name_offset + len(encoded))
        end = numbers_offset + 8 * count
        if end > len(self._bytes) and not self._grow(end):
            return SPARE_OFFSET // 8
        ROW_HEAD.pack_into(self._bytes, self._used, len(encoded), count)
        self._bytes[name_offset : name_offset + len(encoded)] = encoded
        self._set_used(end)
        return numbers_offset // 8

    def copy(self) -> bytes:
        """Return the bytes of all rows, for `read_rows`."""
        return bytes(self._bytes[: self._used])

    def close(self) -> None:
        """Let the file go. What is counted from now on is not read."""
        self._bytes = memoryview(bytearray(self._bytes))
        self.numbers = self._bytes.cast("d")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _grow(self, end: int) -> bool:
        try:
            grown = self._resize(max(end, 2 * len(self._bytes)))
        except OSError:
            return False
        self.numbers = grown.cast("d")
        self._bytes = grown
        return True

    def _resize(self, size: int) -> memoryview:
        """Return all bytes, `size` of them: the old ones, then zeros. Raise OSError for no room."""
        if self._descriptor is None:
            return memoryview(bytearray(self._bytes) + bytes(size - len(self._bytes)))
        # Reserve the bytes: a write to a page without room on its disk would end the process.
        _reserve_bytes(self._descriptor, size)
        return memoryview(mmap.mmap(self._descriptor, size))

    def _set_used(self, used: int) -> None:
        self._used = used
        # in native form it is one store, which no kill can cut in two
        struct.pack_into("Q", self._bytes, USED_OFFSET, used)


def _reserve_bytes(descriptor: int, size: int) -> None:
    """Let the file have `size` bytes, the new ones zero, all of them with room on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS has no such call; what is written has its room
    while (old_size := os.fstat(descriptor).st_size) < size:
        os.pwrite(descriptor, bytes(size - old_size), old_size)


def read_rows(content: bytes) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the rows of an array, names with numbers. Content that is no array has none."""
    if not content.startswith(MAGIC) or len(content) < ROWS_OFFSET:
        return
    used = min(struct.unpack_from("Q", content, USED_OFFSET)[0], len(content))
    offset = ROWS_OFFSET
    while offset < used:
        length, count = ROW_HEAD.unpack_from(content, offset)
        name_offset = offset + ROW_HEAD.size
        numbers_offset = _pad(name_offset + length)
        name = content[name_offset : name_offset + length].decode()
        yield name, struct.unpack_from(f"={count}d", content, numbers_offset)
        offset = numbers_offset + 8 * count


def _pad(offset: int) -> int:
    return -(-offset // 8) * 8


class Series:
    """The series of this process. `indices` are places in the array's numbers."""

    __slots__ = ("_indices", "array")

    def __init__(self, array: NumberArray) -> None:
        self.array = array
        self._indices: dict[SeriesName, int] = {}

    def find(self, metric: Metric, *values: str, more: Iterable[str] = ()) -> int:
        """Return the index of the first number of the series with these label values. `more`:
        names and values of further labels, in turn."""
        labels = (text for pair in zip(metric.labels, values, strict=True) for text in pair)
        name = (metric.name, *labels, *more)
        index = self._indices.get(name)
        if index is None:
            index = self.array.add_row(msgspec.json.encode(name).decode(), metric.count_of_numbers)
            self._indices[name] = index
        return index

    def add(
        self, metric: Metric, *values: str, amount: float = 1.0, more: Iterable[str] = ()
    ) -> None:
        """Add to the number of a series. Values and `more`: as in `find`."""
        index = self.find(metric, *values, more=more)  # the index first: the array may grow
        self.array.numbers[index] += amount

    def observe(self, metric: Metric, *values: str, number: float) -> None:
        """Count a number in its bucket of a histogram, and add it to the sum."""
        index = self.find(metric, *values)
        numbers = self.array.numbers
        numbers[index + bisect_left(metric.bounds, number)] += 1.0
        numbers[index + len(metric.bounds) + 1] += number

    def set(self, metric: Metric, value: float, *values: str) -> None:
        """Set a gauge."""
        index = self.find(metric, *values)
        self.array.numbers[index] = value


def read_series(content: bytes) -> Iterator[tuple[SeriesName, tuple[float, ...]]]:
    """Yield the series of an array's bytes. Rows of an unknown metric are left out."""
    for name, numbers in read_rows(content):
        series_name = _decode_name(name)
        metric = METRICS_BY_NAME.get(series_name[0])
        if metric is not None and len(numbers) == metric.count_of_numbers:
            yield series_name, numbers


@lru_cache(MAX_CACHED_NAMES)
def _decode_name(name: str) -> SeriesName:
    return tuple(msgspec.json.decode(name, type=list[str]))


def add_up(contents: Iterable[bytes]) -> Sums:
    """Return the sums over several processes. A gauge that is absent everywhere is left out."""
    sums: Sums = {}
    for content in contents:
        for name, numbers in read_series(content):
            if not math.isnan(numbers[0]):
                add_numbers(sums, name, numbers)
    return sums


def add_numbers(sums: Sums, name: SeriesName, numbers: tuple[float, ...]) -> None:
    known = sums.get(name)
    sums[name] = numbers if known is None else tuple(map(float.__add__, known, numbers))


def drop_gauges(sums: Mapping[SeriesName, tuple[float, ...]]) -> Sums:
    """Return the series that stay true when their process has ended."""
    return {
        name: numbers for name, numbers in sums.items() if METRICS_BY_NAME[name[0]].kind != "gauge"
    }
