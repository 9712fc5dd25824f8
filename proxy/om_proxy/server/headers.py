"""Read the headers of a request, and check that its head means the same to every server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from om_proxy.errors import BadRequest, OmError, Unsupported

Header = tuple[bytes, bytes]

# RFC 9110 7.6.1, and similar headers of older software
HOP_BY_HOP_HEADERS = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
ACCEPTED_HTTP_VERSIONS = ("1.1", "1.0")
# RFC 9110 7.2, without the characters that no real host has
_HOST_VALUE = re.compile(rb"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


def find_head_ambiguity(headers: Sequence[Header], http_version: str) -> OmError | None:
    """Return the error for a request that could mean one thing here and another to a server before
    or behind us; None if it is safe."""
    hosts = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            # the body is encoded, and the forwarded request would not say so
            return Unsupported("send the body with no transfer coding but `chunked`")
    is_host_missing = not hosts and http_version != "1.0"
    if http_version not in ACCEPTED_HTTP_VERSIONS or len(hosts) > 1 or is_host_missing:
        return BadRequest("send HTTP/1.1 with one Host header", "om_bad_host", "host")
    if hosts and not _HOST_VALUE.fullmatch(hosts[0]):
        return BadRequest(
            "send a Host header that names a host and nothing else", "om_bad_host", "host"
        )
    return None


def find_header(headers: Sequence[Header], name: bytes) -> bytes | None:
    """Return the first value of a header, None if it is absent. Names are in lower case, as ASGI
    gives them."""
    for key, value in headers:  # a generator in next() takes twice as long
        if key == name:
            return value
    return None


def parse_content_length(headers: Sequence[Header]) -> int | None:
    """Return the announced length of the body; None if it is absent or not a number. Names are in
    lower case."""
    value = find_header(headers, b"content-length")
    return int(value) if value is not None and value.isdigit() else None
