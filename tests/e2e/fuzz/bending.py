"""Requests bent at random: in their JSON, their headers, their address, their framing, or byte by
byte."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.e2e.fuzz.honest_requests import HONEST_REQUESTS, Header, Request, chunked

# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**53,
        2**63 - 1,
        -(2**63),
        "",
        "0",
        [],
        {},
        [[]],
        [None],
        {"": ""},
        list(range(60)),
    ),
    *(
        "\x00",
        "\ufffd",
        "é" * 50,
        "x" * 5_000,
        "\u202e",
        "🔴 " * 40,
        "<observations>",
        "</observations>",
        "data:,",
    ),
    *("user", "assistant", "system", "developer", "tool", "function"),
    *({"role": "user"}, {"role": "assistant", "tool_calls": [{}]}, {"type": "text"}),
)
KEYS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "audio",
    "messages",
    "model",
    "stream",
    "n",
    "",
    "text",
)
RAW = (  # what no writer of JSON writes
    *(
        b"\\ud83d",
        b"\\udc00\\ud800",
        b"\\u0000",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b'"\n"',
        b"//",
        b"'",
        b",,",
        b"tru",
    ),
    *(
        b"1e999",
        b"-0",
        b"NaN",
        b"1.0E+2",
        b"0" * 30,
        b"9" * 400,
        b"[" * 600,
        b"[" * 3_000,
        b'{"a":' * 1_200,
    ),
    b'"role":"user","role":"system"',
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with every key or index of it."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [
            place for inner in value.values() for place in places(inner)
        ]
    if isinstance(value, list):
        return [(value, at) for at in range(len(value))] + [
            place for inner in value for place in places(inner)
        ]
    return []


def bent_json(request: Request, dice: Random) -> Request:
    json = copy.deepcopy(request.json)
    if json is None:
        return bent_text(request, dice)
    for _ in range(dice.randint(1, 4)):
        if not (found := places(json)):
            break
        inside, at = dice.choice(found)
        match dice.randrange(6):
            case 0 | 1:
                inside[at] = copy.deepcopy(dice.choice(ODD))
            case 2:
                del inside[at]
            case 3 if isinstance(inside, list):
                inside.insert(dice.randint(0, len(inside)), copy.deepcopy(inside[at]))
            case 4 if isinstance(inside, list):
                dice.shuffle(inside)
            case _ if isinstance(inside, dict):
                inside[dice.choice(KEYS)] = copy.deepcopy(dice.choice(ODD))
    return request.with_json(json)


def bent_text(request: Request, dice: Random) -> Request:
    body, at = request.body, dice.randint(0, len(request.body))
    return replace(
        request,
        json=None,
        body=body[:at] + dice.choice(RAW) + body[at + dice.choice((0, 0, 1, 4)) :],
    )


# ── headers, address, framing ─────────────────────────────────────────────────────────────────────

NAMES = (
    *(
        b"X-OM-Thread",
        b"X-OM-Resource",
        b"X-OM-Mode",
        b"X-OM-History",
        b"X-OM-Scope",
        b"X-OM-Task",
        b"X-OM-Timezone",
    ),
    *(
        b"X-OM-Events",
        b"X-OM-Token",
        b"X-OM-Admin",
        b"X_OM_Thread",
        b"x-thread-id",
        b"X-OpenWebUI-Chat-Id",
        b"Authorization",
    ),
    *(
        b"x-api-key",
        b"api-key",
        b"Content-Length",
        b"Host",
        b"Transfer-Encoding",
        b"Connection",
        b"Expect",
        b"Upgrade",
        b"TE",
    ),
    *(
        b"Trailer",
        b"Content-Encoding",
        b"Accept-Encoding",
        b"Content-Type",
        b"Cookie",
        b"Keep-Alive",
    ),
    *(b"Content-Length ", b" Host", b"", b"x" * 300, b"X-\xff", b"A:B"),
)
VALUES = (
    *(
        b"",
        b"a",
        b"t-1",
        b"new",
        b"off",
        b"on",
        b"read",
        b"write",
        b"full",
        b"window",
        b"auto",
        b"resource",
        b"Mars/Olympus",
        b"UTC",
    ),
    *(
        b"{{x}}",
        b"Bearer ",
        b"Bearer sk-other",
        b"Basic eDp5",
        b"0",
        b"-1",
        b"1",
        b"99999999999999999999",
        b"0x10",
        b"1, 1",
    ),
    *(
        b"chunked",
        b"gzip, chunked",
        b"identity",
        b"close",
        b"keep-alive",
        b"upgrade",
        b"Upgrade, HTTP2-Settings",
        b"h2c",
    ),
    *(
        b"websocket",
        b"100-continue",
        b"x-om-thread",
        b"trailers",
        b"\xff\xfe",
        b"\x00",
        b"a\tb",
        b"x" * 300,
        b"y" * 9_000,
    ),
    *(b"a\r\n b", b"a\nb", b"../..", b"caf\xc3\xa9", b"*/*", b"a,b", b'"'),
)
TARGETS = (
    *(
        b"/",
        b"*",
        b"",
        b"h:80",
        b"/v1",
        b"/v1/",
        b"//v1/chat/completions",
        b"/v1/../etc",
        b"/v1/%2e%2e/x",
        b"/v1/chat%2fcompletions",
    ),
    *(
        b"/v1/chat/completions/",
        b"/v1/chat/completions?a=b&a",
        b"/v1/chat/completions#x",
        b"http://other/v1/models",
    ),
    *(
        b"/om/v1/threads",
        b"/om/",
        b"/metrics",
        b"/readyz",
        b"/v1/\xff",
        b"/v1/a b",
        b"/v1/" + b"a" * 3_000,
        b"/v1/responses",
    ),
    *(b"/v1/messages", b"/v1/x%00y", b"/v1/a\\b", b"/chat/completions"),
)
METHODS = (
    b"GET",
    b"HEAD",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"post",
    b"P",
    b"",
    b"PRI",
    b"X" * 40,
)
VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1",
    b"http/1.1",
    b"",
    b"HTTP/1.1 x",
)


def bent_headers(request: Request, dice: Random) -> Request:
    headers: list[Header] = list(request.headers)
    for _ in range(dice.randint(1, 3)):
        at = dice.randint(0, len(headers))
        match dice.randrange(5):
            case 0 | 1:
                headers.insert(at, (dice.choice(NAMES), dice.choice(VALUES)))
            case 2 if headers:
                headers.insert(at, dice.choice(headers))
            case 3 if headers:
                headers.pop(at - 1)
            case _ if headers:
                headers[at - 1] = (headers[at - 1][0], dice.choice(VALUES))
    if dice.random() < 0.02:
        headers += [(b"x-%d" % n, b"v") for n in range(dice.choice((90, 100, 2_000)))]
    return replace(request, headers=tuple(headers))


def bent_line(request: Request, dice: Random) -> Request:
    match dice.randrange(4):
        case 0:
            return replace(request, method=dice.choice(METHODS))
        case 1:
            return replace(request, version=dice.choice(VERSIONS))
        case _:
            return replace(request, target=dice.choice(TARGETS))


SIZES = (
    b"g\r\n",
    b"-1\r\n",
    b"ffffffffffffffff\r\n",
    b"1;x=y\r\na\r\n",
    b"0\r\nx-om-thread: t\r\n\r\n",
    b"00001\r\nz\r\n",
    b"1\nz\n",
)


def bent_framing(written: bytes, request: Request, dice: Random) -> bytes:
    head, _, body = written.partition(b"\r\n\r\n")
    length = b"\r\nContent-Length: %d" % dice.choice((0, 1, len(request.body) + 5))
    pieces, at = chunked(request.body, dice.randint(1, 9)), dice.randint(0, len(request.body))
    return dice.choice(
        (
            head + b"\r\n\r\n" + body[:at],
            head[:at],
            written + dice.choice((b"\r\n", b"x", b"GET / HTTP/1.1\r\n\r\n", written)),
            head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
            head + length + b"\r\n\r\n" + body,
            written.replace(b"\r\n", b"\n"),
            head.partition(b"\r\nContent-Length")[0]
            + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (pieces[:at] + dice.choice(SIZES) + pieces[at:]),
        )
    )


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


def bent_bytes(written: bytes, dice: Random) -> bytes:
    data = bytearray(written)
    for _ in range(dice.randint(1, 6)):
        at = dice.randint(0, max(0, len(data) - 1))
        size = dice.choice((1, 1, 2, 8, 64))
        match dice.randrange(6):
            case 0 if data:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at:at] = dice.randbytes(size)
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size] * dice.randint(1, 9)
            case 4:
                data[at : at + size] = dice.choice(
                    (b"\r\n", b"\x00", b"\n", b": ", b'"', b"{", b"]", b"\xff", b" " * 40)
                )
            case _:
                other = dice.choice(HONEST_REQUESTS).written()
                cut = dice.randint(0, len(other))
                data[at : at + size] = other[cut : cut + dice.randint(1, 200)]
    return bytes(data)


Bending = Callable[[Request, Random], Request]
GRAMMAR: Sequence[Bending] = (
    bent_json,
    bent_json,
    bent_json,
    bent_text,
    bent_headers,
    bent_headers,
    bent_line,
)


def bent(dice: Random, epoch: int = 0) -> bytes:
    """One request as it goes over the wire, bent in one way or several. Each epoch has threads of
    its own."""
    request = dice.choice(HONEST_REQUESTS)
    headers = (
        (name, value + b"-%d" % epoch if name == b"X-OM-Thread" else value)
        for name, value in request.headers
    )
    request = replace(request, headers=tuple(headers))
    if dice.random() < 0.75:
        for _ in range(dice.choice((1, 1, 2))):
            request = dice.choice(GRAMMAR)(request, dice)
    written = request.written()
    chance = dice.random()
    if chance < 0.2:
        return bent_framing(written, request, dice)
    return bent_bytes(written, dice) if chance < 0.5 else written


def pieces(written: bytes, dice: Random) -> list[bytes]:
    """How it is sent: mostly at once, else in packets."""
    if dice.random() < 0.8:
        return [written]
    cuts = sorted(dice.randint(0, len(written)) for _ in range(dice.randint(1, 4)))
    return [
        written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)
    ]
