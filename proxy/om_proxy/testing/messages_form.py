"""The Messages API, as the scripted model server speaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from om_proxy.testing.chat_form import Message, Stream, Turn, encode_event, split_text

REQUEST_NAME = "messages request"

# this API's types of the errors that have another name in chat; all others are `api_error`
ERROR_TYPES = {
    "invalid_request_error": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "not_found": "not_found_error",
    "rate_limit_exceeded": "rate_limit_error",
    "overloaded": "overloaded_error",
}


def read_messages(request: Message) -> list[Message]:
    system = request.get("system")
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *(read for sent in request["messages"] for read in _read_message(sent))]


def _read_message(message: Message) -> Iterator[Message]:
    """Yield the results of a message, then the message with its other blocks."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    for block in content:
        if block["type"] == "tool_result":
            result = block.get("content") or ""
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}
    calls = [_read_call(block) for block in content if block["type"] == "tool_use"]
    others = [_drop_mark(b) for b in content if b["type"] not in ("tool_result", "tool_use")]
    if others or calls:
        called = {"tool_calls": calls} if calls else {}
        yield {"role": role, "content": others or None, **called}


def _read_call(block: Message) -> Message:
    arguments = orjson.dumps(block["input"]).decode()
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _drop_mark(block: Message) -> Message:
    # where a cached prefix ends is no part of it
    return {name: value for name, value in block.items() if name != "cache_control"}


def build_reply(turn: Turn) -> dict[str, Any]:
    return {
        **_build_head(turn),
        "content": _list_blocks(turn.answer),
        "stop_reason": _stop_reason(turn.answer),
        "usage": _build_usage(turn, turn.completion_tokens),
    }


def build_stream(turn: Turn) -> Stream:
    start = {**_build_head(turn), "usage": _build_usage(turn, 1)}
    events = [_encode("message_start", message=start)]
    for index, block in enumerate(_list_blocks(turn.answer)):
        events += _list_block_events(index, block)
    events.insert(2, _encode("ping"))  # behind the first block's beginning
    delta = {"stop_reason": _stop_reason(turn.answer), "stop_sequence": None}
    usage = _build_usage(turn, turn.completion_tokens)
    return Stream(
        events, [_encode("message_delta", delta=delta, usage=usage), _encode("message_stop")]
    )


def build_error(message: str, code: str) -> dict[str, Any]:
    error = {"type": ERROR_TYPES.get(code, "api_error"), "message": message}
    return {"type": "error", "error": error, "request_id": "scripted"}


def _build_head(turn: Turn) -> dict[str, Any]:
    return {
        "id": f"msg_{turn.number}",
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _build_usage(turn: Turn, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": turn.prompt_tokens - turn.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.cached_tokens,
        "output_tokens": output_tokens,
    }


def _stop_reason(answer: Message) -> str:
    return "tool_use" if answer.get("tool_calls") else "end_turn"


def _list_blocks(answer: Message) -> list[dict[str, Any]]:
    """List the blocks of an answer: its text, then its calls. Without either, there is none."""
    text = answer.get("content")
    return [
        *([{"type": "text", "text": text}] if text else ()),
        *(_build_call(call) for call in answer.get("tool_calls") or ()),
    ]


def _build_call(call: Message) -> dict[str, Any]:
    function: Mapping[str, Any] = call["function"]
    given = orjson.loads(function["arguments"])
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def _list_block_events(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    if block["type"] == "text":
        begun, kind, member, whole = {**block, "text": ""}, "text_delta", "text", block["text"]
    else:
        begun, kind, member = {**block, "input": {}}, "input_json_delta", "partial_json"
        whole = orjson.dumps(block["input"]).decode()
    yield _encode("content_block_start", index=index, content_block=begun)
    for piece in split_text(whole):
        yield _encode("content_block_delta", index=index, delta={"type": kind, member: piece})
    yield _encode("content_block_stop", index=index)


def _encode(name: str, **members: Any) -> bytes:
    return encode_event({"type": name, **members}, name)
