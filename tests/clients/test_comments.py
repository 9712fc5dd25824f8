"""The judge of comments on the wire finds each way in which they can be wrong."""

from __future__ import annotations

import json

import pytest

from tests.clients.comments import (
    LEAST_LONG_BYTES,
    find_comment_blocks,
    judge_comments,
    read_comments,
)

STATUS = b': om {"type":"data-om-status","data":{}}\n\n'
EVENT = b'data: {"choices":[]}\n\n'
END = b"data: [DONE]\n\n"
JSON_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}"


def write_comment(observations: str | None) -> bytes:
    part = {"type": "data-om-activation", "data": {"observations": observations}}
    return b": om " + json.dumps(part).encode() + b"\n\n"


def write_stream(*pieces: bytes) -> bytes:
    """Write a reply in chunks that are cut in the middle of its lines."""
    body, chunks = b"".join(pieces), b""
    for start in range(0, len(body), 7_001):
        piece = body[start : start + 7_001]
        chunks += b"%x\r\n%s\r\n" % (len(piece), piece)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx: y\r\n\r\n"
    return head + chunks + b"0\r\n\r\n"


LONG = write_comment("x; data: [DONE] " * (LEAST_LONG_BYTES // 16))


def test_what_holds() -> None:
    """Two streams of one connection, a reply without comments between them."""
    first, second = write_stream(STATUS, EVENT, END), write_stream(STATUS, LONG, EVENT, END)
    heard = first + JSON_REPLY + write_stream(EVENT, END) + second
    assert find_comment_blocks(heard) == [STATUS, STATUS + LONG]
    assert "3 comments before 2 streams" in judge_comments([heard], 2, "inline,text")
    quiet = write_stream(STATUS, write_comment(None), EVENT, END)
    assert "2 comments before 1 streams" in judge_comments([quiet], 1, "inline")


@pytest.mark.parametrize(
    ("heard", "events", "why"),
    [
        pytest.param(write_stream(EVENT, END), "inline", "each streamed turn", id="no comment"),
        pytest.param(
            write_stream(STATUS, EVENT, STATUS, END), "inline", "behind the first", id="too late"
        ),
        pytest.param(write_stream(STATUS, EVENT, END), "inline", "tells what", id="status only"),
        pytest.param(
            write_stream(STATUS, LONG, EVENT, END), "inline", "asked for", id="texts unasked"
        ),
        pytest.param(
            write_stream(STATUS, write_comment(None), EVENT, END),
            "inline,text",
            "asked for",
            id="texts missing",
        ),
        pytest.param(
            write_stream(STATUS, write_comment("short"), EVENT, END),
            "inline,text",
            "16 KiB",
            id="short texts",
        ),
    ],
)
def test_what_does_not_hold(heard: bytes, events: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        judge_comments([heard], 1, events)


def test_a_comment_is_one_line() -> None:
    with pytest.raises(AssertionError):
        read_comments(b': om {"type":\n"x"}\n\n')
