"""Compile a regular expression when it is first used. Some take 10 ms, and many servers never need
them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def compile_late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, compiled when one of its methods is first called."""
    return cast(re.Pattern[AnyStr], _LatePattern(pattern, flags))


class _LatePattern:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._arguments = pattern, flags

    def __getattr__(self, name: str) -> Any:
        pattern, flags = self._arguments
        value = getattr(re.compile(pattern, flags), name)
        setattr(self, name, value)  # found there from now on: no call comes here again
        return value
