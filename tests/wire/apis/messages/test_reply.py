"""Replies of the Messages API: the same unit, streamed or in one piece."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.messages.reply import MessagesReplyReader, read_usage

THOUGHT = {"type": "thinking", "thinking": "hm, so", "signature": "SIG"}
HIDDEN = {"type": "redacted_thinking", "data": "D"}
CITATION = {"type": "char_location", "cited_text": "x"}
TEXT = {"type": "text", "text": "It rains.", "citations": [CITATION, CITATION]}
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Paris"}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "T"}]}
BLOCKS = [THOUGHT, HIDDEN, SEARCH, FOUND, TEXT, CALL]
USAGE = {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
END_USAGE = {"output_tokens": 9}


def write_event(kind: str, **members: Any) -> bytes:
    data = orjson.dumps({"type": kind, **members})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def write_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The block as it starts, and what follows."""
    match block["type"]:
        case "thinking":
            start = block | {"thinking": "", "signature": ""}
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in ("hm,", " so")]
            return start, [*pieces, {"type": "signature_delta", "signature": "SIG"}]
        case "text":
            cited = [{"type": "citations_delta", "citation": CITATION}] * 2
            pieces = [{"type": "text_delta", "text": piece} for piece in ("It ", "rains.")]
            return {"type": "text", "text": ""}, [cited[0], *pieces, cited[1]]
        case "tool_use" | "server_tool_use":
            text = orjson.dumps(block["input"]).decode()
            pieces = ["", text[:5], text[5:]]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            return block | {"input": {}}, deltas
        case _:
            return block, []


def write_block(index: int, block: dict[str, Any]) -> bytes:
    start, deltas = write_deltas(block)
    return b"".join(
        (
            write_event("content_block_start", index=index, content_block=start),
            *(write_event("content_block_delta", index=index, delta=delta) for delta in deltas),
            write_event("content_block_stop", index=index),
        )
    )


START = write_event("message_start", message={"role": "assistant", "content": [], "usage": USAGE})
BODY = b"".join(write_block(index, block) for index, block in enumerate(BLOCKS))
END = write_event("message_delta", delta={"stop_reason": "tool_use"}, usage=END_USAGE)
STOP = write_event("message_stop")
PING = write_event("ping")
WHOLE = orjson.dumps(
    {
        "type": "message",
        "role": "assistant",
        "content": BLOCKS,
        "stop_reason": "tool_use",
        "usage": {**USAGE, **END_USAGE},
    }
)
COUNTED = Usage(10, 3, 2, 9)


def read(data: bytes, size: int | None = None, *, stream: bool = True) -> Reply:
    reader = MessagesReplyReader(stream)
    size = size or len(data) or 1
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.finish()


def content(reply: Reply) -> Any:
    return None if reply.message is None else orjson.loads(reply.message)["content"]


@pytest.mark.parametrize("size", [1, 7, 100, None])
def test_a_stream_is_the_message_that_comes_in_one_piece(size: int | None) -> None:
    streamed = read(START + PING + BODY + END + STOP, size)
    assert content(streamed) == BLOCKS
    assert streamed.complete
    assert (streamed.finish_reason, streamed.usage) == ("tool_use", COUNTED)
    whole = read(WHOLE, size, stream=False)
    assert content(whole) == BLOCKS
    assert (whole.complete, whole.finish_reason, whole.usage) == (True, "tool_use", COUNTED)
    assert read(WHOLE, size) == whole  # JSON where a stream was asked for


def test_a_message_in_one_piece_keeps_its_bytes() -> None:
    body = b'{"content": [ {"type":"text","x":1E2} ], "stop_reason": null}'
    message = read(body, stream=False).message
    assert message == b'{"role":"assistant","content":[ {"type":"text","x":1E2} ]}'


@pytest.mark.parametrize("reason", ["end_turn", "pause_turn", "refusal", "max_tokens", "new_word"])
def test_any_stop_reason_completes_it(reason: str) -> None:
    end = write_event("message_delta", delta={"stop_reason": reason})
    reply = read(START + write_block(0, TEXT) + end)
    assert (reply.complete, reply.finish_reason, content(reply)) == (True, reason, [TEXT])


def test_the_stop_alone_completes_it() -> None:
    assert read(START + write_block(0, TEXT) + STOP).complete


def test_an_empty_reply_is_a_message() -> None:
    assert content(read(START + END)) == []


def test_a_stream_that_breaks_off_leaves_its_whole_blocks() -> None:
    open_block = write_block(1, TEXT).rpartition(b"event: content_block_stop")[0]
    reply = read(START + write_block(0, THOUGHT) + open_block)
    assert (reply.complete, content(reply)) == (False, [THOUGHT])
    assert content(read(START + open_block)) is None


