"""Measure the memory that work holds, for tests that it stays in proportion to its input."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any


def measure_peak_bytes(work: Callable[[], Any]) -> int:
    """The most bytes that the work held at once, beside what was there before."""
    return _traced(work)[1]


def measure_kept_bytes(work: Callable[[], Any]) -> int:
    """The bytes that are still held when the work is over."""
    return _traced(work)[0]


def _traced(work: Callable[[], Any]) -> tuple[int, int]:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
