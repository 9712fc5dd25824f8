"""The text at the beginning of a message, wherever its JSON was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.wire.apis.chat.chat_api import MAX_BEGINNING_BYTES, cut_beginning, read_beginning


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "system", "content": "You are Ferro."}, "You are Ferro."),
        (
            {"content": 'say "content": "x" \\ and \n on', "role": "system"},
            'say "content": "x" \\ and \n on',
        ),
        (
            {
                "role": "developer",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            },
            "one\ntwo",
        ),
        ({"role": "system", "content": None}, ""),
        ({"role": "system", "name": "text", "content": ""}, ""),
    ],
)
def test_forms(message: dict[str, Any], text: str) -> None:
    """Content as text and as parts."""
    assert read_beginning(json.dumps(message).encode()) == text


@settings(deadline=None)
@given(st.text(), st.booleans(), st.data())
def test_a_cut_reads_as_far_as_it_goes(text: str, ascii_only: bool, data: st.DataObject) -> None:
    """Wherever the bytes end, also in the middle of a character or an escape, what is read is the
    beginning of the text."""
    raw = json.dumps({"role": "system", "content": text}, ensure_ascii=ascii_only).encode(
        "utf-8", "surrogatepass"
    )
    clean = text.encode("utf-8", "ignore").decode()
    assert read_beginning(raw) == clean
    assert clean.startswith(read_beginning(raw[: data.draw(st.integers(0, len(raw)))]))


@given(st.binary(max_size=200))
def test_nothing_raises(raw: bytes) -> None:
    """Whatever the bytes."""
    read_beginning(b'{"content":"' + raw)


def test_little_is_kept() -> None:
    """A few kilobytes of all instructions together, copied out of the body they stand in."""
    body = b"x" * 5_000
    assert sum(map(len, cut_beginning([body, body]))) == MAX_BEGINNING_BYTES
    assert cut_beginning([b"a", b"b"]) == (b"a", b"b")
    assert cut_beginning([body])[0] is not body
