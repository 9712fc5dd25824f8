"""A message in a few words, whatever a client has put into it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.message_summary import summarize_message

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "speaker", "parts"),
    [
        pytest.param({"role": "user", "content": "hello"}, "User", ("hello",), id="text"),
        pytest.param({"role": "assistant", "content": None}, "Assistant", (), id="nothing said"),
        pytest.param({"role": "user", "content": "  \n"}, "User", (), id="blanks"),
        pytest.param({"role": "user"}, "User", (), id="no content"),
        pytest.param({"content": "hi"}, "", ("hi",), id="no role"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}, "and", {}]},
            "User",
            ("see", "[image_url]", "and", "[attachment]"),
            id="parts: what is no text is named",
        ),
        pytest.param({"role": "assistant", "content": None, "tool_calls": [CALL]}, "Assistant", ("[calls look]",), id="a call"),
        pytest.param(
            {"role": "assistant", "content": "so", "tool_calls": [CALL] * 2}, "Assistant", ("so", *["[calls look]"] * 2), id="both"
        ),
        pytest.param({"role": "assistant", "tool_calls": [{}, 7, {"function": {}}]}, "Assistant", ("[calls a tool]",), id="odd calls"),
        pytest.param({"role": "tool", "tool_call_id": "c", "content": "42"}, "Tool", ("42",), id="a result"),
        pytest.param({"role": "user", "content": 7}, "User", (), id="content of no known kind"),
        pytest.param({"role": "user", "content": [7, None, {"text": 7, "type": "x"}]}, "User", ("[x]",), id="odd parts"),
        pytest.param({"role": "r" * 99, "content": "x"}, "R" + "r" * 39, ("x",), id="a long role"),
        pytest.param({"role": 7, "content": "x", "tool_calls": 7}, "7", ("x",), id="a role that is none"),
    ],
)  # fmt: skip
def test_what_is_said(message: dict[str, Any], speaker: str, parts: tuple[str, ...]) -> None:
    assert summarize_message(orjson.dumps(message)) == (speaker, parts)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b"7", b'"x"', b"{", b'{"role":"user"', b"[" * 100_000]
)
def test_what_is_no_message_says_nothing(raw: bytes) -> None:
    assert summarize_message(raw) == ("Unknown", ())


names = st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"])
json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
)


@given(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json))
def test_any_message_can_be_told(message: dict[str, Any]) -> None:
    """Never an exception, never a part that says nothing."""
    speaker, parts = summarize_message(orjson.dumps(message))
    assert len(speaker) <= 40
    assert all(part.strip() for part in parts)


def test_lone_surrogates_can_be_told() -> None:
    assert summarize_message(b'{"role":"user","content":"a\\ud800b"}')[0] in ("User", "Unknown")
