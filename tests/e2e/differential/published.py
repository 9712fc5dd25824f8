# ruff: noqa: E501 - a rule of the schema is one line
"""What a model server that holds to OpenAI's published schema refuses of a chat completion request.
Three checks, one after the other:

1. `against_reference`: a schema written by hand after the API reference (`POST /chat/completions`).
It alone holds ranges, lengths, names,
   that lists are not empty and that an assistant says something. Alone, it would be blind to what
   its author forgot.
2. `against_sdk`: the types of the locked openai SDK, which are generated from OpenAI's published
specification: members, their types,
   roles, parts, kinds of tools, required members. It is what the first is held to:
   `test_published.py` compares what both document.
3. `_out_of_order`: rules that no schema says, of calls and their results; by hand, after what the
API answers.

In all of them members that nobody documents are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
from pydantic import TypeAdapter

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "maxLength": 64, "pattern": "^[a-zA-Z0-9_-]+$"}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def obj(required: Sequence[str] = (), **members: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": members}


def kind(name: str, **members: Schema) -> Schema:
    """An object whose `type` is this name, with the member of that name or those given; all are
    required."""
    return obj(("type", *members), type={"const": name}, **members)


def content(*parts: Schema) -> Schema:
    return {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": list(parts)}}]}


def number(low: float, high: float) -> Schema:
    return maybe({"type": "number", "minimum": low, "maximum": high})


def part(name: str, of: Schema) -> Schema:
    """A content part behind which the prompt's cache may be told to end."""
    breakpoint_ = obj(("mode",), mode=one_of("explicit"))
    return obj(
        ("type", name), type={"const": name}, **{name: of}, prompt_cache_breakpoint=breakpoint_
    )


TEXT_PART = part("text", TEXT)
IMAGE_PART = part("image_url", obj(("url",), url=TEXT, detail=one_of("auto", "low", "high")))
AUDIO_PART = part("input_audio", obj(("data", "format"), data=TEXT, format=one_of("wav", "mp3")))
FILE_PART = part("file", obj((), file_id=TEXT, filename=TEXT, file_data=TEXT))
REFUSAL_PART = kind("refusal", refusal=TEXT)

FUNCTION_CALL = obj(("name", "arguments"), name=TEXT, arguments=TEXT)
TOOL_CALL: Schema = {
    "anyOf": [
        obj(("id", "type", "function"), id=TEXT, type={"const": "function"}, function=FUNCTION_CALL),
        obj(("id", "type", "custom"), id=TEXT, type={"const": "custom"}, custom=obj(("name", "input"), name=TEXT, input=TEXT)),
    ]
}  # fmt: skip


def message(role: str, required: Sequence[str] = ("content",), **members: Schema) -> Schema:
    return obj(("role", *required), role={"const": role}, **members)


ASSISTANT = message(
    "assistant",
    (),
    content=maybe(content(TEXT_PART, REFUSAL_PART)),
    refusal=maybe(TEXT),
    name=TEXT,
    audio=maybe(obj(("id",), id=TEXT)),
    tool_calls={"type": "array", "items": TOOL_CALL},
    function_call=maybe(FUNCTION_CALL),
) | {
    "anyOf": [
        {"required": [member]}
        for member in ("content", "tool_calls", "function_call", "audio", "refusal")
    ]
}

MESSAGE: Schema = {
    "oneOf": [
        message("developer", content=content(TEXT_PART), name=TEXT),
        message("system", content=content(TEXT_PART), name=TEXT),
        message("user", content=content(TEXT_PART, IMAGE_PART, AUDIO_PART, FILE_PART), name=TEXT),
        ASSISTANT,
        message("tool", ("content", "tool_call_id"), content=content(TEXT_PART), tool_call_id=TEXT),
        message("function", ("content", "name"), content=maybe(TEXT), name=TEXT),
    ]
}

FUNCTION = obj(("name",), name=NAME, description=TEXT, parameters={"type": "object"})
STRICT_FUNCTION = obj(("name",), **FUNCTION["properties"], strict=maybe({"type": "boolean"}))
GRAMMAR = obj(("syntax", "definition"), syntax=one_of("lark", "regex"), definition=TEXT)
FORMAT: Schema = {"anyOf": [kind("text"), kind("grammar", grammar=GRAMMAR)]}
TOOL_SCHEMA: Schema = {
    "anyOf": [
        kind("function", function=STRICT_FUNCTION),
        kind("custom", custom=obj(("name",), name=TEXT, description=TEXT, format=FORMAT)),
    ]
}
CHOSEN: Schema = {
    "anyOf": [
        kind("function", function=obj(("name",), name=TEXT)),
        kind("custom", custom=obj(("name",), name=TEXT)),
    ]
}
RESPONSE_FORMAT: Schema = {
    "oneOf": [
        kind("text"),
        kind("json_object"),
        kind("json_schema", json_schema=obj(("name",), name=NAME, description=TEXT, schema={"type": "object"}, strict=maybe({"type": "boolean"}))),
    ]
}  # fmt: skip