def test_a_block_whose_json_is_cut_off_is_not_kept() -> None:
    cut = write_block(1, CALL).replace(b"Paris", b"Par").replace(b'\\"}', b"")
    assert content(read(START + write_block(0, TEXT) + cut + END)) == [TEXT]


def test_an_error_ends_it() -> None:
    error = write_event("error", error={"type": "overloaded_error", "message": "busy"})
    reply = read(START + write_block(0, TEXT) + error + END)
    assert (reply.error, reply.complete, content(reply)) == (True, False, [TEXT])
    whole = read(b'{"type":"error","error":{"type":"api_error"}}', stream=False)
    assert (whole.error, whole.complete, whole.message) == (True, False, None)


def test_what_is_behind_the_end_belongs_to_no_reply() -> None:
    assert content(read(START + write_block(0, TEXT) + END + STOP + write_block(1, TEXT))) == [TEXT]


def test_unknown_events_and_blocks_are_passed_over() -> None:
    new = {"type": "new_kind", "x": [1, {"y": 2}]}
    odd = b"".join(
        (
            write_event("new_event", index="x", delta=7),
            write_event("content_block_delta", index=9, delta={"type": "text_delta", "text": "x"}),
            write_event("content_block_delta", index=0, delta={"type": "new_delta", "text": "x"}),
            write_event("content_block_start", index=0, content_block=3),
            b"data: {\n\ndata: [1]\n\ndata: \xff\n\n",
        )
    )
    stream = START + write_block(0, TEXT) + odd + write_block(1, new) + END
    assert content(read(stream)) == [TEXT, new]


@pytest.mark.parametrize("odd", [5, "x", {"y": 1}, None, [CITATION]])
def test_odd_members_of_a_block_make_no_reply_unreadable(odd: Any) -> None:
    block = {"type": "text", "text": odd, "citations": odd}
    start = write_event("content_block_start", index=0, content_block=block)
    delta = {"type": "citations_delta", "citation": CITATION}
    more = write_event("content_block_delta", index=0, delta=delta)
    found = content(read(START + start + more + END))[0]["citations"]
    assert found == ([*odd, CITATION] if isinstance(odd, list) else [CITATION])


def test_an_error_behind_the_stop_reason_is_of_another_reply() -> None:
    assert read(START + write_block(0, TEXT) + END + write_event("error")).complete


def test_events_without_their_names_are_known_by_their_type() -> None:
    stream = START + BODY + END + STOP
    lines = [line for line in stream.split(b"\n") if not line.startswith(b"event:")]
    assert content(read(b"\n".join(lines))) == BLOCKS


def test_half_a_character_is_replaced() -> None:
    delta = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'
    start = write_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    assert content(read(START + start + delta + END)) == [{"type": "text", "text": "\ufffd"}]


@pytest.mark.parametrize(
    "event",
    [
        write_event("content_block_start", index=0, content_block={"x": [[]] * 1_000_001}),
        b"".join(
            write_event("content_block_start", index=n, content_block={"type": "x"})
            for n in range(10_001)
        ),
        START
        + write_event("content_block_start", index=0, content_block={"type": "text"})
        + b"".join(
            [
                write_event(
                    "content_block_delta",
                    index=0,
                    delta={"type": "citations_delta", "citation": {"x": [0] * 10_001}},
                )
            ]
            * 100
        ),
    ],
)
def test_a_reply_larger_than_any_models_is_not_kept(event: bytes) -> None:
    reply = read(START + event + END)
    assert (reply.message, reply.complete) == (None, False)


def test_arguments_larger_than_any_models_are_not_kept() -> None:
    text = '{"x":[' + "0," * 3_000_000 + "0]}"
    start = write_event("content_block_start", index=0, content_block=CALL | {"input": {}})
    pieces = b"".join(
        write_event(
            "content_block_delta",
            index=0,
            delta={"type": "input_json_delta", "partial_json": text[at : at + 100_000]},
        )
        for at in range(0, len(text), 100_000)
    )
    assert content(read(START + start + pieces + END)) == []


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, None),
        ({}, None),
        ({"input_tokens": 0, "output_tokens": 0}, None),
        ({"input_tokens": "5", "output_tokens": 2}, Usage(0, 0, 0, 2)),
        (
            {"input_tokens": -1, "cache_read_input_tokens": 4, "output_tokens": True},
            Usage(4, 4, 0, 0),
        ),
        ({**USAGE, "output_tokens": 10**12}, Usage(10, 3, 2, 0)),
    ],
)
def test_usage(reported: Any, usage: Usage | None) -> None:
    assert read_usage(reported) == usage


def test_the_last_told_count_is_taken() -> None:
    later = write_event(
        "message_delta",
        delta={"stop_reason": "end_turn"},
        usage={"input_tokens": 50, "output_tokens": 1, "cache_read_input_tokens": None},
    )
    assert read(START + later).usage == Usage(55, 3, 2, 1)
