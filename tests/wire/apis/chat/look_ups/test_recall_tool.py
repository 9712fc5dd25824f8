"""The tool in a request: where it stands, and that every other byte stays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from om_proxy.memory.recall.offering import Offer, decide_offering
from om_proxy.memory.transcript.sent_history import recognise
from om_proxy.wire.apis.api import ToolCall, Unreadable
from om_proxy.wire.apis.chat.look_ups.recall_tool import (
    offer_tool,
    read_tool_use,
    write_answer,
    write_round,
    write_tool,
)
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.request_members import replace_messages
from tests.docs.reference import ROOT

TOOL = "recall"
TOOL_JSON = write_tool(TOOL, has_threads=True)
MESSAGES = b'"messages": [ {"role":"user","content":"x"} ]'


def write(body: bytes, tool: str | None, messages: Sequence[bytes] = (), **more: bool) -> bytes:
    return write_round(body, tool, messages, has_threads=True, **more)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b"{%s}" % MESSAGES, b'{%s,"tools":[{"t":1}]}' % MESSAGES),
        (b"{%s , \n" % MESSAGES, None),
        (
            b'{"tools": [ {"a" : 1.0} ] ,%s}' % MESSAGES,
            b'{"tools": [ {"a" : 1.0},{"t":1}] ,%s}' % MESSAGES,
        ),
        (b'{"tools": [ ],%s}' % MESSAGES, b'{"tools": [{"t":1}],%s}' % MESSAGES),
        (b'{"tools":null,%s}' % MESSAGES, b'{"tools":[{"t":1}],%s}' % MESSAGES),
        (
            b'{"tools":[{"a":1}],"tools":[{"b":2}],%s}' % MESSAGES,
            b'{"tools":[{"b":2},{"t":1}],"messages":%s}' % MESSAGES.partition(b": ")[2],
        ),
        (b'{"a":"\\ud800",%s}' % MESSAGES, b'{"a":"\\ud800",%s,"tools":[{"t":1}]}' % MESSAGES),
        (b"[]", None),
    ],
)
def test_the_tool_is_the_last_one(body: bytes, written: bytes | None) -> None:
    """All bytes of the client's tools stay. `null` and an empty list count as no tools; of a member
    that was sent twice the last one counts."""
    if written is None:
        with pytest.raises(Unreadable):
            write(body, TOOL)
    else:
        assert write(body, TOOL) == written.replace(b'{"t":1}', TOOL_JSON)


REWRITTEN_MESSAGES = [b'{"role":"user","content":"a longer text"}', b'{"role":"assistant"}']
MEMBERS = {
    "none": b"{%s}",
    "none, and blanks": b' {%s , "a":1 } \n',
    "behind": b'{%s,"tools" : [ {"a" : 1.0} ] }',
    "before": b'{"tools":[{"a":1}, {"b":2}], %s,"z":0}',
    "empty": b'{"tools":[ ],%s}',
    "null": b'{%s,"tools":null}',
    "twice": b'{"tools":[{"a":1}],%s,"tools":[{"b":2}]}',
    "escaped": rb'{"to\u006fls":[{"a":1}],%s}',
    "half a character": rb'{"a":"\ud800",%s,"tools":[{"a":1}]}',
}


@pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS)
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_rewritten", [True, False])
def test_offering_writes_the_first_round(
    members: bytes, is_known: bool, is_rewritten: bool
) -> None:
    """What is known of the request's messages is not read again, and the body is the same."""
    messages = [b'{"role":"user","content":"%d%s"}' % (n, b" word" * 200) for n in range(20)]
    body = members % (b'"messages": [ %s]' % b" , ".join(messages))
    request = CHAT.parse_request(body)
    if is_known:
        split = CHAT.build_split(request, recognise((), request.messages).digests, 0)
        request = CHAT.parse_request(body, split)
        assert len(request.frame) < len(body) or split is None
    written = replace_messages(request, REWRITTEN_MESSAGES) if is_rewritten else body
    assert offer_tool(request, written, TOOL, has_threads=True) == write(written, TOOL)


def test_a_later_round() -> None:
    """The messages of the rounds before stand behind the client's own; nothing else changes, so the
    first round is its beginning."""
    body = b'{"model":"m",%s,"tools":[{"a":1}]}' % MESSAGES
    first = write(body, TOOL)
    second = write(body, TOOL, (b'{"n":1}', b'{"n":2}'))
    assert second == first.replace(b" ]", b',{"n":1},{"n":2}]', 1)
    assert write(body, None, (b'{"n":1}',)).endswith(b'{"n":1}],"tools":[{"a":1}]}')


