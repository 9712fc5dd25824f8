"""Tests that take long and find what shorter ones find seldom."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

# OM_TEST_LONG=all scripts/test runs them too
IS_LONG = os.environ.get("OM_TEST_LONG") == "all"
long_form = pytest.mark.skipif(not IS_LONG, reason="a long form: OM_TEST_LONG=all runs it")


def list_beyond_samples(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Of tests marked `sample(count)`, yield the cases beyond so many, evenly spread."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        marker = group[0].get_closest_marker("sample")
        assert marker is not None  # see above
        [count] = marker.args
        kept = {number * len(group) // count for number in range(count)}
        yield from (item for number, item in enumerate(group) if number not in kept)
