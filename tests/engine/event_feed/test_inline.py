"""Comments before a stream: who gets them, how long they are, and what they may hold."""

from __future__ import annotations

import json

import pytest

from om_proxy.engine.event_feed.inline import (
    MAX_INLINE_BYTES,
    parse_inline_choice,
    write_comments,
)
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import StoredEvent
from om_proxy.wire.apis.sse import EventDecoder

HOSTILE = "a\r\n\r\ndata: {}\n\n: b\u2028\x85\ud800\0" * 3


def make(text: str) -> StoredEvent:
    data = json.dumps({"observations": text, "cycleId": "c"})
    return StoredEvent(7, Key("t", "r", "n"), 1.5, "data-om-activation", data)


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, None),
        (b"", None),
        (b"inline", False),
        (b"Inline", False),
        (b"inline,text", True),
        (b"text, inline", True),
        (b"text", None),
        (b"inline,other", None),
        (b"sidecar", None),
    ],
)
def test_the_header(value: bytes | None, choice: bool | None) -> None:
    """Anything but the two choices is ignored."""
    assert parse_inline_choice(value) is choice


@pytest.mark.parametrize("with_text", [True, False])
def test_a_reader_of_events_sees_none(with_text: bool) -> None:
    """No text of a conversation gets out of its comment."""
    comments = write_comments('{"type":"s"}', (make(HOSTILE),), with_text=with_text)
    decoder = EventDecoder()
    assert next(iter(decoder.feed(comments + b"data: x\n\n"))).data == b"x"
    assert comments.isascii()
    lines = comments.decode().splitlines()
    assert [line for line in lines if line] == lines[::2]
    status, event = [json.loads(line.removeprefix(": om ")) for line in lines[::2]]
    assert status == {"type": "s"}
    assert event["data"]["observations"] == (HOSTILE if with_text else None)


def test_long_texts_are_left_out() -> None:
    """16 KiB at most: first without texts, then fewer events; the status stays."""
    long = write_comments('{"type":"s"}', (make("x" * MAX_INLINE_BYTES),), with_text=True)
    assert b'"observations":null' in long
    many = write_comments('{"type":"s"}', (make("x"),) * 1_000, with_text=True)
    assert MAX_INLINE_BYTES - 200 < len(many) <= MAX_INLINE_BYTES
    assert many.startswith(b': om {"type":"s"}\n\n')
    assert many.endswith(b"\n\n")
