# ruff: noqa: E501 - a case of a table is one line
"""Answers as model servers give them: every status, header and framing, whole and in streams."""

from __future__ import annotations

import gzip
import zlib

from tests.e2e.differential.exchange import (
    COMPLETION,
    EVENTS,
    JSON,
    Answer,
    Exchange,
    answer,
    chunked,
    stream,
)
from tests.support.upstream_server import chunk

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'

LIMITS = (
    b"x-ratelimit-limit-requests: 10000",
    b"x-ratelimit-limit-tokens: 2000000",
    b"x-ratelimit-remaining-requests: 9999",
    b"x-ratelimit-remaining-tokens: 1999984",
    b"x-ratelimit-reset-requests: 6ms",
    b"x-ratelimit-reset-tokens: 0s",
)
SERVER = (
    b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
    b"Server: cloudflare",
    JSON,
    b"openai-organization: org",
    b"openai-processing-ms: 17",
    b"openai-version: 2020-10-01",
    b"x-request-id: req_1",
    *LIMITS,
    b"Strict-Transport-Security: max-age=31536000; includeSubDomains; preload",
    b"CF-Cache-Status: DYNAMIC",
    b"Set-Cookie: __cf_bm=a; path=/; HttpOnly; SameSite=None",
    b"Set-Cookie: _cfuvid=b; path=/",
    b'alt-svc: h3=":443"; ma=86400',
    b"Vary: Origin",
    b"Vary: Accept-Encoding",
)

STATUSES = [
    200, 201, 202, 203, 206, 207, 226, 299, 300, 301, 302, 303, 305, 307, 308, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411,
    412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 444, 451, 498, 499, 500, 501, 502, 503, 504, 505, 507,
    508, 511, 520, 522, 524, 529, 530, 599,
]  # fmt: skip

ERRORS = [
    ("context_length_exceeded", b"400 Bad Request", b'{"error":{"message":"This model\'s maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}', ()),
    ("invalid key", b"401 Unauthorized", b'{"error":{"message":"Incorrect API key provided: sk-***","code":"invalid_api_key"}}\n', (b'WWW-Authenticate: Bearer realm="x"', b"WWW-Authenticate: Basic")),
    ("rate limit", b"429 Too Many Requests", b'{"error":{"code":"rate_limit_exceeded"}}', (b"Retry-After: 20", b"retry-after-ms: 19500", b"x-should-retry: true", *LIMITS)),
    ("rate limit by date", b"429 Too Many Requests", b"{}", (b"Retry-After: Wed, 21 Oct 2026 07:28:00 GMT",)),
    ("quota", b"429 Too Many Requests", b'{"error":{"code":"insufficient_quota"}}', (b"x-should-retry: false",)),
    ("overloaded", b"529 Overloaded", b'{"type":"error","error":{"type":"overloaded_error"}}', (b"Retry-After: 0",)),
    ("a gateway's page", b"502 Bad Gateway", b"<html>\r\n\x00\xff</html>", (b"Content-Type: text/html",)),
    ("an error of another om-proxy", b"400 Bad Request", b'{"error":{"type":"om_error","code":"om_bad_header"}}', (b"x-should-retry: false",)),
    ("nothing said", b"500 Internal Server Error", b"", ()),
    ("moved", b"308 Permanent Redirect", b"", (b"Location: https://elsewhere.example/v1/chat/completions", b"Refresh: 0; url=/")),
]  # fmt: skip

