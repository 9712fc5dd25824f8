"""The Responses API, as the scripted model server speaks it. It holds no state: a request must bring
its history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from om_proxy.testing import chat_form
from om_proxy.testing.chat_form import Message, Stream, Turn, encode_event, split_text

REQUEST_NAME = "responses request"

build_error = chat_form.build_error

# members of a response whose values the request may set; what they are where it does not
DEFAULTS: Message = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}

NamedEvent = tuple[str, dict[str, Any]]


def read_messages(request: Message) -> list[Message]:
    sent = request["input"]
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
    instructions = request.get("instructions")
    head = [{"role": "system", "content": instructions}] if instructions else []
    return [*head, *(message for item in items for message in _read_item(item))]


def _read_item(item: Message) -> Iterator[Message]:
    kind = str(item.get("type") or "message")
    if kind == "message":
        yield {"role": item["role"], "content": item["content"]}
    elif kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind.endswith("_output"):
        yield {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}


def build_reply(turn: Turn) -> dict[str, Any]:
    usage = {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": turn.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": turn.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }
    return {**_build_response(turn, "completed"), "output": _list_items(turn), "usage": usage}


def build_stream(turn: Turn) -> Stream:
    begun = _build_response(turn, "in_progress")
    named: list[NamedEvent] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(_list_items(turn)):
        named += _list_item_events(index, item)
    named.append(("response.completed", {"response": build_reply(turn)}))
    events = [
        encode_event({"type": name, "sequence_number": number, **members}, name)
        for number, (name, members) in enumerate(named)
    ]
    return Stream(events[:-1], events[-1:])


def _build_response(turn: Turn, status: str) -> dict[str, Any]:
    sent = {name: turn.request[name] for name in DEFAULTS if turn.request.get(name) is not None}
    return {
        "id": f"resp_{turn.number}",
        "object": "response",
        "created_at": turn.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": turn.model,
        "output": [],
        "usage": None,
        **DEFAULTS,
        **sent,
    }


def _list_items(turn: Turn) -> list[dict[str, Any]]:
    """List the items of the answer: a message if it has a text or no call, then its calls."""
    text, calls = turn.answer.get("content") or "", turn.answer.get("tool_calls") or ()
    part: Message = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    head = {"id": f"msg_{turn.number}", "type": "message", "status": "completed"}
    message = {**head, "role": "assistant", "content": [part]}
    return [
        *([message] if text or not calls else ()),
        *(_build_call(f"fc_{turn.number}_{place}", call) for place, call in enumerate(calls)),
    ]


def _build_call(item_id: str, call: Message) -> dict[str, Any]:
    head = {"id": item_id, "type": "function_call", "status": "completed"}
    return {**head, "call_id": call["id"], **call["function"]}


def _list_item_events(index: int, item: dict[str, Any]) -> Iterator[NamedEvent]:
    """Yield an item's events: it begins empty, grows by pieces, and is repeated whole."""
    place = {"output_index": index}
    at = {"item_id": item["id"], **place}
    begun = {**item, "status": "in_progress"}
    if item["type"] == "message":
        yield "response.output_item.added", {**place, "item": {**begun, "content": []}}
        yield from _list_part_events({**at, "content_index": 0}, item["content"][0])
    else:
        yield "response.output_item.added", {**place, "item": {**begun, "arguments": ""}}
        for piece in split_text(item["arguments"]):
            yield "response.function_call_arguments.delta", {**at, "delta": piece}
        told = {name: item[name] for name in ("name", "arguments")}
        yield "response.function_call_arguments.done", {**at, **told}
    yield "response.output_item.done", {**place, "item": item}


def _list_part_events(at: Message, part: Message) -> Iterator[NamedEvent]:
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in split_text(part["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}
