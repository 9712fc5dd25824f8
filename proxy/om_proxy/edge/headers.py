"""Forward every header except hop-by-hop ones and the proxy's own."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.settings.identity.identity_rules import PATH_RESOURCE, PATH_THREAD
from om_proxy.wire.server.headers import HOP_BY_HOP_HEADERS, Header, find_header
from om_proxy.wire.upstream import UpstreamResponse

# The next connection has its own values, set by its opener or its body.
REFRAMED_HEADERS = frozenset((b"host", b"content-length", b"expect"))
# the names that the base URL held; no client sends these headers
BASE_URL_HEADERS = frozenset((PATH_THREAD.encode(), PATH_RESOURCE.encode()))
NOT_FORWARDED = HOP_BY_HOP_HEADERS | REFRAMED_HEADERS | BASE_URL_HEADERS
OWN_HEADER_PREFIX = b"x-om-"
# forbidden in a value (RFC 9110 5.5); uvicorn refuses to write them
_CONTROL_CHARACTERS = bytes([*range(0x09), *range(0x0A, 0x20), 0x7F])
CREDENTIAL_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))


def select_request_headers(
    headers: Sequence[Header], drop: frozenset[bytes] = NOT_FORWARDED
) -> list[Header]:
    """Return the client's headers that go upstream. Names are in lower case, as ASGI has them.
    `drop` names those to leave out: NOT_FORWARDED, and the identity aliases."""
    drop = _add_connection_names(drop, headers)
    return [
        header
        for header in headers
        if header[0] not in drop and not header[0].startswith(OWN_HEADER_PREFIX)
    ]


def select_response_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the upstream's headers that go to the client, with names in lower case.

    A value that holds a control character is left out: with a line break it could add headers. A
    receipt from the upstream, for example another om-proxy, is left out too: a client would take it
    for this proxy's receipt.
    """
    # control characters are rare: one check of all values instead of one for each
    if _has_control_character(b"".join([value for _, value in headers])):
        headers = [header for header in headers if not _has_control_character(header[1])]
    lower_headers = [(name.lower(), value) for name, value in headers]
    drop = _add_connection_names(HOP_BY_HOP_HEADERS, lower_headers)
    return [
        header
        for header in lower_headers
        if header[0] not in drop and not header[0].startswith(OWN_HEADER_PREFIX)
    ]


def read_client_headers(answer: UpstreamResponse) -> list[Header]:
    """Return `select_response_headers` of an answer, which are selected once."""
    if answer.client_headers is None:
        answer.client_headers = select_response_headers(answer.headers)
    return answer.client_headers


def set_header(headers: Sequence[Header], name: bytes, value: bytes) -> list[Header]:
    """Return the headers with this one in place of any others of its name. Names are in lower
    case."""
    return [header for header in headers if header[0] != name] + [(name, value)]


def replace_credential(
    headers: Sequence[Header], key_header: tuple[str, str] | None
) -> list[Header]:
    """Return the headers with the upstream's key, if it has one, in place of the caller's
    credential."""
    if key_header is None:
        return list(headers)
    name, value = key_header
    other_headers = [header for header in headers if header[0].lower() not in CREDENTIAL_HEADERS]
    return [*other_headers, (name.encode(), value.encode())]


def ask_uncompressed(headers: Sequence[Header]) -> list[Header]:
    """Return the headers with a request for an uncompressed reply, because the proxy has to read
    it."""
    return set_header(headers, b"accept-encoding", b"identity")


def is_event_stream(headers: Sequence[Header]) -> bool:
    content_type = find_header(headers, b"content-type") or b""
    return content_type.strip().lower().startswith(b"text/event-stream")


def _has_control_character(value: bytes) -> bool:
    # deleting the characters is three times as fast as a pattern's search
    return value.translate(None, _CONTROL_CHARACTERS) != value


def _add_connection_names(names: frozenset[bytes], headers: Sequence[Header]) -> frozenset[bytes]:
    """Return the names with those that `Connection` lists: they are not forwarded."""
    values = [value for name, value in headers if name == b"connection"]
    if all(value == b"keep-alive" for value in values):  # nearly all requests
        return names
    return names.union(token.strip().lower() for value in values for token in value.split(b","))
