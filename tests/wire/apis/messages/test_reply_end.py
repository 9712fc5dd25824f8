"""The event that ends the turn: found with its blank line, wherever the stream is cut."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.messages.reply import TurnEndFinder

START = b'event: message_start\ndata: {"type":"message_start","message":{"stop_reason":null}}\n\n'
TEXT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"error message_stop'
    b' \\"stop_reason\\":\\"x\\" \\nevent: error\\n"}}\n\n'
)
PING = b'event: ping\ndata: {"type": "ping"}\n\n: a comment about message_delta\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
DELTA = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":9}}\n\n'
)
EARLY = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":null}}\n\n'
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'


def bare(event: bytes) -> bytes:
    """The event without its `event:` line."""
    return event[event.index(b"data") :]


STREAMS = {
    "usual": (START + PING + TEXT, DELTA, STOP),
    "several": (START + TEXT + EARLY + PING, DELTA, STOP),
    "no reason": (START + TEXT + EARLY, STOP, b""),
    "an error": (START + TEXT, ERROR, b""),
    "an error at once": (b"", ERROR, b""),
    "named by its line alone": (START + TEXT, b"event: message_stop\ndata: {}\n\n", b""),
    "no event lines": (bare(START) + bare(TEXT) + bare(EARLY), bare(DELTA), bare(STOP)),
    "spaces": (START, DELTA.replace(b'":', b'" : ').replace(b"data: {", b"data:{ "), STOP),
    "its own lines": (START, b"id: 7\n" + DELTA, STOP),
}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("name", STREAMS)
def test_the_end_is_found_wherever_it_is_cut(name: str, line_end: bytes) -> None:
    """Nothing of the event's blank line passes, and its offset is that of its first named line."""
    before, end, behind = (part.replace(b"\n", line_end) for part in STREAMS[name])
    named = len(before) + max(end.find(b"event"), end.find(b"data") if b"event" not in end else 0)
    blank = len(before) + len(end) - len(line_end)  # where the blank line begins
    stream = before + end + behind
    for size in (1, 2, 3, 7, 50, len(stream)):
        finder = TurnEndFinder()
        for at in range(0, len(stream), size):
            offset = finder.feed(stream[at : at + size])
            if offset is not None:
                assert offset == max(0, named - at)
                assert at <= blank < at + size
                break
        else:
            pytest.fail("the end was not found")


@pytest.mark.parametrize("name", STREAMS)
def test_the_end_is_found_line_by_line(name: str) -> None:
    """Each line comes alone, as some servers send them."""
    before, end, behind = STREAMS[name]
    finder = TurnEndFinder()
    lines = (before + end + behind).splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if finder.feed(line) is not None]
    assert found[0] == len((before + end).splitlines()) - 1


@pytest.mark.parametrize("cut", range(1, len(DELTA)))
def test_a_stream_that_breaks_off_has_no_end(cut: int) -> None:
    assert TurnEndFinder().feed(START + TEXT + DELTA[:-cut]) is None
