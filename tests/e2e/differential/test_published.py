"""What is documented is sent, and what is refused is refused by both schemas: the one by hand and
the one of the SDK."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import orjson
import pytest

from tests.e2e.differential.chats import members, messages, streams
from tests.e2e.differential.documented import documented, sent
from tests.e2e.differential.published import (
    REQUEST,
    against_reference,
    against_sdk,
    generated,
    refused,
)

CORPUS = [*members(), *messages(), *streams()]
# Of the corpus: documented nowhere, or by others, so that a strict server may refuse it.
FOREIGN = ("a part of tomorrow", "thinking blocks", "as a float")


def of_sdk() -> set[str]:
    return documented(generated(stream=False)) | documented(generated(stream=True))


def test_every_documented_member_is_sent() -> None:
    """Of the request, of each role, part and kind of tool, however deep: a new release of the SDK
    fails with what it brings."""
    bodies = [{"model": "m", **json.loads(exchange.body)} for exchange in CORPUS]
    asked = set[str]().union(*map(sent, bodies))
    assert {path for path in of_sdk() if "=" not in path} - asked == set()


def test_every_parameter_of_the_sdk_is_among_them() -> None:
    """By its own annotations, should its schema ever say less."""
    from openai.types.chat import completion_create_params as sdk

    params = (sdk.CompletionCreateParamsNonStreaming, sdk.CompletionCreateParamsStreaming)
    names = set().union(*(param.__required_keys__ | param.__optional_keys__ for param in params))
    assert {"model", "messages", "stream", "moderation", "prompt_cache_options"} <= names
    assert (
        names - {name for exchange in CORPUS for name in json.loads(exchange.body)} - {"model"}
        == set()
    )


def test_both_document_the_same() -> None:
    """Members and fixed values, by their paths: nothing was forgotten by hand, and nothing
    invented."""
    assert documented(REQUEST) ^ of_sdk() == set()


def test_what_is_documented_is_told_by_path() -> None:
    """The comparison itself: alternatives by their role or type, values of fixed sets, and none
    where any text will do."""
    part = {"properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
    schema = {
        "$defs": {"Part": part},
        "properties": {
            "said": {
                "type": "array",
                "items": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "string"}]},
            },
            "model": {"anyOf": [{"type": "string"}, {"enum": ["m"]}]},
            "mode": {"enum": ["a", "b", None]},
        },
    }
    told = {
        "said",
        "said[text].type",
        "said[text].type=text",
        "said[text].text",
        "model",
        "mode",
        "mode=a",
        "mode=b",
    }
    assert documented(schema) == told
    body = {"said": [{"type": "text", "text": "x"}, "y"], "model": "m", "mode": "a", "n": 1}
    assert sent(body) == told - {"mode=b"} | {"said[text].text=x", "said=y", "model=m", "n"}


def test_the_corpus_is_as_published() -> None:
    """No check is stricter than the documentation: it takes what is documented."""
    for exchange in CORPUS:
        if any(word in exchange.name for word in FOREIGN) or b"1e400" in exchange.body:
            continue
        request = {"model": "m", **orjson.loads(exchange.body)}
        assert refused(request) is None, exchange.name


TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "low"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"id": "d", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [TEXT]},
        {"role": "user", "content": [TEXT, IMAGE, AUDIO, FILE], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "tool", "tool_call_id": "d", "content": [TEXT]},
        {"role": "assistant", "content": [TEXT, {"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "b"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"type": "custom", "custom": {"name": "sql"}}],
    "temperature": 0.7,
}  # fmt: skip
MISSING = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """CHAT with another value at a place, or without what stands there."""
    request: Any = deepcopy(CHAT)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at = request
    for step in way:
        at = at[step]
    if value is MISSING:
        del at[last]
    else:
        at[last] = value
    return dict(request)


def test_before_it_is_changed() -> None:
    """It is taken."""
    assert refused(CHAT) is None
    assert refused({**CHAT, "stream": True}) is None


WRONG = [
    *((path, MISSING) for path in [
        "model", "messages", "messages.0.role", "messages.6.role", "messages.0.content", "messages.1.content", "messages.3.content",
        "messages.1.content.0.type", "messages.1.content.0.text", "messages.1.content.1.image_url", "messages.1.content.1.image_url.url",
        "messages.1.content.2.input_audio", "messages.1.content.2.input_audio.data", "messages.1.content.2.input_audio.format",
        "messages.1.content.3.file", "messages.2.tool_calls.0.id", "messages.2.tool_calls.0.type", "messages.2.tool_calls.0.function",
        "messages.2.tool_calls.0.function.name", "messages.2.tool_calls.0.function.arguments", "messages.2.tool_calls.1.custom.input",
        "messages.3.tool_call_id", "messages.5.content.1.refusal", "tools.0.type", "tools.0.function", "tools.0.function.name",
        "tools.1.custom",
    ]),
    *(("messages.6.role", role) for role in ["critic", "User", "tool", "function", "", None, 1, ["user"]]),
    *(("messages.6.content", content) for content in [None, 7, {}, TEXT, ["b"], [[TEXT]], [None], [{}], [{"type": "video", "video": "x"}]]),
    *((f"messages.{n}.content", [IMAGE]) for n in (0, 3, 5)),
    *((f"messages.{n}", wrong) for n in (0, 6) for wrong in ("hi", None, [], {})),
    ("model", None), ("messages", {}), ("messages", "hi"), ("messages", None), ("messages.1.name", 7),
    ("messages.0.content.0.text", None), ("messages.0.content.0.text", ["a"]), ("messages.0.content.0.type", "input_text"),
    ("messages.1.content.1.image_url", "https://h/x.png"), ("messages.1.content.1.image_url.detail", "huge"),
    ("messages.1.content.2.input_audio.format", "ogg"), ("messages.1.content.3.file", "file-1"),
    ("messages.2.tool_calls", {}), ("messages.2.tool_calls", None), ("messages.2.tool_calls.0.type", "tool"),
    ("messages.2.tool_calls.0.function.arguments", {}), ("messages.3.tool_call_id", None),
    ("messages.2.function_call", {"name": "f"}), ("messages.5.audio", {}),
    ("messages.1.content.0.prompt_cache_breakpoint", {"mode": "implicit"}),
    ("tools", {}), ("tools.0.type", "retrieval"), ("tools.1.custom.format", {"type": "xml"}), ("tools.0.function.strict", "yes"),
    ("tool_choice", "maybe"), ("tool_choice", {"type": "function"}),
    ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}),
    ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}), ("stream", "yes"), ("stream_options", []),
    ("temperature", "hot"), ("n", 1.5), ("seed", "1"), ("stop", 7), ("stop", [7]), ("logprobs", 1), ("logit_bias", {"2": 0.5}),
    ("metadata", {"a": 7}), ("modalities", ["video"]), ("moderation", {}),
    ("moderation", {"model": "m", "policy": {"input": {"mode": "off"}}}),
    ("prompt_cache_options", {"mode": "off"}), ("prompt_cache_options", None), ("reasoning_effort", "utmost"), ("service_tier", "best"),
    ("verbosity", "chatty"), ("prediction", {"type": "content"}), ("audio", {"voice": "alloy"}), ("function_call", "f"),
    ("functions", [{}]),
    ("web_search_options", {"user_location": {"type": "exact"}}), ("parallel_tool_calls", None), ("user", 7),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_both_refuse(path: str, value: Any) -> None:
    """Each by itself: a wrong role, part, kind or type, and whatever is missing, wherever it
    stands."""
    request = changed(path, value)
    top = "$" if value is MISSING else f"$.{path.partition('.')[0]}"
    for why in (against_reference(request), against_sdk(request)):
        assert why is not None
        assert why.startswith(top)


@pytest.mark.parametrize("value", ["hi", None, 7, [], [CHAT]])
def test_both_refuse_what_is_no_request(value: Any) -> None:
    """A body has to be an object."""
    assert against_reference(value)
    assert against_sdk(value)


BY_HAND = [  # for ranges and lengths the SDK has no types
    ("messages", []), ("messages.1.content", []), ("messages.5.content", MISSING), ("temperature", 3), ("top_p", 1.1),
    ("frequency_penalty", -2.1), ("n", 0), ("n", 129), ("top_logprobs", 21), ("seed", 2**63), ("logit_bias", {"2": 101}),
    ("stop", list("abcde")), ("metadata", {str(n): "" for n in range(17)}), ("metadata", {"k": "v" * 513}),
    ("tools.0.function.name", "a name"), ("tools.0.function.name", "f" * 65), ("functions", []),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BY_HAND)
def test_what_only_the_one_by_hand_refuses(path: str, value: Any) -> None:
    """That is why it is kept; a row that the SDK's types come to refuse belongs to those above."""
    request = changed(path, value)
    assert against_reference(request)
    assert against_sdk(request) is None
    assert refused(request) == against_reference(request)


USER = {"role": "user", "content": "hi"}
ASKED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "1"}


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ([RESULT], "$.messages[0]"),
        ([ASKED, USER], "$.messages[1]"),
        ([ASKED, RESULT, RESULT], "$.messages[2]"),
        ([ASKED], "at the end"),
    ],
)
def test_the_order_that_no_schema_says(said: list[Any], place: str) -> None:
    """Calls and their results."""
    request = {"model": "m", "messages": said}
    assert (against_reference(request), against_sdk(request)) == (None, None)
    assert str(refused(request)).startswith(place)
