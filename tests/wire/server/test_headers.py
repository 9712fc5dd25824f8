"""Reading request headers, and refusing ambiguous heads."""

from __future__ import annotations

import pytest

from om_proxy.wire.server.headers import find_head_ambiguity, parse_content_length


@pytest.mark.parametrize(
    ("value", "length"), [(b"0", 0), (b"17", 17), (b"x", None), (b"-1", None), (b"", None)]
)
def test_content_length(value: bytes, length: int | None) -> None:
    """Only digits are a length."""
    assert parse_content_length([(b"content-length", value)]) == length


def test_no_length() -> None:
    """Headers without a length have none."""
    assert parse_content_length([]) is None


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
    """There must be one Host header; HTTP/1.0 may leave it out."""
    fault = find_head_ambiguity(
        [(b"accept", b"a,b"), *((b"host", value) for value in values)], version
    )
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
    """Chunks are the framing of a connection. Any other coding belongs to the body, and would be
    lost."""
    fault = find_head_ambiguity(
        [(b"host", b"h"), *((b"transfer-encoding", value) for value in values)], "1.1"
    )
    assert (fault is None) is plain
    assert fault is None or (fault.status, fault.code) == (501, "om_unsupported")


@pytest.mark.parametrize("version", ["0.9", "2.0", "2", "3"])
def test_versions(version: str) -> None:
    """Only HTTP/1.1 and 1.0 are accepted."""
    assert find_head_ambiguity([(b"host", b"h")], version) is not None
