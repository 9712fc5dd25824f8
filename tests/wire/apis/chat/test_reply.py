# ruff: noqa: E501 - a case of a table is one line
"""Replies: the message a client makes of them, however they come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.chat.reply import ChatReplyReader


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(delta: Any, finish: str | None = None, index: int = 0, **chunk: Any) -> bytes:
    return event(
        {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **chunk}
    )


DONE = event(b"[DONE]")


def read(
    data: bytes, *, stream: bool = True, size: int | None = None, limit: int = 1 << 20
) -> Reply:
    reader = ChatReplyReader(stream, limit)
    for start in range(0, len(data), size or max(1, len(data))):
        reader.feed(data[start : start + (size or len(data))])
    return reader.finish()


def message(*deltas: Any) -> Any:
    raw = read(b"".join(delta(each) for each in deltas)).message
    return None if raw is None else json.loads(raw)


def call(
    index: Any,
    id_: str | None = None,
    name: str | None = None,
    arguments: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "tool_calls": [
            {
                "index": index,
                "id": id_,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
                **more,
            }
        ]
    }


def called(id_: str | None, name: str, arguments: str, **more: Any) -> dict[str, Any]:
    identity = {} if id_ is None else {"id": id_}
    return {
        **identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


STREAM = b"".join(
    (
        b": comment\n\n",
        delta({"role": "assistant", "content": "", "refusal": None}),
        delta({"content": "Grüße "}),
        delta({"content": "😀"}),
        delta({}, "stop"),
        event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
        DONE,
    )
)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 50])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_stream(size: int | None, ends: bytes) -> None:
    """The deltas make the message, wherever the bytes are cut and however lines end."""
    reply = read(STREAM.replace(b"\n", ends), size=size)
    assert reply == Reply(
        '{"role":"assistant","content":"Grüße 😀"}'.encode(),
        True,
        "stop",
        Usage(5, output_tokens=2),
        False,
        (),
    )


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_stream_whose_content_changes_its_kind(size: int) -> None:
    """Text, then parts, then text again: all of it is there, wherever the bytes are cut."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    contents = ["Grü", "ße ", [thinking], "", "😀", [thinking, {"type": "text", "text": "!"}], "?"]
    stream = b"".join(delta({"content": content}) for content in contents)
    content = json.loads(read(stream + DONE, size=size).message or b"")["content"]
    texts = [{"type": "text", "text": text} for text in ("Grüße ", "😀", "!?")]
    assert content == [texts[0], thinking, texts[1], thinking, texts[2]]


@pytest.mark.parametrize(
    "odd",
    [
        delta({"role": "model", "content": "B"}),
        delta({"content": "B", "refusal": None, "tool_calls": None}),
        delta({"content": "B", "refusal": "no"}),
        delta({"content": ["B"]}),
        delta({"content": None, "reasoning_content": "hm"}),
        delta({"content": "B"}, "stop"),
        delta({"content": "B"}, index=1),
        delta({"content": "B"}, usage={"prompt_tokens": 5}),
        delta({"content": "B"}, error={"message": "no"}),
        b"event: error\n" + delta({"content": "B"}),
        delta({"content": "B\ud83d"}),
        event({"choices": [{"delta": {"content": "B"}}, {"delta": {"content": "C"}}]}),
        event(b'{"choices": [{"delta": {"content": "B"'),
    ],
)
def test_texts_beside_others(odd: bytes) -> None:
    """An event that adds only a text says the same without spaces, which let many be read as one."""
    stream = delta({"content": ""}) + delta({"content": "a"}) + odd + delta({"content": "\ude00c"})
    assert read(stream.replace(b'": ', b'":') + DONE) == read(stream + DONE)


