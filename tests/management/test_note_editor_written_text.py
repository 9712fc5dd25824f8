"""What a person may write as a note."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import BadRequest
from om_proxy.management.note_editor import MAX_NOTE_CHARS, read_written_text


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("* x", "* x"),
        ("\n  * x \n\n", "* x"),
        ("a\0b", "a\0b"),
        ("a\ud800b", "a�b"),
        ("\ud83d\ude00", "😀"),
        ("</observations>\n<observations>", "</observations>\n<observations>"),
        ("```\nfence", "```\nfence"),
        ("x" * MAX_NOTE_CHARS, "x" * MAX_NOTE_CHARS),
    ],
)
async def test_a_text_is_stored_as_it_is(text: str, stored: str) -> None:
    """Only what no store or prompt can hold is replaced."""
    assert await read_written_text(text, redact=True, how_to_remove="withdraw it") == stored


@pytest.mark.parametrize("text", ["", " \n\t", "x" * (MAX_NOTE_CHARS + 1)])
async def test_an_empty_or_too_long_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="20000") as refused:
        await read_written_text(text, redact=True, how_to_remove="withdraw it")
    assert (refused.value.code, refused.value.param) == ("om_bad_text", "text")


async def test_a_secret_is_redacted_unless_the_operator_wants_it() -> None:
    text = f"* the key is ghp_{'a1' * 20}"
    assert "[redacted: GitHub token]" in await read_written_text(
        text, redact=True, how_to_remove="withdraw it"
    )
    assert await read_written_text(text, redact=False, how_to_remove="withdraw it") == text
