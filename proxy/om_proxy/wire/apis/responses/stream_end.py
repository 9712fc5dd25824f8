"""Find the beginning and the end of a streamed response, without parsing the stream."""

from __future__ import annotations

import re

from om_proxy.wire.apis.sse import BOM, cut_events
from om_proxy.wire.apis.stream_end import BLANK_LINE, EventEndFinder, compile_naming

END_TYPES = (b"response.completed", b"response.incomplete", b"response.failed", b"error")
# They say that a response begins, and nothing of it.
OPENING_TYPES = (b"response.created", b"response.queued", b"response.in_progress")

_OPENING = compile_naming(OPENING_TYPES, rb"(?:\A|[\r\n])")


class ResponseEndFinder(EventEndFinder):
    """A search for the blank line of the event that ends a response."""

    _start = compile_naming(END_TYPES)
    _hints = END_TYPES


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
    if not BLANK_LINE.search(event):
        return True  # it has not ended
    return bool(_OPENING.search(event)) or not re.search(rb"(?:\A|[\r\n])data", event)
