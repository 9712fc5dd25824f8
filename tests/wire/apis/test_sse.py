# ruff: noqa: E501 - a case of a table is one line
"""Events from bytes, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.sse import (
    Event,
    EventCutter,
    EventDecoder,
    cut_events,
    read_event_data,
    replace_event_data,
)

M = b"message"

STREAMS = [
    pytest.param(b"data: a\n\ndata: b\n\n", [Event(M, b"a"), Event(M, b"b")], id="lf"),
    pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [Event(M, b"a"), Event(M, b"b")], id="crlf"),
    pytest.param(b"data: a\r\rdata: b\r\r", [Event(M, b"a"), Event(M, b"b")], id="cr"),
    pytest.param(b"data: a\r\n\ndata: b\r\r\n", [Event(M, b"a"), Event(M, b"b")], id="mixed-line-ends"),
    pytest.param(b"data: a\ndata: b\n\n", [Event(M, b"a\nb")], id="data-of-two-lines"),
    pytest.param(b"data\ndata\n\n", [Event(M, b"\n")], id="data-without-colon"),
    pytest.param(b"data:a\n\ndata:  a\n\n", [Event(M, b"a"), Event(M, b" a")], id="one-space-is-taken-off"),
    pytest.param(b": hello\n\n:\n\ndata: a\n:x\n\n", [Event(M, b"a")], id="comments"),
    pytest.param(b"event: ping\n\n", [], id="no-data-no-event"),
    pytest.param(b"event: ping\n\ndata: a\n\n", [Event(M, b"a")], id="type-does-not-outlive-its-event"),
    pytest.param(b"event: error\ndata: {}\n\n", [Event(b"error", b"{}")], id="named-event"),
    pytest.param(b"id: 7\nretry: 100\nfoo: bar\ndata: a\n\n", [Event(M, b"a")], id="other-fields"),
    pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Event(M, b"a")], id="byte-order-mark"),
    pytest.param(b"data: \xf0\x9f\x98\x80\xe2\x80\xa8\xc2\x85\x0b\x0c\x1c\n\n", [Event(M, "😀\u2028\x85\x0b\x0c\x1c".encode())], id="no-line-ends"),
    pytest.param(b"data: a\n\ndata: unfinished", [Event(M, b"a")], id="cut-in-a-line"),
    pytest.param(b"data: a\n", [], id="cut-before-the-blank-line"),
    pytest.param(b"", [], id="nothing"),
    pytest.param(b"\n\r\n\r", [], id="blank-lines"),
]  # fmt: skip


def decoded(*pieces: bytes) -> list[Event]:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_rules(stream: bytes, events: list[Event]) -> None:
    """The standard's rules, in one piece and byte by byte."""
    assert decoded(stream) == events
    assert decoded(*(stream[at : at + 1] for at in range(len(stream)))) == events
    assert (
        decoded(*(part for at in range(len(stream)) for part in (stream[at : at + 1], b"")))
        == events
    )


@given(
    st.lists(
        st.sampled_from(
            [b"data: a", b"data: b\xf0\x9f\x98\x80", b":c", b"event: e", b"\n", b"\r", b"\r\n"]
        )
    ),
    st.data(),
)
def test_cuts_do_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    """Wherever a stream is cut, the same events come out."""
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoded(*pieces) == decoded(stream)


@given(st.lists(st.sampled_from([b"data: a", b":c", b"\n", b"\r", b"\r\n", b"\n\n"])), st.data())
def test_events_are_held_until_they_end(parts: list[bytes], data: st.DataObject) -> None:
    """No byte is lost, each piece ends with an event, and its events are those of the stream."""
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter = EventCutter()
    pieces = [
        cutter.feed(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    rest = cutter.take_rest()
    assert b"".join(pieces) + rest == stream
    assert all(piece.endswith((b"\n", b"\r")) for piece in pieces if piece)
    found = [read_event_data(event) for event in cut_events(b"".join(pieces))]
    assert [each for each in found if each is not None] == [
        event.data for event in decoded(b"".join(pieces) + b"\n\n")
    ]


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (b"data: a\n\n", b"data: x\n\n"),
        (
            b"event: e\r\ndata:a\r\ndata: b\r\nid: 1\r\n\r\n",
            b"event: e\r\ndata: x\r\nid: 1\r\n\r\n",
        ),
        (b"data: a", b"data: x\n\n"),
    ],
)
def test_other_data_in_an_event(event: bytes, changed: bytes) -> None:
    assert replace_event_data(event, b"x") == changed


@given(st.binary())
def test_any_bytes(stream: bytes) -> None:
    """No bytes are an error."""
    decoded(stream)


def test_a_line_of_ten_megabytes_takes_linear_time() -> None:
    """A long line is joined once: in 16 KiB pieces it is read as fast as in one."""
    pieces = [b"data: ", *[b"x" * 16_384] * 640, b"\n\n"]
    assert len(decoded(*pieces)[0].data) == 16_384 * 640
