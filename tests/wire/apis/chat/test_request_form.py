"""What a server said, in the form in which servers take it back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.wire.apis.chat import request_form
from om_proxy.wire.apis.chat.chat_message import read_item
from om_proxy.wire.apis.chat.look_ups.recall_tool import write_tail
from om_proxy.wire.apis.chat.plain_form import LEFT_OUT
from om_proxy.wire.apis.chat.request_form import (
    drop_request_forms,
    reshape_message,
    write_request_form,
)

KEY = b"k" * 32
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MARK = {"cache_control": {"type": "ephemeral"}}


def reply(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def thinking(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [text(words)]}


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        pytest.param(
            reply("yes", refusal=None, annotations=[], audio=None, reasoning="hm"),
            reply("yes"),
            id="remarks of an answer",
        ),
        pytest.param(
            reply("yes", provider_specific_fields={"a": 1}, executed_tools=[], citations=["x"]),
            reply("yes"),
            id="members of one server",
        ),
        pytest.param(
            reply(None, tool_calls=[CALL], function_call=None), reply(None, tool_calls=[CALL])
        ),
        pytest.param(
            reply(None, function_call={"name": "f", "arguments": "{}"}, tool_calls=None),
            reply(None, function_call={"name": "f", "arguments": "{}"}),
            id="a call in the form of 2023",
        ),
        pytest.param(reply(None, refusal="I cannot"), reply("I cannot"), id="a refusal"),
        pytest.param(reply("", refusal="I cannot"), reply("I cannot"), id="a streamed refusal"),
        pytest.param(
            reply(None, audio={"id": "a1", "data": "AAAA", "expires_at": 5, "transcript": "hi"}),
            reply(None, audio={"id": "a1"}),
            id="a spoken reply",
        ),
        pytest.param(
            reply(None, audio={"data": "AAAA", "transcript": "hi"}),
            reply("hi"),
            id="without its id",
        ),
        pytest.param(
            reply(None, tool_calls=[{**CALL, "index": 0, "extra_content": {"signature": "S"}}]),
            reply(None, tool_calls=[{**CALL, "extra_content": {"signature": "S"}}]),
            id="a signed call with an index",
        ),
        pytest.param(
            reply("", tool_calls=[{"function": {"name": "f", "arguments": {"a": [1]}}}]),
            reply(
                "",
                tool_calls=[
                    {"function": {"name": "f", "arguments": '{"a":[1]}'}, "type": "function"}
                ],
            ),
            id="arguments as an object",
        ),
        pytest.param(
            reply(None, tool_calls=[{**CALL, "function": {"name": "f", "arguments": " "}}]),
            reply(None, tool_calls=[CALL]),
            id="empty arguments",
        ),
        pytest.param(
            reply(None, tool_calls=[{"id": "c", "type": "custom", "custom": {"input": ""}}, 5]),
            reply(None, tool_calls=[{"id": "c", "type": "custom", "custom": {"input": ""}}, 5]),
            id="a custom call, and no call",
        ),
        pytest.param(
            reply(
                "",
                reasoning="I see",
                reasoning_details=[
                    {"type": "reasoning.text", "index": 0, "text": "I "},
                    {"type": "reasoning.text", "index": 0, "text": "see", "signature": "S"},
                ],
                tool_calls=[CALL],
            ),
            reply(
                "",
                reasoning_details=[
                    {"type": "reasoning.text", "index": 0, "text": "I see", "signature": "S"}
                ],
                tool_calls=[CALL],
            ),
            id="details in pieces",
        ),
        pytest.param(
            reply(
                "yes",
                thinking_blocks=[
                    {"type": "thinking", "thinking": "I "},
                    {"type": "thinking", "thinking": "see"},
                    {"type": "thinking", "thinking": "", "signature": "S"},
                ],
            ),
            reply(
                "yes",
                thinking_blocks=[{"type": "thinking", "thinking": "I see", "signature": "S"}],
            ),
            id="thinking blocks in pieces",
        ),
        pytest.param(
            reply([thinking("I "), thinking("see"), text("yes")]),
            reply([thinking("I see"), text("yes")]),
            id="thinking in a content",
        ),
        pytest.param(
            reply([text("it "), thinking("hm"), text("is"), thinking("!")]),
            reply([thinking("hm!"), text("it is")]),
            id="thinking between texts",
        ),
        pytest.param(
            reply([{"type": "thinking", "thinking": "a", "signature": "S"}, text("b")]),
            reply([{"type": "thinking", "thinking": "a", "signature": "S"}, text("b")]),
            id="signed thinking in a content",
        ),
        pytest.param(
            reply([text("a", annotations=[], **MARK), text("b")], **MARK),
            reply([text("a"), text("b")]),
            id="parts with remarks and marks",
        ),
        pytest.param(reply("\n", refusal="I cannot"), reply("I cannot"), id="a blank refusal"),
        pytest.param(
            {"role": "user", "content": [text("a", **MARK), text("b", x=1)], **MARK},
            {"role": "user", "content": [text("a"), text("b", x=1)]},
            id="a marked question",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "content": "a", **MARK},
            {"role": "tool", "tool_call_id": "c1", "content": "a"},
            id="a marked result",
        ),
    ],
)
def test_a_message_gets_the_form_of_a_request(
    stored: dict[str, Any], written: dict[str, Any]
) -> None:
    """The form of a form is itself, and says what was said."""
    raw = reshape_message(orjson.dumps(stored))
    assert list(orjson.loads(raw).items()) == list(written.items())
    assert reshape_message(raw) is raw
    assert read_item(raw, KEY).calls == read_item(orjson.dumps(stored), KEY).calls


@pytest.mark.parametrize(
    "raw",
    [
        b'{"role":"assistant","content":"yes"}',
        b'{"role":"assistant","content":"\\"yes\\", she said"}',
        b'{ "role" : "assistant", "content" : "h\\u00e9", "name":"a" }',
        b'{"role":"user","content":"what does cache_control do?","x":1E2}',
        b'{"role":"user","content":"call the assistant","refusal":null}',
        b'{"role":"tool","content":"{}","annotations":[]}',
        b'{"role":5,"content":"assistant"}',
        b"assistant, but no JSON",
        b'["assistant"]',
        b'{"role":"assistant","content":5}',
        b'{"role":"assistant","content":"a","tool_calls":{"a":1}}',
    ],
)
def test_what_has_that_form_keeps_its_bytes(raw: bytes) -> None:
    """So does what cannot be read: it is the very same object."""
    assert write_request_form(raw) is raw
    assert reshape_message(raw) is raw


@pytest.mark.parametrize(
    "stored",
    [
        reply(None, reasoning_content="hm"),
        reply("", reasoning_content="hm", annotations=[]),
        {"role": "assistant"},
        reply(""),
        reply(" \n\n"),
        reply(None, tool_calls=[], refusal="", audio={"data": "AAAA", "transcript": " "}),
        reply([]),
        reply([text("\t")]),
        reply([thinking("hm"), text("")]),
        reply([{"type": "thinking", "thinking": "a", "signature": "S"}]),
    ],
    ids=str,
)
def test_a_reply_that_says_nothing_is_left_out(stored: dict[str, Any]) -> None:
    """It tells the model nothing, and many servers refuse it. Look-ups that were made for it stay."""
    raw = orjson.dumps(stored)
    assert reshape_message(raw) == write_request_form(raw) == LEFT_OUT
    question = Piece(b'{"role":"user","content":"hi"}', "user", (), None, 1, 1, 0)
    empty = Piece(raw, "assistant", (), None, 1, 2, -1)
    assert write_tail([empty, question]) == [question.raw]
    looked_up = Round(orjson.dumps(reply(None, tool_calls=[CALL])), (b'{"role":"tool"}',))
    shown = replace(empty, look_ups=LookedUp((looked_up,)))
    assert write_tail([shown, question])[2:] == [question.raw]


def test_what_is_kept_keeps_its_bytes() -> None:
    """Only what changes is written anew; half a character is replaced."""
    raw = b'{"role":"assistant", "content":"h\\u00e9 \\ud83d" ,"refusal":null,"name":"\\u0061"}'
    written = b'{"role":"assistant","content":"h\\u00e9 \\ufffd","name":"\\u0061"}'
    assert reshape_message(raw) == written


def test_a_message_is_reshaped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored message goes into many prompts. Where people had it forgotten, nothing is kept."""
    read = []

    def count(raw: bytes) -> bytes:
        read.append(raw)
        return reshape_message(raw)

    monkeypatch.setattr(request_form, "reshape_message", count)
    raw = orjson.dumps(reply("once", annotations=[]))
    assert write_request_form(raw) is write_request_form(raw) != raw
    assert read == [raw]
    drop_request_forms()
    write_request_form(raw)
    assert read == [raw, raw]
