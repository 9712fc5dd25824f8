"""The APIs that clients speak, and which of them a request belongs to
(docs/contributing/http.md#several-upstreams)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

ApiName = Literal["chat", "responses", "messages"]
API_NAMES: tuple[ApiName, ...] = get_args(ApiName)

# the first segment of a path, without `/v1`
_APIS_BY_SEGMENT: dict[bytes, ApiName] = {
    b"chat": "chat",
    b"responses": "responses",
    b"conversations": "responses",
    b"messages": "messages",
}
# what a client of the Messages API asks of its base URL without `/v1`
PATHS_BESIDE_V1: dict[bytes, ApiName] = {
    b"/api/hello": "messages",
    b"/api/event_logging/batch": "messages",
}
# every request of Anthropic's SDKs has it, to a route of any name
_MESSAGES_HEADER = b"anthropic-version"


def find_api(raw_path: bytes, headers: Iterable[tuple[bytes, bytes]]) -> ApiName:
    """Return the API of a request. Its path decides, and on routes that several APIs have, a header
    does. `raw_path`: without the names of a thread. Names of headers are in lower case."""
    if api := PATHS_BESIDE_V1.get(raw_path):
        return api
    segments = raw_path.split(b"/", 3)[1:]
    if segments[:1] == [b"v1"]:
        del segments[0]
    if api := _APIS_BY_SEGMENT.get(segments[0] if segments else b""):
        return api
    return "messages" if any(name == _MESSAGES_HEADER for name, _ in headers) else "chat"