def test_cut_stream() -> None:
    """A stream cut anywhere gives what had come, and is complete only once its end was
    announced."""
    finish = STREAM.index(
        event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    )
    for cut in range(len(STREAM)):
        reply = read(STREAM[:cut])
        assert reply.complete is (cut >= finish)
        assert reply.message is None or "Grüße 😀".startswith(json.loads(reply.message)["content"])


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param([{"role": "assistant"}], {"role": "assistant", "content": ""}, id="empty"),
        pytest.param([{"content": "a"}, {"content": None}, {"content": "b"}], {"role": "assistant", "content": "ab"}, id="null-says-nothing"),
        pytest.param([{"refusal": "I "}, {"refusal": "won't"}], {"role": "assistant", "content": None, "refusal": "I won't"}, id="refusal"),
        pytest.param([{"reasoning_content": "think"}, {"reasoning_content": "ing"}, {"content": "x"}], {"role": "assistant", "content": "x", "reasoning_content": "thinking"}, id="reasoning"),
        pytest.param([{"odd": "a", "n": 1, "l": [1]}, {"odd": "b", "n": 2, "l": [2]}], {"role": "assistant", "content": None, "odd": "ab", "n": 2, "l": [1, 2]}, id="unknown"),
        pytest.param([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], {"role": "assistant", "content": "ab"}, id="role-repeated"),
        pytest.param([{"content": [{"type": "text", "text": "a"}]}, {"content": "b"}], {"role": "assistant", "content": "ab"}, id="kind-changes"),
        pytest.param([{"audio": {"id": "a", "data": "AA", "transcript": "he"}}, {"audio": {"data": "BB", "transcript": "llo", "expires_at": 5}}], {"role": "assistant", "content": None, "audio": {"id": "a", "data": "AABB", "transcript": "hello", "expires_at": 5}}, id="audio"),
        pytest.param([{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{}"}}], {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, id="function-call"),
    ],
)  # fmt: skip
def test_deltas(deltas: list[Any], expected: Any) -> None:
    """What each kind of delta adds to the message."""
    assert message(*deltas) == expected


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param([call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}")], [called("a", "f", '{"x":1}')], id="one"),
        pytest.param([call(0, "a", "f", "1"), call(1, "b", "g", "2"), call(0, None, None, "3")], [called("a", "f", "13"), called("b", "g", "2")], id="two"),
        pytest.param([call(1, "b", "g", "2"), call(0, "a", "f", "1")], [called("a", "f", "1"), called("b", "g", "2")], id="out-of-order"),
        pytest.param([call(0, "a", "f", "1"), call(0, "b", "g", "2"), call(0, None, None, "3")], [called("a", "f", "1"), called("b", "g", "23")], id="duplicate-index"),
        pytest.param([call(0, "a", "f", "1"), call(0, "z", None, "2")], [called("a", "f", "12")], id="new-id-in-every-piece"),
        pytest.param([call(0, "a", "f", "1"), call(0, "a", "f", "2")], [called("a", "f", "12")], id="id-and-name-repeated"),
        pytest.param([call(0, "a", "get_", ""), call(0, None, "it", "{}")], [called("a", "get_it", "{}")], id="name-in-pieces"),
        pytest.param([call(None, "a", "f", "1"), call(None, None, None, "2"), call(None, "b", "g", "3"), call(None, "a", None, "4")], [called("a", "f", "124"), called("b", "g", "3")], id="null-index"),
        pytest.param([call(None, None, "f", "{}"), call(None, None, "g", "{}")], [called(None, "f", "{}"), called(None, "g", "{}")], id="no-index-no-id"),
        pytest.param([call(0, "a", "f", "{}", extra_content={"google": {"thought_signature": "s"}})], [called("a", "f", "{}", extra_content={"google": {"thought_signature": "s"}})], id="unknown-members"),
    ],
)  # fmt: skip
def test_tool_calls(deltas: list[Any], calls: list[Any]) -> None:
    """Calls are told apart as clients tell them apart, whatever the server does with indexes and
    ids."""
    assert message(*deltas) == {"role": "assistant", "content": None, "tool_calls": calls}


def test_several_choices() -> None:
    """With `n` > 1 the first choice is the message, the others are kept beside it in order."""
    reply = read(
        delta({"content": "c"}, index=2)
        + delta({"content": "a"}, "stop")
        + delta({"content": "b"}, "length", index=1)
    )
    assert reply.message == b'{"role":"assistant","content":"a"}'
    assert reply.others == (
        b'{"role":"assistant","content":"b"}',
        b'{"role":"assistant","content":"c"}',
    )
    assert reply.finish_reason == "stop"


def test_other_choice_finishing_is_not_the_end() -> None:
    """Only the first choice's end ends the message we keep."""
    assert not read(delta({"content": "a"}) + delta({"content": "b"}, "stop", index=1)).complete


