"""What work holds in memory, for tests that it stays in proportion to what it is given."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any


def peak(work: Callable[[], Any]) -> int:
    """Bytes that were held at once while it ran, beside what was there before."""
    return _traced(work)[1]


def kept(work: Callable[[], Any]) -> int:
    """Bytes that are held when it is over."""
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
