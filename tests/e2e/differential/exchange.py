"""One exchange as data: what a client sends, what the model server answers, and how both look on
the wire."""

from __future__ import annotations

from dataclasses import dataclass, replace

from om_proxy.app.router import TURN_PATHS
from tests.support.upstream_server import Call, Script, chunk

JSON = b"Content-Type: application/json"
BASE = "/v1"  # of the model server; a client's base URL may have it or not


@dataclass(frozen=True)
class Answer:
    """The bytes of an answer, in packets of `packet` bytes (0: one), and what becomes of the
    connection after it."""

    wire: bytes
    packet: int = 0
    closes: bool = False

    def script(self) -> Script:
        async def script(call: Call) -> None:
            if self.packet:
                await call.send_slowly(self.wire, self.packet)
            else:
                call.send(self.wire)
            if self.closes:
                call.close()

        return script


def answer(body: bytes = b"{}", *headers: bytes, status: bytes = b"200 OK") -> Answer:
    """One whole answer, its length announced."""
    return Answer(
        b"\r\n".join(
            (b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body)
        )
    )


def chunked(
    *pieces: bytes, headers: tuple[bytes, ...] = (JSON,), packet: int = 0, status: bytes = b"200 OK"
) -> Answer:
    """One whole answer of unknown length."""
    head = b"\r\n".join((b"HTTP/1.1 " + status, *headers, b"Transfer-Encoding: chunked", b"", b""))
    return Answer(head + b"".join(map(chunk, (*filter(None, pieces), b""))), packet)


def stream(*pieces: bytes, packet: int = 0) -> Answer:
    """Server-sent events, each piece a chunk of the body."""
    return chunked(
        *pieces, headers=(b"Content-Type: text/event-stream; charset=utf-8",), packet=packet
    )


COMPLETION = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"h\\u00e9 \xe2\x82\xac","refusal":null}}],"usage":{"prompt_tokens":3,"total_tokens":5}}\n'
)
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    # cut within a character
    b'data: {"choices":[{"index":0,"delta":{"content":"f\xc3\xbcnf \xe2\x82',
    b'\xac"}}]}\n\ndata: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
COMPLETED = answer(COMPLETION, JSON)
STREAMED = stream(*EVENTS, packet=97)


@dataclass(frozen=True)
class Exchange:
    """`pieces`: the body goes out chunked, cut so; else its length is announced, unless there is
    none and `bare` says so."""

    name: str
    method: str = "POST"
    target: str = "/v1/chat/completions"
    headers: tuple[bytes, ...] = (JSON,)
    body: bytes = b""
    pieces: tuple[bytes, ...] | None = None
    bare: bool = False
    answer: Answer = COMPLETED

    def named(self, name: str) -> Exchange:
        return replace(self, name=name)

    def with_headers(self, *headers: bytes) -> Exchange:
        return replace(self, headers=(*self.headers, *headers))

    @property
    def direct_target(self) -> str:
        """Where the same client would send this to if the model server's own base URL were its
        own."""
        return (
            self.target
            if self.target == BASE or self.target.startswith(f"{BASE}/")
            else f"{BASE}{self.target}"
        )

    @property
    def payload(self) -> bytes:
        return self.body if self.pieces is None else b"".join(self.pieces)

    @property
    def is_turn(self) -> bool:
        """Whether it goes the intercepted way."""
        path = self.target.partition("?")[0].encode("latin-1")
        return self.method == "POST" and path in TURN_PATHS

    def wire(self, host: bytes, target: str) -> bytes:
        """The request's bytes."""
        line = f"{self.method} {target} HTTP/1.1".encode("latin-1")
        return (
            b"\r\n".join((line, b"Host: " + host, *self.headers, *self._framing(), b"", b""))
            + self._framed()
        )

    def _framing(self) -> tuple[bytes, ...]:
        if self.pieces is not None:
            return (b"Transfer-Encoding: chunked",)
        return () if self.bare else (b"Content-Length: %d" % len(self.body),)

    def _framed(self) -> bytes:
        return (
            self.body
            if self.pieces is None
            else b"".join(map(chunk, (*filter(None, self.pieces), b"")))
        )
