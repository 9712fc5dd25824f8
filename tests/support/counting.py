"""What work costs, for tests that it grows in proportion to what it is given."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TIMES = 8  # the longer of two, of the shorter


def steps(work: Callable[[], Any]) -> int:
    """Lines of Python run by it: the same number on every machine and at every hour."""
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


def seconds(work: Callable[[], Any]) -> float:
    """Of this thread's own processor time, the best of five."""

    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(once() for _ in range(5))
