"""A response is read from its bytes, streamed or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.json_text import COUNT_VALUES_ABOVE_BYTES
from om_proxy.wire.apis.responses.reply import ResponseReader
from tests.wire.apis.responses.samples import Item, called, reasoned, said, write_unit

ITEMS = [reasoned(encrypted_content="E"), said("yes", "assistant"), called("c")]
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    "output_tokens": 7,
    "total_tokens": 107,
}
READ_USAGE = Usage(100, 60, 10, 7)


def write(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(kind: str, is_named: bool = True, **members: Any) -> bytes:
    line = f"event: {kind}\n".encode() if is_named else b""
    return line + b"data: " + write({"type": kind, **members}) + b"\n\n"


def done(index: int | None, item: Item, is_named: bool = True) -> bytes:
    return event("response.output_item.done", is_named, output_index=index, item=item)


def end(kind: str = "completed", is_named: bool = True, **members: Any) -> bytes:
    response = {"status": kind, "output": [], "usage": USAGE, **members}
    return event(f"response.{kind}", is_named, response=response)


def read(data: bytes, stream: bool = True, size: int | None = None) -> Reply:
    reader = ResponseReader(stream)
    size = size or len(data) or 1
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.finish()


CREATED = event("response.created", response={"status": "in_progress", "output": []})
ADDED = event("response.output_item.added", output_index=0, item=said("", "assistant"))
DELTA = event("response.output_text.delta", output_index=1, delta="yes")
WHOLE = [done(index, item) for index, item in enumerate(ITEMS)]
UNIT = write_unit(*ITEMS)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("kind", ["completed", "incomplete"])
def test_a_stream(kind: str, is_named: bool) -> None:
    """By its items that are done, in the order of their indices, however it is cut."""
    items = [done(index, item, is_named) for index, item in enumerate(ITEMS)]
    data = b"".join(
        (CREATED, ADDED, items[1], DELTA, items[0], b": ping\n\n", items[2], end(kind, is_named))
    )
    expected = Reply(UNIT, complete=True, finish_reason=kind, usage=READ_USAGE)
    for size in (1, 7, None):
        assert read(data, size=size) == expected
    assert read(data.replace(b"\n", b"\r\n"), size=3) == expected


def test_without_items_the_last_event_counts() -> None:
    assert read(CREATED + end(output=ITEMS)).message == UNIT
    assert read(CREATED + WHOLE[1] + end(output=ITEMS)).message == write_unit(ITEMS[1])


def test_items_without_an_index_are_in_order() -> None:
    assert read(b"".join(done(None, item) for item in ITEMS) + end()).message == UNIT


def test_a_broken_stream_leaves_its_whole_items() -> None:
    cut = b"".join((CREATED, *WHOLE[:2], WHOLE[2][:-9]))
    assert read(cut) == Reply(write_unit(*ITEMS[:2]))
    assert read(CREATED + ADDED + DELTA) == Reply()


@pytest.mark.parametrize(
    "failure",
    [end("failed", error={"code": "x"}), event("error", code="x"), event("error", False, code="x")],
)
def test_failures(failure: bytes) -> None:
    reply = read(CREATED + WHOLE[0] + failure + end())
    assert (reply.error, reply.complete, reply.message) == (True, False, write_unit(ITEMS[0]))


def test_nothing_behind_the_end_counts() -> None:
    assert (
        read(end(output=ITEMS) + done(0, said("more", "assistant")) + event("error")).message
        == UNIT
    )


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"status": "completed"}, Reply(UNIT, True, "completed", READ_USAGE)),
        ({"status": "incomplete", "usage": None}, Reply(UNIT, True, "incomplete")),
        (
            {"status": "completed", "error": None, "output": []},
            Reply(None, True, "completed", READ_USAGE),
        ),
        (
            {"status": "failed", "output": [], "usage": None},
            Reply(None, False, "failed", error=True),
        ),
        ({"status": "in_progress", "output": [], "usage": None}, Reply(None, False, "in_progress")),
        ({"status": "completed", "output": 7, "usage": 7}, Reply(None, True, "completed")),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_one_piece(members: Item, expected: Reply, stream: bool) -> None:
    body = write({"output": ITEMS, "usage": USAGE, **members})
    assert read(body, stream) == expected
    assert read(b"\n " + body, stream, size=1) == expected


def test_an_error_in_one_piece() -> None:
    assert read(b'{"error":{"message":"no"}}') == Reply(error=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"output":"x","status":7}',
        b"data: 7\n\n",
        b"event: response.completed\ndata: [[\n\n",
    ],
)
def test_odd_bytes_raise_nothing(data: bytes) -> None:
    for stream in (True, False):
        assert not read(data, stream).message


def test_half_characters_are_mended() -> None:
    data = done(0, said("X", "assistant")).replace(b"X", b"\\ud83d") + end()
    assert read(data).message == write_unit(said("X", "assistant")).replace(b"X", b"\\ufffd")


def test_a_reply_is_bounded() -> None:
    values = b"[" + b"{}," * COUNT_VALUES_ABOVE_BYTES + b"{}]"
    assert read(b'{"status":"completed","output":' + values + b"}") == Reply()
    assert (
        read(
            b'event: response.completed\ndata: {"type":"response.completed","x":'
            + values
            + b"}\n\n"
        )
        == Reply()
    )
    assert read(done(None, {}) * 10_001 + end()) == Reply()
    reader = ResponseReader(True, max_bytes=10)
    reader.feed(end())
    assert reader.finish() == Reply()