MODERATED = maybe(obj(("mode",), mode=one_of("score", "block")))
PLACE = kind(
    "approximate", approximate=obj((), city=TEXT, country=TEXT, region=TEXT, timezone=TEXT)
)

REQUEST = obj(
    ("model", "messages"),
    model=TEXT,
    messages={"type": "array", "minItems": 1, "items": MESSAGE},
    audio=maybe(obj(("voice", "format"), voice={"anyOf": [TEXT, obj(("id",), id=TEXT)]}, format=one_of("wav", "aac", "mp3", "flac", "opus", "pcm16"))),
    frequency_penalty=number(-2, 2),
    function_call={"anyOf": [one_of("none", "auto"), obj(("name",), name=TEXT)]},
    functions={"type": "array", "minItems": 1, "maxItems": 128, "items": FUNCTION},
    logit_bias=maybe({"type": "object", "additionalProperties": {"type": "integer", "minimum": -100, "maximum": 100}}),
    logprobs=maybe({"type": "boolean"}),
    max_completion_tokens=maybe({"type": "integer"}),
    max_tokens=maybe({"type": "integer"}),
    metadata=maybe({"type": "object", "maxProperties": 16, "propertyNames": {"maxLength": 64}, "additionalProperties": {"type": "string", "maxLength": 512}}),
    modalities=maybe({"type": "array", "items": one_of("text", "audio")}),
    moderation=maybe(obj(("model",), model=TEXT, policy=maybe(obj((), input=MODERATED, output=MODERATED)))),
    n=maybe({"type": "integer", "minimum": 1, "maximum": 128}),
    parallel_tool_calls={"type": "boolean"},
    prediction=maybe(kind("content", content=content(TEXT_PART))),
    presence_penalty=number(-2, 2),
    prompt_cache_key=maybe(TEXT),
    prompt_cache_options=obj((), mode=one_of("implicit", "explicit"), ttl=one_of("30m")),
    prompt_cache_retention=maybe(one_of("in_memory", "24h")),
    reasoning_effort=maybe(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    response_format=RESPONSE_FORMAT,
    safety_identifier=maybe(TEXT),
    seed=maybe({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    service_tier=maybe(one_of("auto", "default", "flex", "scale", "priority", "fast")),
    stop={"anyOf": [{"type": "null"}, TEXT, {"type": "array", "minItems": 1, "maxItems": 4, "items": TEXT}]},
    store=maybe({"type": "boolean"}),
    stream=maybe({"type": "boolean"}),
    stream_options=maybe(obj((), include_usage={"type": "boolean"}, include_obfuscation={"type": "boolean"})),
    temperature=number(0, 2),
    tool_choice={"anyOf": [one_of("none", "auto", "required"), CHOSEN, kind("allowed_tools", allowed_tools=obj(("mode", "tools"), mode=one_of("auto", "required"), tools={"type": "array", "items": {"type": "object"}}))]},
    tools={"type": "array", "items": TOOL_SCHEMA},
    top_logprobs=maybe({"type": "integer", "minimum": 0, "maximum": 20}),
    top_p=number(0, 1),
    user=TEXT,
    verbosity=maybe(one_of("low", "medium", "high")),
    web_search_options=obj((), search_context_size=one_of("low", "medium", "high"), user_location=maybe(PLACE)),
)  # fmt: skip

_by_hand = jsonschema.Draft202012Validator(REQUEST)


@cache
def generated(stream: bool) -> Schema:
    """The SDK's parameters of a request, streamed or not, as JSON Schema: that is eager where
    pydantic would read `Iterable`s lazily."""
    from openai.types.chat import completion_create_params as sdk  # two seconds, for whoever asks

    params = (
        sdk.CompletionCreateParamsStreaming if stream else sdk.CompletionCreateParamsNonStreaming
    )
    return TypeAdapter(params).json_schema()


@cache
def _of_sdk(stream: bool) -> Any:
    return jsonschema.Draft202012Validator(generated(stream))


def refused(request: Any) -> str | None:
    """Why a model server would answer 400, with the place in the request; None for a request it
    takes."""
    return against_reference(request) or against_sdk(request) or _out_of_order(request["messages"])


def against_reference(request: Any) -> str | None:
    return _first_error(_by_hand, request)


def against_sdk(request: Any) -> str | None:
    return _first_error(
        _of_sdk(isinstance(request, dict) and request.get("stream") is True), request
    )


def _first_error(validator: Any, request: Any) -> str | None:
    error = jsonschema.exceptions.best_match(validator.iter_errors(request))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def _out_of_order(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Results follow their calls at once, and every call has its result before anyone else
    speaks."""
    open_calls: set[str] = set()
    for place, said in enumerate(messages):
        if said["role"] == "tool":
            if said["tool_call_id"] not in open_calls:
                return f"$.messages[{place}]: a result for a call that was not made"
            open_calls.discard(said["tool_call_id"])
            continue
        if open_calls:
            return f"$.messages[{place}]: no result for {', '.join(sorted(open_calls))}"
        open_calls = {call["id"] for call in said.get("tool_calls", ())}
    return f"at the end: no result for {', '.join(sorted(open_calls))}" if open_calls else None
