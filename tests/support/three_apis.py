"""One conversation by three APIs: a client that holds it as chat messages writes each request in the
form of an API, and reads its reply and the prompt that reached the model back as chat messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson

from om_proxy.testing.scripted import FORMS

Api = Literal["chat", "responses", "messages"]
Message = Mapping[str, Any]
Json = dict[str, Any]

APIS: tuple[Api, ...] = ("chat", "responses", "messages")
PATHS: Mapping[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
MAX_REPLY_TOKENS = 512


def write_body(api: Api, messages: Sequence[Message], **more: Any) -> Json:
    """Write a request. The first message may be the system's. `tools`: those of chat."""
    return _WRITERS[api](list(messages), more)


def read_reply(api: Api, content: bytes, *, stream: bool) -> Json:
    """Read a reply as a client does that goes on with it."""
    events = list(_list_events(content)) if stream else [orjson.loads(content)]
    return _READERS[api](events, stream)


def read_prompt(api: Api, body: bytes) -> list[Json]:
    """Read a request that reached the model. What the model said in a row is one message."""
    prompt: list[Json] = []
    for message in FORMS[PATHS[api].removeprefix("/v1")].read_messages(orjson.loads(body)):
        is_step = api == "responses" and message["role"] == "assistant"
        if is_step and prompt and prompt[-1]["role"] == "assistant" and message.get("tool_calls"):
            calls = [*prompt[-1].get("tool_calls", ()), *message["tool_calls"]]
            prompt[-1] = {**prompt[-1], "tool_calls": calls}
        else:
            prompt.append(dict(message))
    return prompt


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def _write_chat(messages: list[Message], more: Json) -> Json:
    return {**more, "messages": messages}


def _write_responses(messages: list[Message], more: Json) -> Json:
    head = _take_system(messages)
    tools = [{"type": "function", "strict": None, **t["function"]} for t in more.pop("tools", ())]
    return {
        **more,
        **({"instructions": head} if head else {}),
        **({"tools": tools} if tools else {}),
        "input": [item for message in messages for item in _list_items(message)],
    }


def _list_items(message: Message) -> Iterator[Json]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = _write_parts(content, RESPONSES_PARTS)
        call_id = message["tool_call_id"]
        yield {"type": "function_call_output", "call_id": call_id, "output": output}
    elif content:
        yield {"role": role, "content": _write_parts(content, RESPONSES_PARTS)}
    for call in message.get("tool_calls") or ():
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _write_messages(messages: list[Message], more: Json) -> Json:
    head = _take_system(messages)
    tools = [
        {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
        for t in more.pop("tools", ())
    ]
    return {
        "max_tokens": MAX_REPLY_TOKENS,
        **more,
        **({"system": head} if head else {}),
        **({"tools": tools} if tools else {}),
        "messages": list(_join_results(messages)),
    }


def _join_results(messages: Iterable[Message]) -> Iterator[Json]:
    """Yield the messages; results that follow each other are one, with the user's text behind."""
    results: list[Json] = []
    for message in messages:
        content = _write_parts(message.get("content"), MESSAGES_PARTS)
        if message["role"] == "tool":
            answered = message["tool_call_id"]
            results.append({"type": "tool_result", "tool_use_id": answered, "content": content})
            continue
        if results and message["role"] == "user":
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            yield {"role": "user", "content": [*results, *blocks]}
        else:
            if results:
                yield {"role": "user", "content": results}
            yield {"role": message["role"], "content": _list_blocks(message, content)}
        results = []
    if results:
        yield {"role": "user", "content": results}


def _list_blocks(message: Message, content: Any) -> Any:
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": orjson.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]
    if not calls:
        return content
    return [*([{"type": "text", "text": content}] if content else ()), *calls]


def _take_system(messages: list[Message]) -> Any:
    """Take the system's message off, and return its text."""
    return messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else None


def _write_parts(content: Any, writers: Mapping[str, Callable[[Message], Json]]) -> Any:
    if content is None or isinstance(content, str):
        return content
    return [writers[part["type"]](part) for part in content]


def _write_source(url: str) -> Json:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": media_type, "data": data}


RESPONSES_PARTS: Mapping[str, Callable[[Message], Json]] = {
    "text": lambda part: {"type": "input_text", "text": part["text"]},
    "image_url": lambda part: {
        "type": "input_image",
        "image_url": part["image_url"]["url"],
        "detail": "auto",
    },
    "file": lambda part: {"type": "input_file", **part["file"]},
}
MESSAGES_PARTS: Mapping[str, Callable[[Message], Json]] = {
    "text": dict,
    "image_url": lambda part: {"type": "image", "source": _write_source(part["image_url"]["url"])},
    "file": lambda part: {
        "type": "document",
        "source": _write_source(part["file"]["file_data"]),
        "title": part["file"]["filename"],
    },
}
_WRITERS: Mapping[Api, Callable[[list[Message], Json], Json]] = {
    "chat": _write_chat,
    "responses": _write_responses,
    "messages": _write_messages,
}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def _list_events(content: bytes) -> Iterator[Json]:
    for line in content.split(b"\n"):
        if line.startswith(b"data: {"):
            yield orjson.loads(line.removeprefix(b"data: "))


def _read_chat(events: list[Json], stream: bool) -> Json:
    if not stream:
        return dict(events[0]["choices"][0]["message"])
    text, calls = "", dict[int, Json]()
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        text += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            call = calls.setdefault(piece["index"], piece)
            if call is not piece:
                call["function"]["arguments"] += piece["function"]["arguments"]
    return _build_reply(
        text, [{k: call[k] for k in ("id", "type", "function")} for call in calls.values()]
    )


def _read_responses(events: list[Json], stream: bool) -> Json:
    response = events[-1]["response"] if stream else events[0]
    assert response["status"] == "completed"
    texts = [i["content"][0]["text"] for i in response["output"] if i["type"] == "message"]
    calls = [i for i in response["output"] if i["type"] == "function_call"]
    return _build_reply(
        "".join(texts), [_build_call(i["call_id"], i["name"], i["arguments"]) for i in calls]
    )


def _read_messages(events: list[Json], stream: bool) -> Json:
    blocks: list[Json] = [] if stream else events[0]["content"]
    for event in events if stream else ():
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[-1]["json"] += delta.get("partial_json", "")
            if "text" in delta:
                blocks[-1]["text"] += delta["text"]
    calls = [
        _build_call(b["id"], b["name"], b.get("json") or orjson.dumps(b["input"]).decode())
        for b in blocks
        if b["type"] == "tool_use"
    ]
    return _build_reply("".join(b["text"] for b in blocks if b["type"] == "text"), calls)


def _build_call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _build_reply(text: str, calls: list[Json]) -> Json:
    called = {"tool_calls": calls} if calls else {}
    return {"role": "assistant", "content": text or None, **called}


_READERS: Mapping[Api, Callable[[list[Json], bool], Json]] = {
    "chat": _read_chat,
    "responses": _read_responses,
    "messages": _read_messages,
}
