"""Find the numbers of a series, and add to them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from om_proxy.observability.figures.metrics import METRICS_BY_NAME, Metric
from om_proxy.observability.figures.number_array import NumberArray, read_rows

# a metric's name, then its labels as names and values in turn
SeriesName = tuple[str, ...]
Sums = dict[SeriesName, tuple[float, ...]]

MAX_CACHED_NAMES = 20_000  # each scrape decodes all names again
ABSENT = math.nan  # a gauge that has no value now


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

    def add(self, index: int, amount: float = 1.0) -> None:
        self.array.numbers[index] += amount

    def observe(self, index: int, bounds: tuple[float, ...], value: float) -> None:
        """Count a value in its bucket of a histogram, and add it to the sum."""
        numbers = self.array.numbers
        numbers[index + bisect_left(bounds, value)] += 1.0
        numbers[index + len(bounds) + 1] += value

    def set(self, metric: Metric, value: float, *values: str) -> None:
        """Set a gauge."""
        # the index first: the array may grow
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
