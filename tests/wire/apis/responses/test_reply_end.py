"""Where a streamed response begins to say something, and where it ends."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.responses.reply import ResponseEndFinder, find_first_word

BEGINNING = (
    b'event: response.created\ndata: {"type":"response.created"}\n\n'
    b": ping\n\n"
    b'data: {"type":"response.output_text.delta","delta":"the error event: response.completed"}\n\n'
)
NAMED = b'event: response.completed\ndata: {"response":{"output":[]}}\n\n'
ENDS = [
    NAMED,
    b"event:response.incomplete\ndata: {}\n\n",
    b'event: error\ndata: {"type":"error"}\n\n',
    b'data: {"type":"response.failed","response":{}}\n\n',
    b'data:{ "type" : "response.completed" }\n\n',
]


def find(stream: bytes, size: int) -> tuple[int | None, int]:
    """Return the offset of the last bytes in their chunk, and of this chunk."""
    finder = ResponseEndFinder()
    for at in range(0, len(stream), size):
        offset = finder.feed(stream[at : at + size])
        if offset is not None:
            return offset, at
    return None, 0


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("end", ENDS)
def test_the_end_is_found_with_its_blank_line(end: bytes, line_end: bytes) -> None:
    """However the stream is cut; the bytes before are no end."""
    beginning, end = (part.replace(b"\n", line_end) for part in (BEGINNING, end))
    stream = beginning + end
    for size in range(1, 60):
        offset, at = find(stream + b": more\n\n", size)
        assert offset is not None
        blank_at = len(stream) - len(line_end)
        assert at <= blank_at < at + size + 1
        assert at + offset <= blank_at
        if at <= len(beginning):
            assert at + offset == len(beginning)
        else:
            assert offset == 0
        assert find(stream[:blank_at], size) == (None, 0)


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        BEGINNING,
        b'data: {"type":"response.completed.more"}\n\n',
        b"event: response.completed_not\ndata: {}\n\n",
        b"event: errors\ndata: {}\n\n",
        b"data: event: response.completed\n\n",
        b'data: {"x":"\\n","delta":"data: {\\"type\\":\\"error\\"}"}\n\n',
        b"x" * 999 + b"event: error" + b"x" * 999 + b"\n\n",
    ],
)
def test_no_end(stream: bytes) -> None:
    for size in (1, 2, 7, 130, len(stream) or 1):
        assert find(stream, size) == (None, 0)


def test_an_end_behind_a_long_line() -> None:
    long = b'data: {"type":"response.output_text.delta","delta":"' + b"x" * 999 + b'"}\n\n'
    for size in (1, 50, 333, 4_096):
        offset, at = find(long + NAMED, size)
        assert offset is not None
        assert at + offset >= len(long)


WORD = b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n'
OPENING = b"".join(
    b'event: response.%s\ndata: {"type":"response.%s"}\n\n' % (word, word)
    for word in (b"created", b"queued", b"in_progress")
)


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b"", None),
        (OPENING, None),
        (OPENING + WORD, len(OPENING)),
        (OPENING + WORD[:-1], None),
        (b": ping\n\n" + OPENING + b": ping\n\n", None),
        (b"\xef\xbb\xbf" + OPENING + WORD, 3 + len(OPENING)),
        (b'data: {"type":"response.created"}\r\n\r\ndata: {"type":"error"}\r\n\r\n', 37),
        (NAMED, 0),
        (b"data: [DONE]\n\n", 0),
    ],
)
def test_opening_events_say_nothing_of_the_response(data: bytes, at: int | None) -> None:
    assert find_first_word(data) == at
