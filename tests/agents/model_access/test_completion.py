"""A memory model's chat completion, and bodies that are none."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.agents.model_access.completion import read_answer, read_completion
from om_proxy.agents.model_access.llm import Answer
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong


def completion(message: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        **more,
    }


def read(parsed: Any) -> Answer:
    return read_answer(orjson.dumps(parsed), "m", {}, 0.0)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "hello"}, "hello"),
        ({"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}, "hello"),
        ({"content": None, "refusal": "I will not"}, "I will not"),
        ({"content": None}, ""),
        ({"content": [None, 3]}, ""),
        ({"content": [{"text": 3}, {"text": None}, {"text": "x"}]}, "x"),
        ({"content": [{"text": [{"text": "no part of ours"}]}]}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_text(message: Any, text: str) -> None:
    """The text comes from a string, parts or a refusal, or is empty; the parser of notes judges
    it."""
    assert read(completion(message)).text == text


def nested(before: str, after: str, levels: int) -> bytes:
    """Return JSON of so many levels that orjson reads it and cannot write it."""
    return (before * levels + '"x"' + after * levels).encode()


def test_parts_without_end() -> None:
    """Hundreds of nested parts give no text and no error."""
    body = b'{"choices":[{"message":{"content":' + nested('[{"text":', "}]", 400) + b"}}]}"
    assert read_answer(body, "m", {}, 0.0).text == ""


@pytest.mark.parametrize("where", ["message", "code", "param", "type"])
def test_an_error_without_end(where: str) -> None:
    """An error of hundreds of levels is an error like any other."""
    body = b'{"error":{"type":"odd","' + where.encode() + b'":' + nested("[", "]", 1_015) + b"}}"
    with pytest.raises(ModelBusy):
        read_answer(body, "m", {}, 0.0)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, 0)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            (9, 2, 4),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5}, (9, 2, 5)),
        (
            {"prompt_tokens": None, "completion_tokens": "2", "prompt_tokens_details": None},
            (0, 0, 0),
        ),
        (None, (0, 0, 0)),
    ],
)
def test_usage(usage: Any, counts: tuple[int, int, int]) -> None:
    """The usage is what the server reports, else 0."""
    answer = read(completion({"content": "x"}, usage=usage))
    assert (
        answer.usage.input_tokens,
        answer.usage.output_tokens,
        answer.usage.cached_tokens,
    ) == counts


def test_model() -> None:
    """The model has the server's name for it, else the requested one."""
    assert read(completion({"content": "x"})).model == "m-1"
    assert read(completion({"content": "x"}, model=None)).model == "m"


def test_half_characters() -> None:
    """litellm lets them through; no prompt can hold them."""
    choice = {"message": {"content": "a\ud800b"}}
    answer = read_completion({"choices": [choice], "model": "m\ud800"}, "m")
    assert (answer.text, answer.model) == ("a\ufffdb", "m\ufffd")


@pytest.mark.parametrize(
    "body", [b"", b"<html>busy</html>", b'{"choices":[{"mess', b"[]", b"null", b'{"choices":[]}']
)
def test_no_completion(body: bytes) -> None:
    """A gateway's page or half a body is worth another try."""
    with pytest.raises(ModelBusy):
        read_answer(body, "m", {}, 0.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, ModelBusy),
        ({"code": 400, "message": "maximum context length"}, PromptTooLong),
        ({"code": 402, "message": "no credit"}, ModelError),
        ({"code": "odd", "message": "broken"}, ModelBusy),
    ],
)
def test_an_error_wrapped_in_a_200(error: dict[str, Any], kind: type[ModelError]) -> None:
    """Some routers wrap an error in a 200; it is raised."""
    with pytest.raises(ModelError) as raised:
        read({"error": error})
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ({"finish_reason": "stop"}, "stop"),
        ({"finish_reason": "length"}, "cut"),
        ({"finish_reason": None}, "unknown"),
        ({}, "unknown"),
        (
            {"finish_reason": "stop", "provider_specific_fields": {"native_finish_reason": "SPII"}},
            "cut",
        ),
        (
            {
                "finish_reason": "stop",
                "provider_specific_fields": {"native_finish_reason": "new_word"},
            },
            "unknown",
        ),
        (
            {
                "finish_reason": "stop",
                "provider_specific_fields": {"native_finish_reason": "end_turn"},
            },
            "stop",
        ),
        (
            {
                "finish_reason": "length",
                "provider_specific_fields": {"native_finish_reason": "stop"},
            },
            "cut",
        ),
    ],
)
def test_how_it_ended(choice: dict[str, Any], finish: str) -> None:
    """The finish is the server's. litellm says `stop` for every unknown word, and keeps the word
    beside it."""
    message = {"role": "assistant", "content": "noted"}
    assert read_completion({"choices": [{"message": message, **choice}]}, "m").finish == finish


@pytest.mark.parametrize("body", [b'{"choices": [{"mess', b" {"])
def test_half_a_completion(body: bytes) -> None:
    """Half a JSON answer was cut off; a gateway's page was not."""
    with pytest.raises(BrokenAnswer):
        read_answer(body, "m", {}, 0.0)
    with pytest.raises(ModelBusy) as raised:
        read_answer(b"<html>", "m", {}, 0.0)
    assert type(raised.value) is ModelBusy
