"""Messages that were refused, in their plainest form."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from om_proxy.wire.apis.chat.plain_form import write_plain_body, write_plain_message
from om_proxy.wire.apis.registry import CHAT

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SIGNED = {"extra_content": {"google": {"thought_signature": "SIG"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://gone.example/a.png"}}
TEXT = {"type": "text", "text": "look"}


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        pytest.param(
            {"role": "assistant", "content": "yes", "reasoning": "hm", "annotations": []},
            {"role": "assistant", "content": "yes"},
            id="members of an answer",
        ),
        pytest.param(
            {"role": "assistant", "content": 42, "name": "Assistant Bot"},
            {"role": "assistant", "content": "42"},
            id="a number",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": "a",
                "tool_calls": [CALL],
                "function_call": {"name": "f", "arguments": "{}"},
            },
            {"role": "assistant", "content": "a", "tool_calls": [CALL]},
            id="a call told twice",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, **SIGNED, "index": 0}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            id="a signed call",
        ),
        pytest.param(
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
            },
            id="arguments as an object, no id",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}],
            },
            id="no arguments",
        ),
        pytest.param(
            {
                "role": "assistant",
                "function_call": {"name": "f", "arguments": "{}"},
                "refusal": None,
            },
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": "{}"},
            },
            id="a call in the form of 2023",
        ),
        pytest.param(
            {"role": "function", "name": "f", "content": "42"},
            {"role": "function", "name": "f", "content": "42"},
            id="its result",
        ),
        pytest.param(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x"}}
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x"}}
                ],
            },
            id="a custom call",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "yes", "annotations": []},
                ],
            },
            {"role": "assistant", "content": "yes"},
            id="thinking in a list",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "refusal": "I cannot"},
            {"role": "assistant", "content": "I cannot"},
            id="a refusal",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "spoken"}},
            {"role": "assistant", "content": "spoken"},
            id="a spoken reply",
        ),
        pytest.param(
            {"role": "user", "content": [TEXT, PICTURE], "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": "look\n[image]"},
            id="a picture",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf"}}]},
            {"role": "user", "content": "[file a.pdf]"},
            id="a file",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [TEXT]},
            {"role": "tool", "tool_call_id": "c1", "content": "look"},
            id="a result",
        ),
    ],
)
def test_a_plain_message_has_role_text_calls_and_ids(
    message: dict[str, Any], plain: dict[str, Any]
) -> None:
    """Everything else is left out, and the plain form of a plain form is itself."""
    written = write_plain_message(orjson.dumps(message))
    assert orjson.loads(written) == plain
    assert write_plain_message(written) == written


@pytest.mark.parametrize(
    "raw", [b"no JSON", b'{"role":5}', b'{"role":"system","content":"x","a":1}', b"[]"]
)
def test_what_cannot_be_read_and_instructions_stay(raw: bytes) -> None:
    """Nothing raises, whatever was stored."""
    assert write_plain_message(raw) == raw


def test_half_a_character_does_not_keep_the_rest() -> None:
    """A text that a client cut by UTF-16 units is plain, too."""
    raw = b'{"role":"assistant","content":"a\\ud83d","annotations":[]}'
    assert orjson.loads(write_plain_message(raw)) == {"role": "assistant", "content": "a\ufffd"}


def test_the_clients_own_messages_keep_their_bytes() -> None:
    """Only what memory added is written anew; the tools and every other member stay."""
    own = b'{"role":"user",  "content":[{"type":"text","text":"hi"}], "cache_control":{}}'
    system = b'{"role":"system","content":"be kind"}'
    request = CHAT.parse_request(
        b'{"model":"m", "messages":[' + system + b"," + own + b'],"seed":1E2}'
    )
    stored = b'{"role":"assistant","content":"yes","reasoning":"hm"}'
    notes = b'{"role":"system","content":"notes"}'
    body = (
        b'{"model":"m", "messages":[' + b",".join((system, notes, stored, own)) + b'],"seed":1E2}'
    )
    assert write_plain_body(request, body) == body.replace(
        stored, b'{"role":"assistant","content":"yes"}'
    )


def user(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **members}


def reply(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


OWN = user("now", cache_control={})
OWN_PARTS = user([PICTURE])
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
CALLING = reply(None, tool_calls=[CALL])
NO_ANSWER = reply("(no reply)")


@pytest.mark.parametrize(
    ("stored", "own", "plain"),
    [
        pytest.param(
            [user("a"), user("b")],
            [OWN],
            [user("a\n\nb\n\nnow", cache_control={})],
            id="unanswered",
        ),
        pytest.param(
            [user('"é\ud83d"\\n')], [user("now")], [user('"é\ufffd"\\n\n\nnow')], id="odd"
        ),
        pytest.param([user("a")], [OWN_PARTS], [user([TEXT | {"text": "a"}, PICTURE])], id="parts"),
        pytest.param([user("a")], [OWN, OWN], [user("a\n\nnow", cache_control={}), OWN], id="own"),
        pytest.param([user("now")], [user("now")], [user("now\n\nnow")], id="said again"),
        pytest.param(
            [user("a"), reply("")], [user("now")], [user("a\n\nnow")], id="an empty reply"
        ),
        pytest.param(
            [user("a"), reply("b"), user(" "), reply("c", annotations=[])],
            [OWN],
            [user("a"), reply("b\n\nc"), OWN],
            id="an empty question",
        ),
        pytest.param(
            [user("a"), reply("b"), CALLING, RESULT, RESULT],
            [],
            [user("a"), reply("b"), CALLING, RESULT, RESULT],
            id="calls and results",
        ),
        pytest.param(
            [user("a"), CALLING, RESULT],
            [OWN],
            [user("a"), CALLING, RESULT, NO_ANSWER, OWN],
            id="stop",
        ),
        pytest.param(
            [CALLING, RESULT, reply(None)], [OWN], [CALLING, RESULT, NO_ANSWER, OWN], id="no answer"
        ),
        pytest.param([CALLING], [RESULT, OWN], [CALLING, RESULT, OWN], id="an own result"),
        pytest.param([user("a", name="A")], [OWN], [user("a", name="A"), OWN], id="another name"),
        pytest.param([user("a")], [user(None)], [user("a"), user(None)], id="no text"),
        pytest.param([user("a")], [{"role": []}], [user("a"), {"role": []}], id="no role"),
    ],
)
def test_the_strictest_server_takes_it(
    stored: list[dict[str, Any]], own: list[dict[str, Any]], plain: list[dict[str, Any]]
) -> None:
    """Stored neighbours of one speaker are one message, nothing is empty, and a reply stands between
    the results of tools and a question. The client's own neighbours are its own matter."""
    request = CHAT.parse_request(json.dumps({"messages": own}).encode())
    body = json.dumps({"messages": [*stored, *own]}).encode()
    assert orjson.loads(write_plain_body(request, body) or body)["messages"] == plain


def test_what_other_clients_said_after_the_question_is_joined_too() -> None:
    """A client's own message may stand before a stored one."""
    request = CHAT.parse_request(orjson.dumps({"messages": [OWN_PARTS, OWN]}))
    body = orjson.dumps({"messages": [OWN_PARTS, user("a"), OWN]})
    joined = user([PICTURE, TEXT | {"text": "a"}, TEXT | {"text": "now"}])
    assert orjson.loads(write_plain_body(request, body) or b"")["messages"] == [joined]


@pytest.mark.parametrize("body", [b"no JSON", b'{"messages":5}', b'{"model":"m","messages":[]}'])
def test_without_a_plainer_form_there_is_none(body: bytes) -> None:
    """A prompt that would be the same is not sent again."""
    request = CHAT.parse_request(b'{"model":"m","messages":[]}')
    assert write_plain_body(request, body) is None
