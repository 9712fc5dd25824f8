"""What holds of every API with memory: whatever its words, it keeps the promises of the seam."""

from __future__ import annotations

from typing import NamedTuple

import orjson
import pytest

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import Api, Reply, Unreadable
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.registry import CHAT, cut_beginning, read_beginning
from om_proxy.wire.apis.responses.responses_api import RESPONSES

KEY = b"k" * 32


class Sample(NamedTuple):
    """One API, and bytes in its words."""

    api: Api
    body: bytes
    stream: bytes  # a streamed reply, up to the end of the bytes that end it
    end: bytes  # those bytes


CHAT_SAMPLE = Sample(
    CHAT,
    b'{"model": "m", "messages": [{"role":"system","content":"be kind"},'
    b'{"role": "user", "content":"caf\xc3\xa9", "x":[1, 2.50]}], "stream": true, "seed": 1E2}',
    b'data: {"choices":[{"index":0,"delta":{"content":"yes"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]",
    b"data: [DONE]",
)
MESSAGES_END = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
)
MESSAGES_SAMPLE = Sample(
    MESSAGES,
    b'{"model": "m", "system": "be kind", "messages": ['
    b'{"role": "user", "content":"caf\xc3\xa9", "x":[1, 2.50]}], "stream": true, "seed": 1E2}',
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":"yes"}}\n\n' + MESSAGES_END,
    MESSAGES_END,
)
RESPONSES_END = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"output":[]}}\n\n'
)
RESPONSES_SAMPLE = Sample(
    RESPONSES,
    b'{"model": "m", "input": [{"role":"system","content":"be kind"},'
    b'{"role": "user", "content":"caf\xc3\xa9", "x":[1, 2.50]}], "stream": true, "seed": 1E2}',
    b'event: response.output_item.done\ndata: {"type":"response.output_item.done","output_index":0,'
    b'"item":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]}}'
    b"\n\n" + RESPONSES_END,
    RESPONSES_END,
)
SAMPLES = [
    pytest.param(CHAT_SAMPLE, id="chat"),
    pytest.param(MESSAGES_SAMPLE, id="messages"),
    pytest.param(RESPONSES_SAMPLE, id="responses"),
]


def tail_of(messages: tuple[bytes, ...]) -> list[Piece]:
    return [Piece(raw, "user", (), None, None, 0, 0) for raw in messages]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_request_names_its_api(sample: Sample) -> None:
    """Whoever holds a request reaches its API by it."""
    request = sample.api.parse_request(sample.body)
    assert request.api is sample.api
    assert repr(request) == f"<Request {sample.api.name} m 1+1 messages>"


@pytest.mark.parametrize("sample", SAMPLES)
def test_nothing_added_changes_no_value(sample: Sample) -> None:
    """A body written again with the client's own messages says what the client's said."""
    request = sample.api.parse_request(sample.body)
    body = sample.api.rewrite_body(request, "", "", tail_of((*request.messages,)), "blocks")
    assert orjson.loads(body) == orjson.loads(sample.body)
    assert b'"content":"caf\xc3\xa9", "x":[1, 2.50]}' in body


