"""Find the event that ends a streamed reply, without parsing the stream.

An event is known by its `event:` line, else by `type` as the first member of its data. Clients act on
it when its blank line comes, so it is found with that line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

# of a line's beginning, or of a member, that may be in earlier chunks
MAX_UNFINISHED_BYTES = 64
LINE_END = b"\n"
BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]")


def compile_naming(types: Sequence[bytes], before: bytes = rb"(?<=[\r\n])") -> re.Pattern[bytes]:
    """Compile the search for a line that names one of these types."""
    words = b"|".join(map(re.escape, types))
    naming = rb"(?:event: ?(?:%s)(?=[\r\n])|data: ?\{\s*\"type\"\s*:\s*\"(?:%s)\")"
    return re.compile(before + naming % (words, words))


class EventEndFinder:
    """A search for the blank line of the event that ends a reply. An API says which event that is."""

    _start: ClassVar[re.Pattern[bytes]]  # a line that names its type
    _hints: ClassVar[Sequence[bytes]]  # most chunks have none of these words, and then no such line
    # a type that ends a reply only with some member, if there is one; the search for that member, or
    # for a blank line
    _doubted: ClassVar[bytes] = b"none"
    _doubt: ClassVar[re.Pattern[bytes]] = BLANK_LINE

    def __init__(self) -> None:
        self._before = LINE_END
        self._wanted = self._start  # what the next bytes are searched for

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the last event begins; 0: it began in an earlier
        chunk. None: its end is not in this chunk."""
        is_between = self._before == LINE_END and self._wanted is self._start
        if is_between and chunk.endswith(LINE_END):
            for word in self._hints:
                if word in chunk:
                    break
            else:
                return None  # whole lines without an end, as nearly all chunks are
        window = self._before + chunk
        start = position = 0
        while found := self._wanted.search(window, position):
            position = found.end()
            if self._wanted is BLANK_LINE:
                return max(0, start - len(self._before))
            if self._wanted is self._start:
                start = found.start()
                self._wanted = self._doubt if self._doubted in found[0] else BLANK_LINE
            elif found[1]:
                self._wanted = BLANK_LINE
            else:  # a doubted event has ended without the member
                self._wanted, position = self._start, position - 1
        self._before = window[max(position, len(window) - MAX_UNFINISHED_BYTES) :]
        if self._wanted is self._start and self._before.endswith(LINE_END):
            self._before = LINE_END
        return None
