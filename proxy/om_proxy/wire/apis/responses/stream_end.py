"""Find the beginning and the end of a streamed response, without parsing the stream.

An event is known by its `event:` line, else by `type` as the first member of its data. Clients act on
an event when its blank line comes, so the end is found with that line.
"""

from __future__ import annotations

import re

from om_proxy.wire.apis.sse import BOM, cut_events

END_TYPES = (b"response.completed", b"response.incomplete", b"response.failed", b"error")
# They say that a response begins, and nothing of it.
OPENING_TYPES = (b"response.created", b"response.queued", b"response.in_progress")
# of the beginning of a line that names a type: white space between its members is no model server's
MAX_NAMING_BYTES = 128

_NAMING = rb"(?:event: ?(%s)(?=[\r\n])|data: ?\{\s{0,8}\"type\"\s{0,8}:\s{0,8}\"(%s)\")"
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))[\r\n]")


def _compile(types: tuple[bytes, ...], before: bytes) -> re.Pattern[bytes]:
    words = b"|".join(map(re.escape, types))
    return re.compile(before + _NAMING % (words, words))


_END = _compile(END_TYPES, rb"[\r\n]")
_OPENING = _compile(OPENING_TYPES, rb"(?:\A|[\r\n])")


class EventEndFinder:
    """A search for the blank line of the event that ends a response."""

    def __init__(self) -> None:
        self._before = b"\n"  # of the stream so far, what may be a part of what is searched
        self._is_last = False  # whether the event has begun that ends the response

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the last event begins; 0: it began in an earlier
        chunk. None: its end is not in this chunk."""
        window = self._before + chunk
        began = 0
        if not self._is_last:
            named = self._find_name(window)
            if named is None:
                self._before = _cut_open_line(window)
                return None
            self._is_last = True
            began = named - len(self._before)
            window = window[named:]
        if _BLANK_LINE.search(window):
            return max(began, 0)
        self._before = window[-2:]  # a line's end, which may be two bytes long
        return None

    @staticmethod
    def _find_name(window: bytes) -> int | None:
        """Return where the line begins that names the type of an event that ends the response."""
        for word in END_TYPES:  # a quarter of the search below
            if word in window:
                break
        else:
            return None
        found = _END.search(window)
        return found.start() + 1 if found else None


def _cut_open_line(window: bytes) -> bytes:
    """Return the line that has not ended, with the end of the line before it; of a line that is too
    long to name a type, one byte of it."""
    if window.endswith(b"\n"):
        return b"\n"
    start = max(window.rfind(b"\n"), window.rfind(b"\r"))
    is_short = start >= 0 and len(window) - start <= MAX_NAMING_BYTES
    return window[start:] if is_short else window[-1:]


def find_first_word(data: bytes) -> int | None:
    """Return where the first event begins in these bytes, from the beginning of a stream, that says
    more than that a response begins. None: all that is there are such events, and comments."""
    position = 0
    for event in cut_events(data):
        if not _is_opening(event.removeprefix(BOM)):
            return position
        position += len(event)
    return None


def _is_opening(event: bytes) -> bool:
    if not _BLANK_LINE.search(event):
        return True  # it has not ended
    return bool(_OPENING.search(event)) or not re.search(rb"(?:\A|[\r\n])data", event)
