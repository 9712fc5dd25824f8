"""Which headers travel on."""

from __future__ import annotations

import pytest

from om_proxy.edge.headers import (
    Header,
    asking_identity,
    authorized,
    content_length,
    fault_of_head,
    is_event_stream,
    request_headers,
    response_headers,
    with_header,
)

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
    """Hop-by-hop headers, framing, ours and the identity aliases stay here; the rest keeps order and duplicates."""
    ours = [
        (b"host", b"h"),
        (b"content-length", b"1"),
        (b"expect", b"100-continue"),
        (b"x-om-thread", b"t"),
        (b"x-thread-id", b"t"),
    ]
    assert request_headers([*HOP, *ours, *ENDS], drop={b"x-thread-id"}) == ENDS


def test_response() -> None:
    """Of a response all but the hop-by-hop headers reaches the client, its length included."""
    assert response_headers([*HOP, (b"Content-Length", b"1"), *ENDS]) == [(b"content-length", b"1"), *ENDS]


def test_response_without_another_s_receipt() -> None:
    """What an upstream says of a memory of its own is not this proxy's word
    (docs/spec/http.md#replies)."""
    theirs = [(b"X-OM-Status", b"applied"), (b"x-om-anything", b"1")]
    assert response_headers([*theirs, (b"x-omega", b"2")]) == [(b"x-omega", b"2")]


@pytest.mark.parametrize("value", [b"a\r\nX-Injected: 1", b"a\nb", b"a\rb", b"a\0b", b"a\x01b", b"a\x7fb"])
def test_response_value_that_would_split(value: bytes) -> None:
    """A value that could write headers of its own is left out."""
    assert response_headers([(b"x", value), (b"y", b"1")]) == [(b"y", b"1")]


def test_replacing() -> None:
    """A replaced header occurs once, however often it was sent."""
    assert with_header([(b"accept", b"a"), (b"b", b"1"), (b"accept", b"c")], b"accept", b"d") == [
        (b"b", b"1"),
        (b"accept", b"d"),
    ]
    assert asking_identity([(b"accept-encoding", b"gzip")]) == [(b"accept-encoding", b"identity")]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, [(b"authorization", b"Bearer a"), (b"api-key", b"b"), (b"x", b"1")]),
        ("k", [(b"x", b"1"), (b"authorization", b"Bearer k")]),
    ],
)
def test_authorized(key: str | None, expected: list[Header]) -> None:
    """A configured key takes the place of every credential of the caller's."""
    assert authorized([(b"authorization", b"Bearer a"), (b"api-key", b"b"), (b"x", b"1")], key) == expected


@pytest.mark.parametrize(("value", "length"), [(b"0", 0), (b"17", 17), (b"x", None), (b"-1", None), (b"", None)])
def test_content_length(value: bytes, length: int | None) -> None:
    """Only a number is a length."""
    assert content_length([(b"Content-Length", value)]) == length


@pytest.mark.parametrize(
    ("value", "stream"),
    [(b"text/event-stream", True), (b"Text/Event-Stream; charset=utf-8", True), (b"application/json", False)],
)
def test_event_stream(value: bytes, stream: bool) -> None:
    """A stream says so in its content type, parameters aside."""
    assert is_event_stream([(b"Content-Type", value)]) is stream


def test_neither_length_nor_type() -> None:
    """Headers that say nothing say nothing."""
    assert content_length([]) is None
    assert is_event_stream([]) is False


@pytest.mark.parametrize(
    ("values", "version", "plain"),
    [
        ([b"127.0.0.1:8400"], "1.1", True),
        ([b"proxy.example"], "1.1", True),
        ([b"my_host:80"], "1.1", True),
        ([b"[::1]:8400"], "1.1", True),
        ([b""], "1.1", True),  # of a URI without a host, RFC 9112 3.2
        ([], "1.0", True),
        ([], "1.1", False),
        ([b"a", b"a"], "1.1", False),
        ([b"a", b"b"], "1.0", False),
        ([b"a,b"], "1.1", False),
        ([b"a/b"], "1.1", False),
        ([b"x/#@y"], "1.1", False),
        ([b"user@host"], "1.1", False),
        ([b"a b"], "1.1", False),
        ([b"a:b"], "1.1", False),
        ([b"a:1:2"], "1.1", False),
        ([b"[::1"], "1.1", False),
        ([b"h\xc3\xb6st"], "1.1", False),
        ([b"a?b"], "1.1", False),
        ([b"a\\b"], "1.1", False),
    ],
)
def test_host(values: list[bytes], version: str, plain: bool) -> None:
    """One host, or none where HTTP/1.0 may leave it out."""
    fault = fault_of_head([(b"accept", b"a,b"), *((b"host", value) for value in values)], version)
    assert (fault is None) is plain
    assert fault is None or (fault.status, fault.code) == (400, "om_bad_host")


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        ([], True),
        ([b"chunked"], True),
        ([b"Chunked"], True),
        ([b"gzip, chunked"], False),
        ([b"gzip", b"chunked"], False),
        ([b"identity"], False),
        ([b""], False),
    ],
)
def test_transfer_codings(values: list[bytes], plain: bool) -> None:
    """Chunks are the framing of a connection; any other coding is one of the body, and would be lost."""
    fault = fault_of_head([(b"host", b"h"), *((b"transfer-encoding", value) for value in values)], "1.1")
    assert (fault is None) is plain
    assert fault is None or (fault.status, fault.code) == (501, "om_unsupported")


@pytest.mark.parametrize("version", ["0.9", "2.0", "2", "3"])
def test_versions(version: str) -> None:
    """Others than HTTP/1.1 and 1.0 are not spoken here."""
    assert fault_of_head([(b"host", b"h")], version) is not None