HEADERS = [
    ("of a model server", SERVER),
    ("none", ()),
    ("empty", (b"X-Empty:", b"X-Blank:   ", b"X-Empty:")),
    ("twice, in both orders", (b"X-A: 1", b"X-B: 1", b"x-a: 2", b"X-b: 0", b"X-A: 1")),
    ("commas and quotes", (b'X-A: a, "b, c" ;d', b"X-B: \t a\tb  c \t")),
    ("UTF-8", (b"X-A: h\xc3\xa9 \xe2\x82\xac",)),
    ("Latin-1", (b"X-A: h\xe9 \xff",)),
    ("odd names", (b"X!#$%&'*+.^_`|~9: 1", b"_: 2", b"9: 3")),
    ("long", (b"Content-Security-Policy: " + b"a" * 30_000, b"X-Next: 1")),
    ("many", tuple(b"X-%d: %d" % (n, n) for n in range(80))),
    ("of the connection", (b"Connection: keep-alive, X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"Proxy-Authenticate: Basic")),
    ("of the connection, twice", (b"Connection: X-Hop", b"Connection: X-Hip", b"x-hop: 1", b"X-HIP: 1", b"X-Stays: 1")),
    ("a trailer announced", (b"Trailer: X-Sum",)),
    ("etags and ranges", (b'ETag: W/"a"', b"Content-Range: bytes 0-1/2", b"Accept-Ranges: bytes", b"Last-Modified: x", b"Age: 1")),
    ("CORS", (b"Access-Control-Allow-Origin: *", b"Access-Control-Expose-Headers: X-Request-ID", b"Access-Control-Allow-Credentials: true")),
    ("a file", (b"Content-Type: application/octet-stream", b"Content-Disposition: attachment; filename*=UTF-8''%e2%82%ac.bin")),
    ("two content types", (b"Content-Type: application/json", b"Content-Type: text/plain")),
]  # fmt: skip


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


FRAMINGS: list[tuple[str, Answer]] = [
    ("a length", answer(COMPLETION, JSON)),
    ("a length of nothing", answer(b"", JSON)),
    ("byte by byte", Answer(answer(COMPLETION, JSON).wire, packet=1)),
    ("one chunk", chunked(COMPLETION)),
    ("chunks", chunked(*(COMPLETION[i : i + 7] for i in range(0, len(COMPLETION), 7)))),
    ("chunks, byte by byte", Answer(chunked(COMPLETION[:50], COMPLETION[50:]).wire, packet=1)),
    ("chunks of nothing", chunked()),
    ("extensions and a trailer", Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0;c\r\nX-Sum: 1\r\n\r\n")),
    ("capital digits", Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n000A\r\n0123456789\r\n00\r\n\r\n")),
    ("until the end", Answer(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + COMPLETION, closes=True)),
    ("until the end, HTTP/1.0", Answer(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + COMPLETION, closes=True)),
    ("a length, HTTP/1.0", Answer(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", closes=True)),
    ("a length, and closed", Answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", closes=True)),
    ("no reason phrase", Answer(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}")),
    ("interim answers", Answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")),
    ("cut short of its length", Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + COMPLETION[:50], closes=True)),
    ("cut between chunks", Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(COMPLETION[:50]), closes=True)),
    ("cut within a chunk", Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n" + COMPLETION[:50], closes=True)),
    ("204", Answer(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n")),
    ("204 with a length", Answer(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")),
    ("205", Answer(b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n")),
    ("304", Answer(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 10\r\n\r\n')),
    ("no JSON", answer(b"oops", JSON)),
    ("binary", answer(bytes(range(256)) * 40, b"Content-Type: audio/mpeg")),
    ("gzip", answer(gzip.compress(COMPLETION, mtime=0), JSON, b"Content-Encoding: gzip")),
    ("gzip in chunks", chunked(*(gzip.compress(COMPLETION * 9, mtime=0)[i : i + 9] for i in range(0, 400, 9)), headers=(JSON, b"Content-Encoding: gzip"))),
    ("deflate", answer(deflated(COMPLETION), JSON, b"Content-Encoding: deflate")),
    ("br", answer(b"\x0b\x02\x80hello\x03", b"Content-Encoding: br")),
    ("zstd", answer(b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00", b"Content-Encoding: zstd")),
    ("gzip that is none", answer(COMPLETION, JSON, b"Content-Encoding: gzip")),
    ("encoded twice", answer(gzip.compress(deflated(COMPLETION), mtime=0), b"Content-Encoding: deflate, gzip")),
    ("n choices", answer(b'{"choices":[{"index":1,"message":{"role":"assistant","content":"b"}},{"index":0,"message":{"role":"assistant","content":"a"}}]}', JSON)),
    ("tool calls", answer(b'{"choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}', JSON)),
    ("a refusal", answer(b'{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":null,"refusal":"no"}}]}', JSON)),
    ("logprobs", answer(b'{"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.0,"bytes":[97],"top_logprobs":[]}],"refusal":null}}]}', JSON)),
    ("audio", answer(b'{"choices":[{"index":0,"message":{"role":"assistant","content":null,"audio":{"id":"a","data":"UklGRg==","expires_at":1,"transcript":"t"}}}]}', JSON)),
    ("an error with 200", answer(b'{"error":{"message":"no","code":500}}', JSON)),
    ("choices null", answer(b'{"choices":null,"usage":1e400}', JSON)),
    ("500 kB", answer(b'{"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"x" * 500_000 + b'"}}]}', JSON)),
]  # fmt: skip

STREAMS: list[tuple[str, Answer]] = [
    ("plain", stream(*EVENTS)),
    ("byte by byte", stream(*EVENTS, packet=1)),
    ("one chunk", stream(b"".join(EVENTS))),
    ("CRLF", stream(*(event.replace(b"\n", b"\r\n") for event in EVENTS))),
    ("CR", stream(*(event.replace(b"\n", b"\r") for event in EVENTS))),
    ("comments", stream(b": keep-alive\n\n", *EVENTS[:1], b":\n\n: \n", *EVENTS[1:])),
    ("events, ids, retry", stream(b"event: message\nid: 7\nretry: 100\n", *EVENTS)),
    ("several data lines", stream(b'data: {"choices":\ndata: []}\n\n', *EVENTS)),
    ("no space after the colon", stream(*(event.replace(b"data: ", b"data:") for event in EVENTS))),
    ("a byte order mark", stream(b"\xef\xbb\xbf", *EVENTS)),
    ("no [DONE]", stream(*EVENTS[:-1])),
    ("two [DONE]", stream(*EVENTS, EVENTS[-1])),
    ("more after [DONE]", stream(*EVENTS, b": late\n\ndata: {}\n\n")),
    ("an error within", stream(EVENTS[0], b'data: {"error":{"message":"overloaded","code":529}}\n\n')),
    ("an error event", stream(EVENTS[0], b'event: error\ndata: {"error":{"message":"x"}}\n\n', EVENTS[-1])),
    ("no JSON", stream(b"data: oops\n\ndata: {\n\n", EVENTS[-1])),
    ("binary", stream(bytes(range(256)), *EVENTS)),
    ("usage last", stream(*EVENTS[:-1], b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', EVENTS[-1])),
    ("two choices", stream(b'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\n\ndata: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', EVENTS[-1])),
    ("tool calls in pieces", stream(b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}]}\n\n', b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}},{"index":null},{"index":7}]}}]}\n\n', EVENTS[-1])),
    ("an event of 500 kB", stream(b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 500_000 + b'"}}]}\n\n', EVENTS[-1])),
    ("nothing", stream()),
    ("a length", answer(b"".join(EVENTS), b"Content-Type: text/event-stream")),
    ("until the end", Answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(EVENTS), closes=True)),
    ("gzip", chunked(gzip.compress(b"".join(EVENTS), mtime=0), headers=(b"Content-Type: text/event-stream", b"Content-Encoding: gzip"))),
    ("JSON although a stream was asked for", answer(COMPLETION, JSON)),
    ("cut before [DONE]", Answer(stream(*EVENTS[:-1]).wire.removesuffix(b"0\r\n\r\n"), closes=True)),
    ("cut within an event", Answer(stream(EVENTS[0], EVENTS[1]).wire.removesuffix(b"0\r\n\r\n"), closes=True)),
    ("cut after [DONE]", Answer(stream(*EVENTS).wire.removesuffix(b"0\r\n\r\n"), closes=True)),
    ("cut at once", Answer(stream().wire.removesuffix(b"0\r\n\r\n"), closes=True)),
]  # fmt: skip


def statuses() -> list[Exchange]:
    body = b'{"status" : %d}\n'
    return [
        Exchange(
            f"status {n}",
            body=BODY,
            answer=answer(body % n, JSON, b"x-request-id: r", status=b"%d Odd phrase" % n),
        )
        for n in STATUSES
    ]


def errors() -> list[Exchange]:
    return [
        Exchange(
            f"error: {name}", body=BODY, answer=answer(body, *(headers or (JSON,)), status=status)
        )
        for name, status, body, headers in ERRORS
    ]


def headers() -> list[Exchange]:
    return [
        Exchange(
            f"answer headers: {name}", body=BODY, answer=answer(b"{}", *found, status=b"200 OK")
        )
        for name, found in HEADERS
    ]


def replies() -> list[Exchange]:
    """Each is asked for on the chat route, with memory and without; any route relays them alike."""
    whole = [Exchange(f"answer: {name}", body=BODY, answer=found) for name, found in FRAMINGS]
    streamed = [Exchange(f"streamed: {name}", body=STREAM, answer=found) for name, found in STREAMS]
    return [*statuses(), *errors(), *headers(), *whole, *streamed]
