"""Server-sent events: bytes in, events out, by the rules of the WHATWG's HTML standard (9.2.5, 9.2.6).

Lines end in LF, CR or CRLF; none of these bytes occurs inside a multi-byte character, so lines are cut before decoding and
split characters need no care. Nothing here is decoded at all: an event's data stays bytes for the JSON parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

DONE = b"[DONE]"  # the data with which a chat completion's stream ends
BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """A dispatched event. `type` is `message` unless the stream said otherwise."""

    type: bytes
    data: bytes


class EventDecoder:
    """Feed it bytes cut anywhere; it gives each event once its closing blank line has begun."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the unfinished line: joined once, however long it grows
        self._after_cr = False  # the last byte was a CR: an LF now belongs to it
        self._first = True  # still before the end of the first line, where a byte order mark may stand
        self._type = b""
        self._data = bytearray()  # each line of it with an LF: a list would take five times the memory of short ones

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events these bytes complete. An event still open when the stream ends is, by the standard, none."""
        if b"\r" in data:
            yield from self._feed(data)
            return
        blocks = data.split(b"\n\n")
        for block in blocks[:-1]:
            if block.startswith(b"data:") and b"\n" not in block and self._at_rest():  # as model servers write them
                yield Event(b"message", block[5:].removeprefix(b" "))
            else:
                yield from self._feed(block + b"\n\n")
        yield from self._feed(blocks[-1])

    def _at_rest(self) -> bool:
        """Whether what comes next begins an event."""
        return not (self._line or self._data or self._type or self._after_cr or self._first)

    def _feed(self, data: bytes) -> Iterator[Event]:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        for line in data.splitlines(keepends=True):  # on bytes these are exactly LF, CR and CRLF
            self._after_cr = line.endswith(b"\r")
            if line.endswith((b"\n", b"\r")):
                self._line.append(line.rstrip(b"\r\n"))
                yield from self._take(self._whole_line())
            else:
                self._line.append(line)

    def _whole_line(self) -> bytes:
        line = b"".join(self._line) if len(self._line) > 1 else self._line[0]
        self._line.clear()
        if self._first:
            self._first = False
            return line.removeprefix(BOM)
        return line

    def _take(self, line: bytes) -> Iterator[Event]:
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


class DoneFinder:
    """Tells where a stream's `data: [DONE]` begins, without parsing the stream.

    Its price is one search a chunk: a model's stream has thousands of them and one end.
    """

    _REACH = len(b"\ndata: [DONE")  # bytes of an unfinished `[DONE]` line that may lie in earlier chunks

    def __init__(self) -> None:
        self._before = b"\n"

    def feed(self, chunk: bytes) -> int | None:
        """Where in this chunk the line starts that says `[DONE]`; 0 if it began in an earlier one. None: it is not here.

        Answers when the line's `]` is here: the bytes before it, in earlier chunks, end no stream.
        """
        window = self._before + chunk
        at = self._search(window)
        found = None if at is None else max(0, at - len(self._before))
        self._before = b"" if found is not None else window[-self._REACH :]
        return found

    @staticmethod
    def _search(window: bytes) -> int | None:
        at = window.find(DONE)
        while at >= 0:
            for opening in (b"data: ", b"data:"):
                start = at - len(opening)
                if start > 0 and window.startswith(opening, start) and window[start - 1] in b"\r\n":
                    return start
            at = window.find(DONE, at + 1)
        return None
