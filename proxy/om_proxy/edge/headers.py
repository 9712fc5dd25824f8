"""Forward every header except hop-by-hop ones and the proxy's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from om_proxy.identity.identity_rules import PATH_RESOURCE, PATH_THREAD
from om_proxy.server.headers import HOP_BY_HOP_HEADERS, Header, find_header

# The next connection has its own values, set by its opener or its body.
REFRAMED_HEADERS = frozenset((b"host", b"content-length", b"expect"))
BASE_URL_HEADERS = frozenset(
    (PATH_THREAD.encode(), PATH_RESOURCE.encode())
)  # what the base URL named: no header of the client's
NOT_FORWARDED = HOP_BY_HOP_HEADERS | REFRAMED_HEADERS | BASE_URL_HEADERS
OWN_HEADER_PREFIX = b"x-om-"
# no part of a value (RFC 9110 5.5); uvicorn refuses to write one
_CONTROL_CHARACTERS = bytes([*range(0x09), *range(0x0A, 0x20), 0x7F])
CREDENTIAL_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))


def request_headers(headers: Sequence[Header], drop: Collection[bytes] = ()) -> list[Header]:
    """The client's headers that go upstream. Names are in lower case, as ASGI has them; `drop`
    names further headers to leave out (the identity aliases)."""
    listed = _connection_headers(headers)
    return [
        item
        for item in headers
        if (name := item[0]) not in NOT_FORWARDED
        and not name.startswith(OWN_HEADER_PREFIX)
        and name not in drop
        and name not in listed
    ]


def response_headers(headers: Sequence[Header]) -> list[Header]:
    """The upstream's headers that go to the client. Names are in lower case, as ASGI has them.

    A value that holds a control character is left out: with a line break it could write headers of
    its own. So is a receipt that the upstream writes, for example another om-proxy: a client would
    read it as this proxy's word.
    """
    # control characters are rare: one check of all values instead of one for each
    if _has_control(b"".join([value for _, value in headers])):
        headers = [item for item in headers if not _has_control(item[1])]
    lowered = [(name.lower(), value) for name, value in headers]
    listed = _connection_headers(lowered)
    return [
        item
        for item in lowered
        if (name := item[0]) not in HOP_BY_HOP_HEADERS
        and not name.startswith(OWN_HEADER_PREFIX)
        and name not in listed
    ]


def set_header(headers: Sequence[Header], name: bytes, value: bytes) -> list[Header]:
    """Replace any header of this name with this one; names are in lower case."""
    return [header for header in headers if header[0] != name] + [(name, value)]


def replace_credential(headers: Sequence[Header], api_key: str | None) -> list[Header]:
    """Put the upstream's own key in place of the caller's credential, where one is configured."""
    if not api_key:
        return list(headers)
    kept = [item for item in headers if item[0].lower() not in CREDENTIAL_HEADERS]
    return [*kept, (b"authorization", b"Bearer " + api_key.encode())]


def ask_uncompressed(headers: Sequence[Header]) -> list[Header]:
    """Ask for an uncompressed reply, because the proxy has to read it."""
    return set_header(headers, b"accept-encoding", b"identity")


def is_event_stream(headers: Sequence[Header]) -> bool:
    return (
        (find_header(headers, b"content-type") or b"")
        .strip()
        .lower()
        .startswith(b"text/event-stream")
    )


def _has_control(value: bytes) -> bool:
    """Deleting the characters is three times as fast as a pattern's search."""
    return value.translate(None, _CONTROL_CHARACTERS) != value


def _connection_headers(headers: Sequence[Header]) -> Collection[bytes]:
    """The names of headers that `Connection` lists as its own."""
    for name, value in headers:
        if name == b"connection" and value != b"keep-alive":
            named = [v for n, v in headers if n == b"connection"]
            return {token.strip().lower() for v in named for token in v.split(b",")}
    return ()