@pytest.mark.parametrize("layout", ["blocks", "merged"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_texts_of_memory_are_added(sample: Sample, layout: Layout) -> None:
    """Both texts stand in the body, which its own parser reads."""
    request = sample.api.parse_request(sample.body)
    tail = tail_of((*request.messages,))
    body = sample.api.rewrite_body(request, "the block", "the hint", tail, layout)
    assert b"the block" in body
    assert b"the hint" in body
    assert sample.api.parse_request(body).model == "m"


SAYS, DEVELOPER, HINT = (
    b'{"role":"user", "content":"q"}',
    b'{"role":"developer","content":"B"}',
    b'{"role":"user","content":"H"}',
)
KIND = b'"be kind"'
BOTH = rb'"B\n\nH"'
KIND_AND_BOTH = rb'"be kind\n\nB\n\nH"'
BOTH_BLOCK = rb'{"type":"text","text":"B\n\nH"}'


def write_body(name: bytes, first: bytes, listed: bytes, last: bytes = b"") -> bytes:
    """Write a body with members that no prompt changes, as odd as JSON allows."""
    return (
        b'{%b "tools":[ {"name":"n","input_schema":{"x":1E2}} ],\t"metadata" : {"a":"\\u00e9"}, '
        b'"%b": [%b] , "include":[ "x" ],"store": false,  "x":1.50 %b}\n'
    ) % (first, name, listed, last)


@pytest.mark.parametrize(
    ("api", "layout", "sent", "first", "listed", "last"),
    [
        (MESSAGES, "blocks", b"", b"", SAYS, b',"system":[%b]' % BOTH_BLOCK),
        (MESSAGES, "merged", b"", b"", SAYS, b',"system":%b' % BOTH),
        (
            MESSAGES,
            "blocks",
            b'"system":%b,' % KIND,
            b'"system":[{"type":"text","text":%b},%b],' % (KIND, BOTH_BLOCK),
            SAYS,
            b"",
        ),
        (MESSAGES, "merged", b'"system":%b,' % KIND, b'"system":%b,' % KIND_AND_BOTH, SAYS, b""),
        (RESPONSES, "blocks", b"", b"", b"%b,%b,%b" % (DEVELOPER, HINT, SAYS), b""),
        (RESPONSES, "merged", b"", b"", SAYS, b',"instructions":%b' % BOTH),
        (
            RESPONSES,
            "blocks",
            b'"instructions":%b,' % KIND,
            b'"instructions":%b,' % KIND,
            b"%b,%b,%b" % (DEVELOPER, HINT, SAYS),
            b"",
        ),
        (
            RESPONSES,
            "merged",
            b'"instructions":%b,' % KIND,
            b'"instructions":%b,' % KIND_AND_BOTH,
            SAYS,
            b"",
        ),
    ],
)
def test_all_other_bytes_stay(
    api: Api, layout: Layout, sent: bytes, first: bytes, listed: bytes, last: bytes
) -> None:
    """A prompt with memory's texts differs in the list and the instructions alone."""
    name = b"messages" if api is MESSAGES else b"input"
    request = api.parse_request(write_body(name, sent, b" %b " % SAYS))
    written = api.rewrite_body(request, "B", "H", tail_of((SAYS,)), layout)
    assert written == write_body(name, first, listed, last)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_request_without_content_holds_no_bytes(sample: Sample) -> None:
    """What stays is what the log says of it."""
    request = sample.api.parse_request(sample.body).without_content()
    assert (request.model, request.stream) == ("m", True)
    assert (request.body, request.frame, request.readable) == (b"", b"", b"")
    assert (request.instructions, request.messages) == ((), ())


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_reply_is_an_item_however_it_is_cut(sample: Sample) -> None:
    """Its message reads as one of the assistant's, by this API."""
    replies: list[Reply] = []
    for size in (1, 7, len(sample.stream)):
        reader = sample.api.create_reply_reader(True)
        for at in range(0, len(sample.stream), size):
            reader.feed(sample.stream[at : at + size])
        replies.append(reader.finish())
    assert replies[0].complete
    assert replies[0] == replies[1] == replies[2]
    item = sample.api.read_item(replies[0].message or b"", KEY)
    assert (item.role, item.api) == ("assistant", sample.api.name)


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_end_is_found_in_one_piece(sample: Sample) -> None:
    """The offset is that of the first of the last bytes."""
    at = sample.api.create_end_finder().feed(sample.stream)
    assert at == len(sample.stream) - len(sample.end)


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_beginning_of_instructions_is_read(sample: Sample) -> None:
    """As far as its bytes go."""
    cut = cut_beginning(sample.api.parse_request(sample.body).instructions)
    assert [read_beginning(raw) for raw in cut] == ["be kind"]


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"\xff"])
def test_no_message(sample: Sample, raw: bytes) -> None:
    """What is no message raises nothing but Unreadable."""
    with pytest.raises(Unreadable):
        sample.api.read_item(raw, KEY)
    assert sample.api.asking_text(raw) == ""