@pytest.mark.parametrize(
    ("stream", "complete", "error"),
    [
        pytest.param(delta({"content": "a"}) + DONE, True, False, id="done-only"),
        pytest.param(delta({"content": "a"}, "stop"), True, False, id="finish-only"),
        pytest.param(delta({"content": "a"}), False, False, id="neither"),
        pytest.param(delta({"content": "a"}) + event({"error": {"message": "x"}}) + DONE, False, True, id="error-in-the-middle"),
        pytest.param(delta({"content": "a"}) + b"event: error\ndata: {}\n\n", False, True, id="error-by-type"),
        pytest.param(delta({"content": "a"}, "stop", error=None), True, False, id="null-error"),
        pytest.param(delta({"content": "a"}, "stop") + DONE + DONE + delta({"content": "b"}) + b"garbage", True, False, id="after-the-end"),
        pytest.param(event(b"{broken") + event(b"7") + event({"choices": 5}) + event({"choices": [None, {"delta": 1}]}) + delta({"content": "a"}, "stop"), True, False, id="odd-events"),
        pytest.param(event(b"[" * 100_000) + delta({"content": "a"}, "stop"), True, False, id="deep-event"),
    ],
)  # fmt: skip
def test_ends(stream: bytes, complete: bool, error: bool) -> None:
    """When a stream counts as complete, and when as an error."""
    reply = read(stream)
    assert (reply.message, reply.complete, reply.error) == (
        b'{"role":"assistant","content":"a"}',
        complete,
        error,
    )


def test_half_characters_in_two_deltas() -> None:
    """A pair split between two deltas costs that character, not the reply."""
    halves = b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}'
    reply = read(event(halves % b"a\\ud83d") + event(halves % b"\\ude00b"))
    assert json.loads(reply.message or b"")["content"] == "a\ufffd\ufffdb"


@pytest.mark.parametrize("role", ['""', '"model"', '"ASSISTANT"', "null", "7"])
def test_a_role_of_another_name(role: str) -> None:
    """A reply is the assistant's, whatever its server calls it, streamed or not."""
    said = b'{"role":%s,"content":"a"}' % role.encode()
    kept = b'{"role":"assistant","content":"a"}'
    assert read(b'{"choices":[{"message":%s}]}' % said, stream=False).message == kept
    assert read(event(b'{"choices":[{"delta":%s}]}' % said)).message == kept


BODY = b' {"id":"x", "choices": [ {"index":0,"message":{"role": "assistant", "content":"hi","x":1.0},"finish_reason":"stop"},{"index":1,"message":{"content":"b"}} ],"usage":{"prompt_tokens":3}} '


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [None, 1, 10])
def test_body(stream: bool, size: int | None) -> None:
    """A reply in one piece keeps its message's own bytes, also where a stream was asked for."""
    assert read(BODY, stream=stream, size=size) == Reply(
        b'{"role": "assistant", "content":"hi","x":1.0}',
        True,
        "stop",
        Usage(3),
        False,
        (b'{"content":"b"}',),
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"no"}}', Reply(error=True)),
        (b"<html>", Reply()),
        (b'{"choices":[{"message":{"content"', Reply()),
        (b"", Reply()),
        (b'{"choices":null}', Reply(complete=True)),
        (b'{"choices":[{"message":null}]}', Reply(complete=True)),
        (b'{"choices":[7]}', Reply()),
        (b'{"choices":[{"index":"x","message":{"a":1},"finish_reason":7}],"usage":[]}', Reply(b'{"a":1,"role":"assistant"}', True)),
        (b'{"x":' + b"[" * 100_000, Reply()),
    ],
)  # fmt: skip
def test_odd_bodies(body: bytes, expected: Reply) -> None:
    """Whatever a server sends, nothing is raised and nothing is made up."""
    assert read(body, stream=False) == expected


def test_too_long() -> None:
    """A reply above the limit is not read to its end, so it is never complete."""
    assert (
        read(
            delta({"content": "a"}) + delta({"content": "b" * 500}, "stop"), limit=300, size=50
        ).complete
        is False
    )
    assert read(BODY, stream=False, limit=50, size=10) == Reply()


def test_asked_twice() -> None:
    """`finish` may be asked at any time, and changes nothing."""
    reader = ChatReplyReader(stream=True)
    reader.feed(delta({"content": "a"}))
    assert reader.finish() == reader.finish()
    reader.feed(delta({"content": "b"}, "stop"))
    assert reader.finish().message == b'{"role":"assistant","content":"ab"}'


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from([b"data: ", b"\n\n", DONE, delta({"content": "x"}), b'{"choices":[']),
        max_size=8,
    ),
    st.booleans(),
)
def test_any_bytes(pieces: list[bytes], stream: bool) -> None:
    """No bytes raise anything."""
    reader = ChatReplyReader(stream)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "id", "function", "name", "arguments", "x"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function_call", "audio", "id", "x"]),
            JSON,
            max_size=4,
        ),
        max_size=5,
    )
)
def test_any_deltas(deltas: list[Any]) -> None:
    """No deltas raise anything, and what they make is JSON."""
    message(*deltas)
