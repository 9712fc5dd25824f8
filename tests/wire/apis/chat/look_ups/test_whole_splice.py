"""The rounds of a reply that is no stream: the client gets one JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from om_proxy.wire.apis.api import RoundEnd
from om_proxy.wire.apis.chat.look_ups.whole_splice import WholeSplice


def call(id_: str, name: str = "recall", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def reply(
    number: int, content: str | None, *calls: Any, finish: str | None = None, **message: Any
) -> bytes:
    message = {
        "role": "assistant",
        "content": content,
        **({"tool_calls": calls} if calls else {}),
        **message,
    }
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish or ("tool_calls" if calls else "stop"),
        "logprobs": None,
    }
    counted = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    head = {"id": f"id-{number}", "object": "chat.completion", "created": number, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": counted}, indent=1).encode()


def play(*bodies: bytes) -> tuple[bytes, list[RoundEnd]]:
    splice, ends = WholeSplice("recall", "sum"), []
    for number, body in enumerate(bodies):
        if number:
            splice.begin_round()
        assert splice.feed(body) == b""
        rest, end = splice.end_round()
        assert rest == b""
        ends.append(end)
    return splice.finish(), ends


@pytest.mark.parametrize(
    "body",
    [
        reply(1, "Hello"),
        reply(1, None, call("x", "f")),
        b"no JSON",
        b'{"choices": 7}',
        b'{"error": {"message": "no"}}',
        b"",
    ],
)
def test_without_look_ups_no_byte_differs(body: bytes) -> None:
    assert play(body)[0] == body


def test_look_ups_then_text() -> None:
    """One reply: id and time of the first round, the texts of all, the usage summed up."""
    body, ends = play(
        reply(1, "Wait.", call("own")), reply(2, "", call("own-2")), reply(3, "It is blue.")
    )
    assert [end.calls for end in ends] == [(("own", "{}"),), (("own-2", "{}"),), ()]
    read = ChatCompletion.model_validate_json(body)
    assert (read.id, read.created, read.choices[0].finish_reason) == ("id-1", 1, "stop")
    assert read.choices[0].message.content == "Wait.\n\nIt is blue."
    assert read.choices[0].message.tool_calls is None
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.total_tokens) == (300, 330)


@pytest.mark.parametrize("first", [reply(1, None, call("own")), reply(1, "Wait.", call("own"))])
@pytest.mark.parametrize("last", [b'{"error": {"message": "busy"}}', b'{"choices": [], "id": "2"}'])
def test_a_later_round_without_a_message(first: bytes, last: bytes) -> None:
    """An error stays an error, byte for byte: there is nothing to put texts into."""
    assert play(first, last)[0] == last


def test_both_kinds_of_calls() -> None:
    body, (end,) = play(reply(1, None, call("own"), call("theirs", "f", '{"a":1.0}')))
    assert end.is_shared
    (choice,) = json.loads(body)["choices"]
    assert choice["message"]["tool_calls"] == [call("theirs", "f", '{"a":1.0}')]
    assert choice["finish_reason"] == "tool_calls"


def test_nothing_but_our_call_again() -> None:
    """It is taken out, and the finish says so."""
    body, (end,) = play(reply(1, None, call("own")))
    assert not end.is_visible
    (choice,) = json.loads(body)["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("arguments", [None, "", " ", {"mode": "search"}])
def test_odd_calls_go_back_as_servers_take_them(arguments: Any) -> None:
    """A call without an id or without arguments gets both."""
    odd = {"type": "function", "function": {"name": "recall", "arguments": arguments}}
    _, (end,) = play(reply(1, None, odd, reasoning_content="Hm."))
    message = json.loads(end.message or b"")
    assert message["tool_calls"] == [call("call_om_0")]
    assert message["reasoning_content"] == "Hm."
    assert end.calls == (("call_om_0", "{}"),)


@pytest.mark.parametrize("place", ["text", "arguments", "unknown member"])
def test_half_of_a_character_hides_no_call(place: str) -> None:
    """Texts cut by UTF-16 units hold halves as escapes. The calls are found, and the client gets
    the halves as they came."""
    half = "\ud83d"
    calls = (call("own", arguments=half if place == "arguments" else "{}"), call("theirs", "f"))
    first = reply(1, f"Wait {half}", call("own"), note=half)
    more = {"note": half} if place == "unknown member" else {}
    shared = reply(1, half if place == "text" else "Hm.", *calls, **more)
    assert rb"\ud83d" in shared
    body, (end,) = play(shared)
    assert [own.id for own in end.calls] == ["own"]
    assert json.loads(body)["choices"][0]["message"]["tool_calls"] == [calls[1]]
    if place != "arguments":
        assert rb"\ud83d" in body
    body, _ = play(first, reply(2, f"{half} blue", note=half))
    message = json.loads(body)["choices"][0]["message"]
    assert message["content"] == f"Wait {half}\n\n{half} blue"
    assert message["note"] == half
