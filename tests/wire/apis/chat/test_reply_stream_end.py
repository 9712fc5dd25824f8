"""Where the end of a chat completion's stream begins."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.chat.reply import DoneFinder

DONES = [
    pytest.param([b"data: x\n\ndata: [DONE]\n\n"], (0, 9), id="whole"),
    pytest.param([b"data: [DONE]\n\n"], (0, 0), id="first-line"),
    pytest.param([b"data:[DONE]\n\n"], (0, 0), id="no-space"),
    pytest.param([b"data: x\n\n", b"data: [DONE]\n\n"], (1, 0), id="own-chunk"),
    pytest.param([b"data: x\n\ndata: [D", b"ONE]\n\n"], (1, 0), id="cut-in-it"),
    pytest.param([b"data: x\n", b"\nda", b"ta: [DONE", b"]", b"\n\n"], (3, 0), id="cut-in-many"),
    pytest.param([b"data: x\r\n\r\ndata: [DONE]\r\n\r\n"], (0, 11), id="crlf"),
    pytest.param([b'data: {"c":"data: [DONE]"}\n\n', b"data: x\n\n"], None, id="in-a-text"),
    pytest.param(
        [b'data: {"c":"data: [DONE]"}\n\ndata: [DONE]\n\n'], (0, 28), id="in-a-text-and-after"
    ),
    pytest.param([b": data: [DONE]\n\n"], None, id="comment"),
    pytest.param([b"data: [DONE"], None, id="unfinished"),
    pytest.param([b"x" * 100, b"\ndata: [DONE]"], (1, 1), id="after-long-text"),
    pytest.param([b"data: [DONE]\n\ndata: [DONE]\n\n"], (0, 0), id="two"),
]


@pytest.mark.parametrize(("chunks", "expected"), DONES)
def test_where_the_end_begins(chunks: list[bytes], expected: tuple[int, int] | None) -> None:
    """The end is found in the chunk that completes `[DONE]`, at the beginning of its line."""
    finder = DoneFinder()
    found = [
        (number, at)
        for number, chunk in enumerate(chunks)
        if (at := finder.feed(chunk)) is not None
    ]
    assert found[:1] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "stream", [b"data: x\n\ndata: [DONE]\n\n", b"data: [DONE]", b"data:[DONE]\r\r"]
)
def test_end_byte_by_byte(stream: bytes) -> None:
    """However the end is cut, it is found with the bracket that closes it."""
    finder = DoneFinder()
    found = [
        number
        for number in range(len(stream))
        if finder.feed(stream[number : number + 1]) is not None
    ]
    assert found == [stream.index(b"]")]
