"""What a memory model is asked by this API."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.messages.writing import DEFAULT_MAX_TOKENS, write_question

SYSTEM = {"role": "system", "content": "observe"}


def test_a_question() -> None:
    """No tools, thoughts, marks or betas: the least that the API takes."""
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    content = [{"type": "text", "text": "hi"}, image]
    question = {
        "model": "m",
        "messages": [SYSTEM, {"role": "user", "content": content}],
        "temperature": 0.3,
        "max_tokens": 500,
        "reasoning_effort": "low",
    }
    written = [
        {"type": "text", "text": "hi"},
        {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
    ]
    assert write_question(question) == {
        "model": "m",
        "system": "observe",
        "messages": [{"role": "user", "content": written}],
        "temperature": 0.3,
        "max_tokens": 500,
    }


@pytest.mark.parametrize(
    ("limits", "limit"),
    [({}, DEFAULT_MAX_TOKENS), ({"max_completion_tokens": 7}, 7), ({"max_tokens": 8}, 8)],
)
def test_the_limit(limits: dict[str, int], limit: int) -> None:
    question = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **limits}
    assert write_question(question) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": limit,
    }
