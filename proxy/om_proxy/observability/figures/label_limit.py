"""Limit how many values a label has, over all processes of one server.

Without a limit, clients that name many models would make the page grow without bound.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":  # there, one process serves and counts in its own memory
    import fcntl

FURTHER_VALUES_LABEL = "other"  # the value that stands for all further ones


class LabelLimit:
    """The values that a label may have. The processes of one server share them in `file`, one a
    line; without a file they are this process's own."""

    __slots__ = ("_file", "_limit", "_values")

    def __init__(self, limit: int, file: Path | None = None) -> None:
        self._limit = limit
        self._file = file
        self._values: set[str] = set()

    def admit(self, value: str) -> bool | None:
        """Return whether the label may have this value; None if that is not known now: ask again.
        It has no line break. Once admitted, a value stays."""
        if value in self._values:
            return True
        if len(self._values) >= self._limit:
            return False
        if self._file is None:
            self._values.add(value)
            return True
        try:
            self._admit_for_all(value, self._file)
        except OSError:  # another process writes now, or the folder is gone
            return None
        return value in self._values

    def _admit_for_all(self, value: str, file: Path) -> None:
        """Read what others were admitted, then add the value if there is room. It never waits: a
        stopped process may hold the lock."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            # a line without an end was cut off by a kill
            lines = content.decode(errors="replace").split("\n")
            self._values.update(lines[:-1])
            if value not in self._values and len(self._values) < self._limit:
                line_end = "\n" if lines[-1] else ""
                os.write(descriptor, f"{line_end}{value}\n".encode())
                self._values.add(value)
        finally:
            os.close(descriptor)
