"""Memory models are asked in the words of responses."""

from __future__ import annotations

import json

import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.responses.questions import Answer, read_answer, write_question
from om_proxy.wire.apis.responses.responses_api import RESPONSES


def test_a_question_is_not_kept_by_its_server() -> None:
    body = write_question("m", "be brief", ["one", {"type": "text", "text": "two"}], 99)
    assert body == {
        "model": "m",
        "instructions": "be brief",
        "input": "one\ntwo",
        "store": False,
        "max_output_tokens": 99,
    }
    assert "max_output_tokens" not in write_question("m", "", ["one"], None)


def test_a_question_may_show_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = write_question("m", "be brief", ["look", picture], 99)
    request = RESPONSES.parse_request(json.dumps(body).encode())
    assert RESPONSES.has_pictures(request.body)
    assert RESPONSES.asking_text(request.messages[0]) == "look"


def message(*texts: str) -> dict[str, object]:
    content = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (
            {
                "status": "completed",
                "output": [{"type": "reasoning"}, message("a", "b"), message("c")],
            },
            Answer("abc", False, None),
        ),
        ({"status": "incomplete", "output": [message("a")]}, Answer("a", True, None)),
        (
            {"output_text": "a", "usage": {"input_tokens": 5, "output_tokens": 2}},
            Answer("a", False, Usage(5, 0, 0, 2)),
        ),
        ({"output": []}, Answer("", False, None)),
    ],
)
def test_an_answer_is_read(response: dict[str, object], answer: Answer) -> None:
    assert read_answer(json.dumps(response).encode()) == answer


@pytest.mark.parametrize("body", [b"", b"[]", b'{"output":7}', b"<html>"])
def test_no_answer(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expected|truncated"):
        read_answer(body)
