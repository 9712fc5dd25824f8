"""Decode server-sent events by the rules of the WHATWG's HTML standard (9.2.5, 9.2.6).

Lines end in LF, CR or CRLF. None of these bytes occurs inside a multi-byte character, so a character
that is cut between two chunks needs no care. An event's data stays bytes for the JSON parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """A dispatched event. `type` is `message` unless the stream said otherwise."""

    type: bytes
    data: bytes


class EventDecoder:
    """A decoder for bytes that are cut anywhere. An event is complete when its closing blank line
    has begun."""

    def __init__(self) -> None:
        # pieces of the unfinished line; they are joined once, however long it grows
        self._line: list[bytes] = []
        self._after_cr = False  # whether the last byte was a CR: an LF now belongs to it
        # the first line may begin with a byte order mark
        self._is_first_line = True
        self._type = b""
        # the data lines, each with an LF; a list of short lines would take five times the memory
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete. By the standard, an event that is still open
        at the end of the stream is dropped."""
        if b"\r" in data:
            yield from self._feed_lines(data)
            return
        blocks = data.split(b"\n\n")
        for block in blocks[:-1]:
            # the form in which model servers write events
            if block.startswith(b"data:") and b"\n" not in block and self._is_between_events():
                yield Event(b"message", block[5:].removeprefix(b" "))
            else:
                yield from self._feed_lines(block + b"\n\n")
        yield from self._feed_lines(blocks[-1])

    def _is_between_events(self) -> bool:
        """Return whether the next byte begins an event."""
        return not (self._line or self._data or self._type or self._after_cr or self._is_first_line)

    def _feed_lines(self, data: bytes) -> Iterator[Event]:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        for line in data.splitlines(keepends=True):  # on bytes these are exactly LF, CR and CRLF
            self._after_cr = line.endswith(b"\r")
            if line.endswith((b"\n", b"\r")):
                self._line.append(line.rstrip(b"\r\n"))
                yield from self._take_line(self._end_line())
            else:
                self._line.append(line)

    def _end_line(self) -> bytes:
        line = b"".join(self._line) if len(self._line) > 1 else self._line[0]
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            return line.removeprefix(BOM)
        return line

    def _take_line(self, line: bytes) -> Iterator[Event]:
        if not line:
            yield from self._dispatch()
            return
        name, _, value = line.partition(b":")  # a comment is a line with an empty name
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._type = value

    def _dispatch(self) -> Iterator[Event]:
        if self._data:
            yield Event(self._type or b"message", bytes(self._data[:-1]))
            self._data = bytearray()
        self._type = b""
