"""Messages that were refused, in their plainest form."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.apis.chat.plain_form import write_plain_body, write_plain_message
from om_proxy.apis.registry import CHAT

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
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
            {"role": "assistant", "content": ""},
            id="reasoning alone",
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
    stored = b'{"role":"assistant","content":null,"reasoning":"hm"}'
    notes = b'{"role":"system","content":"notes"}'
    body = (
        b'{"model":"m", "messages":[' + b",".join((system, notes, stored, own)) + b'],"seed":1E2}'
    )
    assert write_plain_body(request, body) == body.replace(
        stored, b'{"role":"assistant","content":""}'
    )


@pytest.mark.parametrize("body", [b"no JSON", b'{"messages":5}', b'{"model":"m","messages":[]}'])
def test_without_a_plainer_form_there_is_none(body: bytes) -> None:
    """A prompt that would be the same is not sent again."""
    request = CHAT.parse_request(b'{"model":"m","messages":[]}')
    assert write_plain_body(request, body) is None