@pytest.mark.parametrize(("tools", "choice"), [(b"", b'"none"'), (b'"tools":[{"a":1}],', None)])
def test_the_last_round_must_not_call(tools: bytes, choice: bytes | None) -> None:
    """A client with tools of its own may still have them called."""
    written = json.loads(write(b"{%s%s}" % (tools, MESSAGES), TOOL, may_call=False))
    assert written.get("tool_choice") == (choice and json.loads(choice))


def use(**members: Any) -> Any:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **members}).encode()
    return read_tool_use(CHAT.parse_request(body))


def tool(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


@pytest.mark.parametrize(
    ("members", "word", "name"),
    [
        ({}, Offer.OFFERED, "recall"),
        ({"n": 1, "tools": [tool("recaller")], "functions": None}, Offer.OFFERED, "recall"),
        ({"tools": [tool("recall")]}, Offer.OFFERED, "om_recall"),
        ({"tools": [tool("recall", "custom")]}, Offer.OFFERED, "om_recall"),
        ({"tools": [tool("om_recall")]}, Offer.OFFERED, "recall"),
        ({"tools": [tool("recall"), tool("om_recall")]}, Offer.NAME, None),
        ({"n": 2}, Offer.CHOICES, None),
        ({"functions": []}, Offer.FUNCTIONS, None),
        ({"function_call": "auto"}, Offer.FUNCTIONS, None),
        ({"tool_choice": "none", "parallel_tool_calls": False}, Offer.OFFERED, "recall"),
    ],
)
def test_when_it_is_offered(members: Any, word: Offer, name: str | None) -> None:
    assert decide_offering(use(**members), is_refused=False) == (word, name)


SCHEMA = {"type": "object", "description": "\ud800"}


@pytest.mark.parametrize(
    ("members", "wants"),
    [
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"json_schema": {"schema": SCHEMA}, "type": "json_schema"}}, True),
        ({"response_format": {"type": "json", "value": SCHEMA}}, True),
        ({"response_format": {"type": "regex", "value": "a+"}}, True),
        ({"response_format": {"type": "structural_tag"}}, True),
        ({"response_format": {"schema": SCHEMA}}, True),
        ({"response_format": "json"}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": "text"}, False),
        ({"response_format": None}, False),
        ({"guided_json": SCHEMA}, True),
        ({"guided_regex": "a+"}, True),
        ({"guided_choice": ["yes", "no"]}, True),
        ({"guided_grammar": "root ::= x"}, True),
        ({"structural_tag": "{}"}, True),
        ({"structured_outputs": {"json": SCHEMA}}, True),
        ({"nvext": {"guided_json": SCHEMA}}, True),
        ({"nvext": {"annotations": []}}, False),
        ({"json_schema": SCHEMA}, True),
        ({"grammar": "root ::= x"}, True),
        ({"regex": "a+"}, True),
        ({"ebnf": "root ::= x"}, True),
        ({"regex_pattern": "a+"}, True),
        ({"grammar_string": "root ::= x"}, True),
        ({"guided_json": {}}, True),  # any JSON
        ({"guided_json": None, "grammar": ""}, False),
        ({"tools": [{"function": {"name": "x", "parameters": {"grammar": "g"}}}]}, False),
    ],
)
def test_a_reply_that_must_have_a_form(members: Any, wants: bool) -> None:
    """Each server has members of its own for it."""
    assert use(**members).wants_json is wants


def test_tools_that_cannot_be_read() -> None:
    """The model server reports them."""
    assert use(tools={"a": 1}) is None
    assert use(tools="recall") is None


def test_the_tool_is_a_constant() -> None:
    """Its bytes depend on its name and the scope alone, and are those of the contract."""
    page = (ROOT / "docs/contributing/recall.md").read_text(encoding="utf-8")
    sentence = page.partition("has its JSON: ")[2].partition(". Numbers")[0]
    shown = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", sentence))
    whole = write_tool("recall", has_threads=True)
    assert list(json.loads(whole)["function"]["parameters"]["properties"]) == shown
    assert whole == write_tool("recall", has_threads=True)
    narrow = json.loads(write_tool("om_recall", has_threads=False))["function"]
    assert narrow["name"] == "om_recall"
    assert "threadId" not in narrow["parameters"]["properties"]
    assert b"threads" not in write_tool("recall", has_threads=False)


def test_an_answer() -> None:
    """Half characters and quotes stay one JSON string."""
    raw = write_answer(ToolCall("a", "{}"), 'recall: "x" \ud800')
    assert json.loads(raw) == {"role": "tool", "tool_call_id": "a", "content": 'recall: "x" \ud800'}
