"""Measure what work costs, for tests that it grows in proportion to its input."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TIMES = 8  # the longer of two inputs holds so many times the shorter one


def count_lines_run(work: Callable[[], Any]) -> int:
    """Count the lines of Python that the work runs: the same number on every machine."""
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def measure_cpu_s(work: Callable[[], Any]) -> float:
    """Measure this thread's own processor time, the best of five."""

    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(once() for _ in range(5))
