"""The headers that are forwarded in both directions."""

from __future__ import annotations

import pytest

from om_proxy.edge.headers import (
    NOT_FORWARDED,
    ask_uncompressed,
    is_event_stream,
    replace_credential,
    select_request_headers,
    select_response_headers,
    set_header,
)
from om_proxy.wire.server.headers import Header

HOP = [
    (b"connection", b"keep-alive, X-Private"),
    (b"keep-alive", b"timeout=5"),
    (b"proxy-authorization", b"x"),
    (b"te", b"trailers"),
    (b"trailer", b"x"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"x-private", b"1"),
]
ENDS = [(b"content-type", b"a"), (b"x-b", b"2"), (b"x-b", b"1"), (b"cookie", b"c")]


def test_request() -> None:
    """Hop-by-hop headers, framing, the proxy's own headers and the identity aliases are not
    forwarded. The rest keeps its order and duplicates."""
    ours = [
        (b"host", b"h"),
        (b"content-length", b"1"),
        (b"expect", b"100-continue"),
        (b"x-om-thread", b"t"),
        (b"x-thread-id", b"t"),
    ]
    assert (
        select_request_headers([*HOP, *ours, *ENDS], drop=NOT_FORWARDED | {b"x-thread-id"}) == ENDS
    )


def test_response() -> None:
    """All headers of a response except hop-by-hop ones reach the client, including its length."""
    assert select_response_headers([*HOP, (b"Content-Length", b"1"), *ENDS]) == [
        (b"content-length", b"1"),
        *ENDS,
    ]


def test_response_without_another_s_receipt() -> None:
    """An upstream's own receipt is not sent on as this proxy's
    (docs/contributing/http.md#replies)."""
    theirs = [(b"X-OM-Status", b"applied"), (b"x-om-anything", b"1")]
    assert select_response_headers([*theirs, (b"x-omega", b"2")]) == [(b"x-omega", b"2")]


@pytest.mark.parametrize(
    "value", [b"a\r\nX-Injected: 1", b"a\nb", b"a\rb", b"a\0b", b"a\x01b", b"a\x7fb"]
)
def test_response_value_that_would_split(value: bytes) -> None:
    """A value that could add headers is left out."""
    assert select_response_headers([(b"x", value), (b"y", b"1")]) == [(b"y", b"1")]


def test_replacing() -> None:
    """A replaced header occurs once, however often it was sent."""
    assert set_header([(b"accept", b"a"), (b"b", b"1"), (b"accept", b"c")], b"accept", b"d") == [
        (b"b", b"1"),
        (b"accept", b"d"),
    ]
    assert ask_uncompressed([(b"accept-encoding", b"gzip")]) == [(b"accept-encoding", b"identity")]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, []),
        (("authorization", "Bearer k"), [(b"x", b"1"), (b"authorization", b"Bearer k")]),
        (("x-api-key", "k"), [(b"x", b"1"), (b"x-api-key", b"k")]),
    ],
)
def test_authorized(key: tuple[str, str] | None, expected: list[Header]) -> None:
    """A configured key replaces every credential of the caller."""
    sent = [(b"authorization", b"Bearer a"), (b"x-api-key", b"b"), (b"x", b"1")]
    assert replace_credential(sent, key) == (sent if key is None else expected)


@pytest.mark.parametrize(
    ("value", "stream"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
    ],
)
def test_event_stream(value: bytes, stream: bool) -> None:
    """A stream is recognised by its content type, without parameters."""
    assert is_event_stream([(b"content-type", value)]) is stream


def test_no_type() -> None:
    """An answer without a content type is no stream."""
    assert is_event_stream([]) is False
