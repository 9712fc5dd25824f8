"""What a memory model is asked by this API, and how its answer is read."""

from __future__ import annotations

import msgspec
import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.messages.questions import DEFAULT_MAX_TOKENS, read_answer, write_question


def test_a_question() -> None:
    """No tools, thoughts, marks or betas: the least that the API takes."""
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    body = write_question("m", "observe", [{"type": "text", "text": "hi"}, image], 500)
    assert body == {
        "model": "m",
        "system": "observe",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
                ],
            }
        ],
        "max_tokens": 500,
    }
    assert write_question("m", "s", ["hi"], None)["max_tokens"] == DEFAULT_MAX_TOKENS


@pytest.mark.parametrize(
    ("reason", "is_cut_off"), [("end_turn", False), ("max_tokens", True), ("refusal", False)]
)
def test_an_answer(reason: str, is_cut_off: bool) -> None:
    body = (
        b'{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"},'
        b'{"type":"text","text":"b"}],"stop_reason":"%s",'
        b'"usage":{"input_tokens":3,"output_tokens":2}}' % reason.encode()
    )
    assert read_answer(body) == ("ab", is_cut_off, Usage(3, 0, 0, 2))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"content":"x"}', b'{"content":[1]}'])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_answer(body)
