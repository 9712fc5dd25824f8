"""Which headers travel on: everything but the connection's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from om_proxy.errors import BadRequest, OmError, Unsupported
from om_proxy.memory.identity import PATH_RESOURCE, PATH_THREAD

Header = tuple[bytes, bytes]

# RFC 9110 7.6.1, and what older software sends in its spirit.
HOP_BY_HOP = frozenset(
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
# Said anew for the next connection: by whoever opens it, or by the body it carries.
REFRAMED = frozenset((b"host", b"content-length", b"expect"))
OF_THE_PATH = frozenset(
    (PATH_THREAD.encode(), PATH_RESOURCE.encode())
)  # what the base URL named: no header of the client's
STAYS = HOP_BY_HOP | REFRAMED | OF_THE_PATH
OURS = b"x-om-"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # no part of a value (RFC 9110 5.5); uvicorn refuses to write one
_HOST = re.compile(rb"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")  # RFC 9110 7.2, without what no real host has
HTTP = ("1.1", "1.0")  # the versions spoken here
CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))


def request_headers(headers: Sequence[Header], drop: Collection[bytes] = ()) -> list[Header]:
    """What goes upstream of a client's headers, their names in lower case as ASGI has them; `drop` names more that do not (the
    identity aliases)."""
    listed = _listed(headers)
    return [
        item
        for item in headers
        if (name := item[0]) not in STAYS and not name.startswith(OURS) and name not in drop and name not in listed
    ]


def response_headers(headers: Sequence[Header]) -> list[Header]:
    """What goes to the client of an upstream's headers, names in lower case as ASGI has them.

    A value that holds a control character is left out: with a line break it could write headers of its own. So is a receipt that
    the upstream writes, for example another om-proxy: a client would read it as this proxy's word.
    """
    if _CONTROL.search(b"".join([value for _, value in headers])):  # hardly ever: one search in place of one for each
        headers = [item for item in headers if not _CONTROL.search(item[1])]
    lowered = [(name.lower(), value) for name, value in headers]
    listed = _listed(lowered)
    return [
        item
        for item in lowered
        if (name := item[0]) not in HOP_BY_HOP and not name.startswith(OURS) and name not in listed
    ]


def fault_of_head(headers: Sequence[Header], http_version: str) -> OmError | None:
    """Why this request could mean one thing here and another to a server before or behind us; None where it cannot."""
    hosts = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif (
            name == b"transfer-encoding" and value.lower() != b"chunked"
        ):  # its body is encoded, and we would not say so
            return Unsupported("send the body with no transfer coding but `chunked`")
    if http_version not in HTTP or len(hosts) > 1 or (not hosts and http_version != "1.0"):
        return BadRequest("send HTTP/1.1 with one Host header", "om_bad_host", "host")
    if hosts and not _HOST.fullmatch(hosts[0]):
        return BadRequest("send a Host header that names a host and nothing else", "om_bad_host", "host")
    return None


def with_header(headers: Sequence[Header], name: bytes, value: bytes) -> list[Header]:
    """The headers with this one in place of any of its name; names in lower case."""
    return [header for header in headers if header[0] != name] + [(name, value)]


def authorized(headers: Sequence[Header], api_key: str | None) -> list[Header]:
    """With the upstream's own key in place of the caller's credential, where one is configured."""
    if not api_key:
        return list(headers)
    kept = [item for item in headers if item[0].lower() not in CREDENTIALS]
    return [*kept, (b"authorization", b"Bearer " + api_key.encode())]


def asking_identity(headers: Sequence[Header]) -> list[Header]:
    """Ask for an uncompressed reply: one we have to read."""
    return with_header(headers, b"accept-encoding", b"identity")


def header(headers: Sequence[Header], name: bytes) -> bytes | None:
    """The first value of a header, its name in lower case; None if it is absent."""
    for key, value in headers:  # a generator in next() takes twice as long
        if key.lower() == name:
            return value
    return None


def content_length(headers: Sequence[Header]) -> int | None:
    """The announced length of the body; None if there is none, or it is no number."""
    value = header(headers, b"content-length")
    return int(value) if value is not None and value.isdigit() else None


def is_event_stream(headers: Sequence[Header]) -> bool:
    return (header(headers, b"content-type") or b"").strip().lower().startswith(b"text/event-stream")


def _listed(headers: Sequence[Header]) -> Collection[bytes]:
    """The headers that `Connection` says are its own."""
    for name, value in headers:
        if name == b"connection" and value != b"keep-alive":
            named = [v for n, v in headers if n == b"connection"]
            return {token.strip().lower() for v in named for token in v.split(b",")}
    return ()
