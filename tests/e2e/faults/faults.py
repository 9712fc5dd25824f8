"""The 46 ways in which a model server fails, as data: what goes over the wire, and with that what
must arrive.

29 befall whole answers and streams alike, 17 only streams: 75 cells, each for the actor, the
observer and the reflector.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import orjson

from tests.support.upstream_server import Call, Script, chunk

JSON = b"Content-Type: application/json"
HTML = b"Content-Type: text/html"
EVENTS = b"Content-Type: text/event-stream"
DONE = b"data: [DONE]\n\n"

Ours = tuple[
    int, ...
]  # the statuses that are ours to answer; which of them, where it is the system's to say how it fails
Place = Literal["server", "refused", "nowhere", "untrusted", "full"]
Stored = Literal["nothing", "question", "reply"]


@dataclass(frozen=True, slots=True)
class Content:
    """What the server would have said were it well: a text, as a stream or whole."""

    text: str
    stream: bool

    @property
    def completion(self) -> bytes:
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return orjson.dumps({"object": "chat.completion", "choices": [choice]})

    @property
    def events(self) -> list[bytes]:
        """Without the last, `[DONE]`."""
        half = len(self.text) // 2
        said = (
            event({"role": "assistant", "content": ""}),
            *map(spoken, (self.text[:half], self.text[half:])),
        )
        return [*said, event({}, "stop")]

    @property
    def body(self) -> bytes:
        return b"".join([*self.events, DONE]) if self.stream else self.completion

    @property
    def type(self) -> bytes:
        return EVENTS if self.stream else JSON


def event(delta: dict[str, object], reason: str | None = None) -> bytes:
    return b"data: %s\n\n" % orjson.dumps(
        {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    )


def spoken(text: str) -> bytes:
    return event({"content": text})


@dataclass(frozen=True, slots=True)
class Wire:
    """An answer as the server sends it."""

    body: bytes
    headers: tuple[bytes, ...] = (JSON,)
    status: bytes = b"200 OK"
    before: bytes = b""  # ahead of its head
    length: int | None = None  # as announced; None: in chunks
    piece: int = 1 << 16  # bytes sent at once
    end: Literal["whole", "closed", "reset", "silence"] = "whole"

    @property
    def arrives(self) -> bytes:
        return self.body[: self.length]

    @property
    def whole(self) -> bool:
        return self.end == "whole" and (self.length is None or self.length <= len(self.body))

    async def send(self, call: Call) -> None:
        framing = (
            b"Transfer-Encoding: chunked"
            if self.length is None
            else b"Content-Length: %d" % self.length
        )
        call.send(
            b"\r\n".join(
                [self.before + b"HTTP/1.1 " + self.status, *self.headers, framing, b"", b""]
            )
        )
        for start in range(0, len(self.body), self.piece):
            piece = self.body[start : start + self.piece]
            call.send(chunk(piece) if self.length is None else piece)
            await call.drained()
            await asyncio.sleep(0)
        await self._end(call)

    async def _end(self, call: Call) -> None:
        if self.whole and self.length is None:
            call.send(chunk(b""))
        elif self.end == "closed" or (self.end == "whole" and not self.whole):
            call.close()
        elif self.end == "silence":
            await call.closed.wait()
        elif self.end == "reset":
            for _ in range(
                5
            ):  # the other side runs in this very loop: it has read what was sent by then
                await asyncio.sleep(0)
            call.reset()


def well(content: Content) -> Wire:
    return Wire(content.body, (content.type,), length=None if content.stream else len(content.body))


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    wire: Callable[[Content], Wire] | Script | None  # None: nobody is there to answer
    ours: Ours = ()  # not empty: there is no answer that could be passed on
    hangs: bool = False  # or may: it takes as long as the limit
    streams_only: bool = False
    place: Place = "server"
    stored: Stored = "question"  # what the thread holds after the actor's answer
    # as a stream: the client saw `[DONE]`, so the reply is held, whatever came behind it
    acknowledged: bool = False
    harmless: bool = False  # a memory model's answer is usable all the same

    def __str__(self) -> str:
        return self.name


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────


async def silent(call: Call) -> None:
    await call.closed.wait()


async def trickle(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not call.closed.is_set():
        call.send(b"x")
        await asyncio.sleep(0.1)


# ── whole answers and streams alike ───────────────────────────────────────────────────────────────


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Callable[[Content], Wire]:
    return lambda _: Wire(body, headers or (JSON,), status, length=len(body))


def refusal(
    status: bytes, code: str, *headers: bytes, message: str = "No."
) -> Callable[[Content], Wire]:
    error = {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    }
    return plain(orjson.dumps(error), JSON, b"X-Request-Id: req-1", *headers, status=status)


def changed(**changes: object) -> Callable[[Content], Wire]:
    """The answer of a server that is well, but for this."""
    return lambda content: _with(well(content), **changes)


def _with(wire: Wire, **changes: object) -> Wire:
    return Wire(**{name: getattr(wire, name) for name in Wire.__slots__} | changes)


def truncated(content: Content) -> Wire:
    body = content.body[: len(content.body) * 2 // 3]
    return _with(well(content), body=body, length=len(body))


def announced(share: float) -> Callable[[Content], Wire]:
    return lambda content: _with(well(content), length=int(len(content.body) * share))


def packed(content: Content) -> Wire:
    body = _gzip(content.body)
    return Wire(body, (content.type, b"Content-Encoding: gzip"), length=len(body))


def _gzip(data: bytes) -> bytes:
    compressing = zlib.compressobj(wbits=31)
    return compressing.compress(data) + compressing.flush()


@cache
def bomb() -> bytes:
    """A megabyte that unpacks to one gigabyte: after a full flush, what was packed once can stand
    there any number of times."""
    compressing = zlib.compressobj(9, wbits=31)
    head = compressing.compress(b"data: ") + compressing.flush(zlib.Z_FULL_FLUSH)
    zeros = compressing.compress(bytes(1 << 20)) + compressing.flush(zlib.Z_FULL_FLUSH)
    return head + zeros * 1024


def exploding(content: Content) -> Wire:
    return Wire(bomb(), (content.type, b"Content-Encoding: gzip"), length=len(bomb()))


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n" * 1_000
PAGE = b"<html><body><h1>502 Bad Gateway</h1>\x00\xff</body></html>"

# ── streams ───────────────────────────────────────────────────────────────────────────────────────


def stream(*pieces: bytes, **how: object) -> Wire:
    return _with(Wire(b"".join(pieces), (EVENTS,)), **how)


def called(index: object, call_id: str, name: str) -> bytes:
    function = {"name": name, "arguments": "{}"}
    return event(
        {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
    )


ERROR = b'event: error\ndata: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'
LONG = spoken("word " * (2 << 20))  # 10 MB

FAULTS = (
    Fault("refused", None, (502,), place="refused"),
    Fault("name-unknown", None, (502, 504), hangs=True, place="nowhere"),
    Fault("certificate-untrusted", None, (502,), place="untrusted"),
    Fault("connect-hangs", None, (504,), hangs=True, place="full"),
    Fault("no-reply", silent, (504,), hangs=True),
    Fault("head-trickles", trickle, (504,), hangs=True),
    Fault("interim-flood", changed(before=HINTS), stored="reply", harmless=True),
    Fault("empty", plain(b"")),
    Fault("no-json", plain(b"Service is fine, thank you.")),
    Fault("html", plain(PAGE, HTML)),
    Fault("json-truncated", truncated),
    Fault("length-too-short", announced(0.5)),
    Fault("length-too-long", announced(1.5), acknowledged=True),
    Fault(
        "context-length",
        refusal(
            b"400 Bad Request",
            "context_length_exceeded",
            message="maximum context length is 10 tokens",
        ),
        stored="nothing",
    ),
    Fault(
        "401",
        refusal(b"401 Unauthorized", "invalid_api_key", b"WWW-Authenticate: Bearer"),
        stored="nothing",
    ),
    Fault("403", refusal(b"403 Forbidden", "forbidden"), stored="nothing"),
    Fault("404-model", refusal(b"404 Not Found", "model_not_found"), stored="nothing"),
    Fault("408", refusal(b"408 Request Timeout", "timeout")),
    Fault("409", refusal(b"409 Conflict", "conflict")),
    Fault("413", refusal(b"413 Content Too Large", "too_large"), stored="nothing"),
    Fault(
        "429-retry-after",
        refusal(
            b"429 Too Many Requests",
            "rate_limit_exceeded",
            b"Retry-After: 7",
            b"retry-after-ms: 6543",
        ),
    ),
    Fault("429", refusal(b"429 Too Many Requests", "rate_limit_exceeded")),
    Fault("500", refusal(b"500 Internal Server Error", "server_error")),
    Fault("502-html", plain(PAGE, HTML, status=b"502 Bad Gateway")),
    Fault("503", refusal(b"503 Service Unavailable", "overloaded")),
    Fault("529", refusal(b"529 Site is overloaded", "overloaded_error", b"x-should-retry: true")),
    Fault("redirect", plain(b"", b"Location: /v1/elsewhere", status=b"307 Temporary Redirect")),
    Fault("gzip", packed, stored="reply", harmless=True),
    Fault("gzip-bomb", exploding),
    # streams only
    Fault("silent-from-the-start", lambda _: stream(end="silence"), hangs=True, streams_only=True),
    Fault(
        "silent-in-the-middle",
        lambda c: stream(*c.events[:2], end="silence"),
        hangs=True,
        streams_only=True,
    ),
    Fault("reset-in-the-middle", lambda c: stream(*c.events[:2], end="reset"), streams_only=True),
    Fault("closed-in-the-middle", lambda c: stream(*c.events[:2], end="closed"), streams_only=True),
    Fault("no-done", lambda c: stream(*c.events), streams_only=True, stored="reply", harmless=True),
    Fault(
        "two-dones",
        lambda c: stream(*c.events, DONE, DONE),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
    Fault("error-event", lambda c: stream(*c.events[:2], ERROR), streams_only=True),
    Fault(
        "split-characters",
        lambda c: stream(*c.events, DONE, piece=7),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
    Fault(
        "single-bytes",
        lambda c: stream(*c.events, DONE, piece=1),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
    Fault(
        "crlf",
        lambda c: stream(b"".join([*c.events, DONE]).replace(b"\n", b"\r\n"), piece=50),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
    Fault("comments-only", lambda _: stream(b": ping\n\n" * 50, piece=8), streams_only=True),
    Fault(
        "one-line-of-10-MB",
        lambda c: stream(LONG, *c.events[2:], DONE),
        streams_only=True,
        stored="reply",
    ),
    Fault(
        "tool-call-index-null",
        lambda c: stream(called(None, "a", "f"), *c.events[3:], DONE),
        streams_only=True,
        stored="reply",
    ),
    Fault(
        "tool-call-index-twice",
        lambda c: stream(called(0, "a", "f"), called(0, "b", "g"), *c.events[3:], DONE),
        streams_only=True,
        stored="reply",
    ),
    Fault(
        "no-finish-reason",
        lambda c: stream(*c.events[:3], DONE),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
    Fault(
        "content-null",
        lambda c: stream(event({"role": "assistant", "content": None}), *c.events[3:], DONE),
        streams_only=True,
        stored="reply",
    ),
    Fault(
        "garbage-after-done",
        lambda c: stream(*c.events, DONE, b"\x00garbage\r\n"),
        streams_only=True,
        stored="reply",
        harmless=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Cell:
    fault: Fault
    stream: bool

    def __str__(self) -> str:
        return f"{self.fault}-{'stream' if self.stream else 'whole'}"

    def wire(self, content: Content) -> Wire | None:
        """What the server sends, where that is an answer."""
        if self.fault.ours or self.fault.wire is None:
            return None
        made = self.fault.wire(content)  # type: ignore[arg-type] # a fault without an answer of ours has one to send
        assert isinstance(made, Wire)
        return made


CELLS = tuple(
    Cell(fault, stream)
    for fault in FAULTS
    for stream in (False, True)
    if stream or not fault.streams_only
)
