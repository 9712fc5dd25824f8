"""Memory models are asked in the words of responses."""

from __future__ import annotations

import json

from om_proxy.wire.apis.responses.responses_api import RESPONSES
from om_proxy.wire.apis.responses.writing import write_question

SYSTEM = {"role": "system", "content": "be brief"}


def test_a_question_is_not_kept_by_its_server() -> None:
    question = {
        "model": "m",
        "messages": [SYSTEM, {"role": "user", "content": "one"}],
        "temperature": 0.3,
        "max_tokens": 99,
        "reasoning_effort": "low",
    }
    assert write_question(question) == {
        "model": "m",
        "instructions": "be brief",
        "input": "one",
        "store": False,
        "max_output_tokens": 99,
        "reasoning": {"effort": "low"},
        "temperature": 0.3,
    }


def test_a_question_without_more() -> None:
    question = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    assert write_question(question) == {"model": "m", "input": "one", "store": False}


def test_a_question_may_show_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "look"}, picture]
    body = write_question({"model": "m", "messages": [{"role": "user", "content": content}]})
    request = RESPONSES.parse_request(json.dumps(body).encode())
    assert RESPONSES.has_pictures(request.body)
    assert RESPONSES.asking_text(request.messages[0]) == "look"
