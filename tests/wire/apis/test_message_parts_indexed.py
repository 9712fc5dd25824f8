"""What is indexed of messages as clients send them."""

from __future__ import annotations

import orjson
import pytest

from om_proxy.memory.model import EMPTY_CHAIN, Item, Message
from om_proxy.memory.recall.passages import MessageText
from om_proxy.wire.apis.message_parts import read_indexed_text


def read(raw: bytes, role: str) -> MessageText:
    text = read_indexed_text(Message(3, Item(raw, role, bytes(16)), EMPTY_CHAIN, 1, 5.0))
    assert (text.seq, text.role, text.at) == (3, role, 5.0)
    return text


def read_json(**message: object) -> MessageText:
    return read(orjson.dumps(message), str(message["role"]))


def test_speech_has_its_speaker() -> None:
    text = read_json(role="user", name="Ada", content="hello")
    assert (text.speaker, text.spoken, text.called, text.result) == ("Ada", ("hello",), (), ())


def test_parts_give_texts_and_names() -> None:
    """Of an image or file its name; of reasoning nothing; of data nothing."""
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"filename": "plan.pdf", "file_data": "data:x;base64,BBBB"}},
        {"type": "thinking", "text": "secretly"},
        {"type": "refusal", "refusal": "I cannot"},
    ]
    spoken = read_json(role="assistant", content=content).spoken
    assert [text for text in spoken if text] == ["look", "plan.pdf", "I cannot"]


def test_calls_give_names_and_the_texts_of_arguments() -> None:
    arguments = {"query": "quorum", "filters": {"tags": ["zeta", 5, None], "deep": [["end"]]}}
    calls = [
        {"id": "a", "function": {"name": "search", "arguments": orjson.dumps(arguments).decode()}},
        {"id": "b", "function": {"name": "run", "arguments": "no JSON"}},
        {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "+ line"}},
    ]
    text = read_json(role="assistant", content=None, tool_calls=calls)
    assert text.called == (
        *("search", "quorum", "zeta", "end"),
        *("run", "no JSON"),
        *("patch", "+ line"),
    )


def test_a_result_is_a_result() -> None:
    text = read_json(role="tool", tool_call_id="a", content="42 rows")
    assert (text.spoken, text.result) == ((), ("42 rows",))


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b'{"role":"user","content":"\\ud800"}', b'{"content":{"a":1}}']
)
def test_an_odd_message_raises_nothing(raw: bytes) -> None:
    read(raw, "user")
