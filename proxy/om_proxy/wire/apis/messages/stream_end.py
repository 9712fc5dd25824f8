"""Find the event that ends the turn of a streamed reply, without parsing the stream.

It is the first `message_delta` with a stop reason, else `message_stop` or `error`. An event is known
by its `event:` line, else by `type` as the first member of its data. Clients act on it when its blank
line comes, so it is found with that line.
"""

from __future__ import annotations

import re

# of a line's beginning, or of a member, that may be in earlier chunks
MAX_UNFINISHED_BYTES = 64

_TYPES = rb"message_delta|message_stop|error"
_START = re.compile(
    rb"(?<=[\r\n])(?:event: ?(?:%s)(?=[\r\n])|data: ?\{\s*\"type\"\s*:\s*\"(?:%s)\")"
    % (_TYPES, _TYPES)
)
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]")
# a quote inside a JSON string is written \", so the name is a member's
_STOP_OR_END = re.compile(rb'("stop_reason"\s*:\s*")|' + _BLANK_LINE.pattern)


class TurnEndFinder:
    """A search for the blank line of the event that ends the turn."""

    def __init__(self) -> None:
        self._before = b"\n"
        self._wanted: re.Pattern[bytes] = _START  # what the next bytes are searched for

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the last event begins; 0: it began in an earlier
        chunk. None: its end is not in this chunk."""
        window = self._before + chunk
        start = position = 0
        while found := self._search(window, position):
            position = found.end()
            if self._wanted is _BLANK_LINE:
                return max(0, start - len(self._before))
            if self._wanted is _START:
                start = found.start()
                self._wanted = _STOP_OR_END if b"message_delta" in found[0] else _BLANK_LINE
            elif found[1]:
                self._wanted = _BLANK_LINE
            else:  # a `message_delta` without a stop reason has ended
                self._wanted, position = _START, position - 1
        self._before = window[max(position, len(window) - MAX_UNFINISHED_BYTES) :]
        return None

    def _search(self, window: bytes, position: int) -> re.Match[bytes] | None:
        """Search the bytes. Most chunks hold none of the words that may begin the last event."""
        if self._wanted is _START and not (
            window.find(b"message_", position) >= 0 or window.find(b"error", position) >= 0
        ):
            return None
        return self._wanted.search(window, position)
