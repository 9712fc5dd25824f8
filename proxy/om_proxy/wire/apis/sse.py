"""Decode server-sent events by the rules of the WHATWG's HTML standard (9.2.5, 9.2.6).

Lines end in LF, CR or CRLF. None of these bytes occurs inside a multi-byte character, so a character
that is cut between two chunks needs no care. An event's data stays bytes for the JSON parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """A dispatched event. `type` is `message` unless the stream said otherwise."""

    type: bytes
    data: bytes


# the form in which they write events with a name
_NAMED_EVENT = re.compile(rb"event: ([^\n]+)\ndata: ([^\n]*)")


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
        *blocks, rest = data.split(b"\n\n")
        is_between_events = self._is_between_events()
        for block in blocks:
            # the form in which most model servers write events
            if block.startswith(b"data:") and b"\n" not in block and is_between_events:
                yield Event(b"message", block[5:].removeprefix(b" "))
            elif is_between_events and (named := _NAMED_EVENT.fullmatch(block)):
                yield Event(named[1], named[2])
            else:
                yield from self._feed_lines(block + b"\n\n")
                is_between_events = True
        yield from self._feed_lines(rest)

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


# A CR at the end of the bytes may be half of a CRLF.
_LINE_END = rb"(?:\r\n|\n|\r(?=[^\n]))"
_EVENT_END = re.compile(_LINE_END + _LINE_END)


class EventCutter:
    """Holds back the beginning of an event until its end has come; what is complete stays as it
    came."""

    # of an event's end that may be in earlier chunks
    _MAX_UNFINISHED_BYTES = len(b"\r\n\r")

    def __init__(self) -> None:
        # pieces of the unfinished event; they are joined once, however long it grows
        self._pieces: list[bytes] = []
        self._before = b""
        self.is_event_open = False  # whether the beginning of an event is held

    def feed(self, data: bytes) -> bytes:
        """Return the bytes up to the end of the last complete event."""
        window = self._before + data
        end = _find_last_end(window) - len(self._before)
        self._before = window[-self._MAX_UNFINISHED_BYTES :]
        if end < 0 or not (end or self._pieces):
            self._pieces.append(data)
            self.is_event_open = True
            return b""
        complete = b"".join((*self._pieces, data[:end]))
        self.is_event_open = end < len(data)
        self._pieces = [data[end:]] if self.is_event_open else []
        self._before = data[end:][-self._MAX_UNFINISHED_BYTES :]
        return complete

    def take_rest(self) -> bytes:
        """Return the event that has not ended, and forget it."""
        rest, self._pieces, self._before = b"".join(self._pieces), [], b""
        self.is_event_open = False
        return rest


def _find_last_end(data: bytes) -> int:
    """Return where the last event in the data ends; -1: none ends in it."""
    if b"\r" not in data:
        end = data.rfind(b"\n\n")
        return end + 2 if end >= 0 else -1
    ends = [match.end() for match in _EVENT_END.finditer(data)]
    return ends[-1] if ends else -1


def cut_events(data: bytes) -> Iterator[bytes]:
    """Yield each event as it came, its blank line included."""
    start = 0
    for match in _EVENT_END.finditer(data):
        yield data[start : match.end()]
        start = match.end()
    if start < len(data):
        yield data[start:]


def read_event_data(event: bytes) -> bytes | None:
    """Return the data of an event that `cut_events` gave; None for a comment."""
    for decoded in EventDecoder().feed(event + b"\n\n"):
        return decoded.data
    return None


def replace_event_data(event: bytes, data: bytes) -> bytes:
    """Return the event with other data, which has no line ends. Its other lines stay."""
    lines: list[bytes] = []
    has_data = False
    for line in event.splitlines(keepends=True):
        if not line.removeprefix(BOM).startswith(b"data"):
            lines.append(line)
        elif not has_data:
            has_data = True
            lines.append(b"data: " + data + (line[len(line.rstrip(b"\r\n")) :] or b"\n\n"))
    return b"".join(lines)


# ── the end of a streamed reply, found without parsing the stream ─────────────────────────────────
#
# An event is known by its `event:` line, else by `type` as the first member of its data. Clients act
# on it when its blank line comes, so it is found with that line.

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
