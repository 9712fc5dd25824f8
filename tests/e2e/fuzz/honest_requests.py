"""Requests as clients send them, as values that can be bent, and as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

Header = tuple[bytes, bytes]
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    method: bytes = b"POST"
    target: bytes = b"/v1/chat/completions"
    headers: tuple[Header, ...] = ()
    body: bytes = b""
    json: Json | None = None  # what the body is made of, if it is
    chunks: int = 0  # pieces the body is sent in; 0: its length is announced
    version: bytes = b"HTTP/1.1"

    def with_json(self, json: Any) -> Request:
        """A value that no JSON can hold leaves the body as it was."""
        try:
            return replace(
                self, json=json if isinstance(json, dict) else None, body=orjson.dumps(json)
            )
        except (TypeError, orjson.JSONEncodeError):
            return self

    def written(self) -> bytes:
        framing: tuple[Header, ...] = ()
        body = self.body
        if self.chunks:
            framing, body = ((b"Transfer-Encoding", b"chunked"),), chunked(self.body, self.chunks)
        elif self.body or self.method in (b"POST", b"PUT"):
            framing = ((b"Content-Length", b"%d" % len(self.body)),)
        lines = [name + b": " + value for name, value in (*self.headers, *framing)]
        return b"\r\n".join(
            [b" ".join((self.method, self.target, self.version)), *lines, b"", body]
        )


def chunked(body: bytes, pieces: int) -> bytes:
    size = max(1, len(body) // pieces)
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


CLIENT: tuple[Header, ...] = (
    (b"Host", b"127.0.0.1:8400"),
    (b"Accept", b"application/json"),
    (b"Content-Type", b"application/json"),
    (b"User-Agent", b"OpenAI/Python 2.54.0"),
    (b"X-Stainless-Lang", b"python"),
    (b"x-stainless-retry-count", b"0"),
    (b"Authorization", b"Bearer sk-fuzz"),
)
LOOK_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "dock"}'},
}
LONG = "the dock takes no van above 2.85 m, said the foreman on Monday; " * 30


@dataclass
class Talk:
    """Turns of a conversation."""

    messages: list[Json] = field(default_factory=list)

    def say(self, role: str, content: Any, **more: Any) -> Talk:
        return Talk([*self.messages, {"role": role, "content": content, **more}])


PLAIN = Talk().say("system", "Be brief.").say("user", "Which vans fit?")
LATER = (
    PLAIN.say("assistant", "Those below 2.85 m.")
    .say("user", LONG)
    .say("assistant", "Noted.")
    .say("user", "And on Tuesday?")
)
TOOLS = (
    PLAIN.say("assistant", None, tool_calls=[CALL])
    .say("tool", "2.85 m", tool_call_id="call_1")
    .say("user", "Thanks")
)
PARTS = PLAIN.say(
    "user",
    [
        {"type": "text", "text": "What is this?"},
        {
            "type": "image_url",
            "image_url": {
                "url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
            },
        },
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        },
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ],
)


def chat(talk: Talk, *headers: Header, chunks: int = 0, **members: Any) -> Request:
    made = Request(headers=(*CLIENT, *headers), chunks=chunks)
    return made.with_json({"model": "gpt-4o", "messages": talk.messages, **members})


def thread(name: bytes, *more: Header) -> tuple[Header, ...]:
    return ((b"X-OM-Thread", name), *more)


MULTIPART = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; '
    b'name="file"; filename="a.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n{"a": 1}\r\n--b--\r\n'
)
HONEST_REQUESTS: tuple[Request, ...] = (
    chat(PLAIN),
    chat(PLAIN, *thread(b"a")),
    chat(LATER, *thread(b"a"), stream=True, stream_options={"include_usage": True}),
    chat(LATER, *thread(b"b", (b"X-OM-Resource", b"user-1")), temperature=0.5, n=2, logprobs=True),
    chat(TOOLS, *thread(b"c"), tools=[LOOK_TOOL], tool_choice="auto", parallel_tool_calls=True),
    chat(PARTS, *thread(b"d"), max_tokens=100, chunks=3),
    chat(LATER, *thread(b"e", (b"X-OM-History", b"new")), stream=True),
    chat(LATER, *thread(b"e", (b"X-OM-Mode", b"read"), (b"X-OM-Timezone", b"Europe/Berlin"))),
    chat(LATER, *thread(b"f", (b"X-OM-Scope", b"resource"), (b"X-OM-Resource", b"user-2"))),
    Request(b"GET", b"/v1/models", CLIENT),
    Request(b"HEAD", b"/v1/models", CLIENT),
    Request(b"OPTIONS", b"/v1/chat/completions", CLIENT),
    Request(b"DELETE", b"/v1/files/file-1?purpose=batch", CLIENT),
    Request(target=b"/v1/embeddings", headers=CLIENT).with_json(
        {"model": "text-embedding-3-small", "input": ["a", "b"]}
    ),
    Request(
        target=b"/v1/files",
        headers=((b"Host", b"h"), (b"Content-Type", b"multipart/form-data; boundary=b")),
        body=MULTIPART,
    ),
    Request(b"GET", b"/healthz", CLIENT),
)
