"""Read request headers, and refuse a head that two servers could read differently (request
smuggling), by its HTTP version, Host or Transfer-Encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence

from om_proxy.common.errors import BadRequest, OmError, Unsupported

Header = tuple[bytes, bytes]  # the name in lower case, as ASGI gives it, and the value

# RFC 9110 7.6.1; the two `proxy-auth…` headers and `trailer` are in RFC 2616 13.5.1
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
# RFC 9110 7.2, without percent-encoding and sub-delimiters, which no real host has
_HOST_VALUE = re.compile(rb"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


def find_head_ambiguity(headers: Sequence[Header], http_version: str) -> OmError | None:
    """Return the error for a request that could mean one thing here, and another to a server before
    or after the proxy; None if the head is unambiguous."""
    hosts = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            # the forwarded request would lack the header that says how the body is encoded
            return Unsupported("the only supported Transfer-Encoding is `chunked`; send no other")
    fault = _find_host_fault(hosts, http_version)
    return BadRequest(fault, "om_bad_host", "host") if fault else None


def _find_host_fault(hosts: Sequence[bytes], http_version: str) -> str | None:
    if http_version not in ACCEPTED_HTTP_VERSIONS:
        return "send the request as HTTP/1.1 or HTTP/1.0"
    if len(hosts) > 1:
        return f"the request has {len(hosts)} Host headers; send one"
    if not hosts:
        return None if http_version == "1.0" else "the request has no Host header; send one"
    if not _HOST_VALUE.fullmatch(hosts[0]):
        return "the Host header must be a host name or address, with an optional port"
    return None


def find_header(headers: Sequence[Header], name: bytes) -> bytes | None:
    """Return the first value of a header; None if the header is absent."""
    # a loop, because next() with a generator takes twice as long
    for key, value in headers:
        if key == name:
            return value
    return None


def parse_content_length(headers: Sequence[Header]) -> int | None:
    """Return the announced length of the body in bytes; None if it is absent or not a number."""
    value = find_header(headers, b"content-length")
    return int(value) if value is not None and value.isdigit() else None
