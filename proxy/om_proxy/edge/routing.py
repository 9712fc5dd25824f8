"""Find where a request goes: the thread that its base URL names, and the model server.

For clients that can set nothing else, a base URL ends in `/t/<thread>/v1` or
`/r/<resource>/t/<thread>/v1`. The names are removed from the path before the request is routed, and
added to its headers under two header names that no client can send.

The server of a request that is no chat completion is the first for its API whose `match` fits the
model that the request names, as for chat. A caller's key must not reach a server that is meant for
another API or model. So with several servers, a body that may name a model is read completely before
any of it is forwarded: clients write the name after the input, or after the file. A body whose model
cannot be read is refused. A request that names no model (lists, or bodies that are neither JSON nor a
form) goes to its API's server for all models, or to the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Scope

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest, HttpInstead, OmError, Unsupported
from om_proxy.edge.edge_config import NO_UPSTREAM, EdgeConfig
from om_proxy.settings.config import UpstreamSettings
from om_proxy.settings.identity.identity_rules import PATH_RESOURCE, PATH_THREAD
from om_proxy.settings.identity.naming import MAX_NAME_BYTES, decode_path_segment, encode_name
from om_proxy.wire.apis.model_name import UnreadableModelName, read_model_name
from om_proxy.wire.server.headers import find_header

_BAD_NAME_MESSAGE = (
    f"a thread or resource in the path must be 1 to {MAX_NAME_BYTES} bytes of printable UTF-8, "
    "percent-encoded, and not `.` or `..`"
)
UNREADABLE_MODEL_MESSAGE = (
    "which model this is for cannot be read, and each has a server of its own; "
    "send valid JSON, or a form, with a short `model`"
)
RESPONSES_PATHS = (b"/v1/responses", b"/responses")
# OpenAI's file routes: their bodies may have any size, and name no model
_FILE_PATHS = re.compile(rb"/(?:files|uploads)(?:/|\Z)")


class BaseUrl(NamedTuple):
    """The names in a path, each encoded as in a header, and the rest of the path."""

    thread: str
    resource: str | None
    path: bytes


def take_names_from_path(scope: Scope) -> Scope:
    """Move the path's names into headers, as if the client had sent them. Raise BadRequest for a
    prefix that names no thread."""
    raw_path: bytes = scope["raw_path"]
    if not raw_path.startswith((b"/t/", b"/r/")):
        return scope
    base_url = split_path(raw_path)
    headers = [*scope["headers"], (PATH_THREAD.encode(), base_url.thread.encode())]
    if base_url.resource is not None:
        headers.append((PATH_RESOURCE.encode(), base_url.resource.encode()))
    return {
        **scope,
        "headers": headers,
        "raw_path": base_url.path,
        "path": base_url.path.decode("latin-1"),
    }


def has_path_thread(scope: Scope) -> bool:
    return any(name == PATH_THREAD.encode() for name, _ in scope["headers"])


def split_path(raw_path: bytes) -> BaseUrl:
    """Split a path with a prefix. Raise BadRequest for a path that only begins like one."""
    match raw_path.decode("latin-1").split("/"):
        case ["", "t", thread, *api_segments]:
            resource = None
        case ["", "r", resource_segment, "t", thread, *api_segments]:
            resource = _encode_segment(resource_segment)
        case _:
            raise BadRequest(
                "the path names a resource and no thread; "
                "use /r/<resource>/t/<thread>/v1 as the base URL",
                "om_bad_path",
            )
    _check_no_second_prefix(api_segments)
    api_path = "/".join(["", *(api_segments or [""])])
    return BaseUrl(_encode_segment(thread), resource, api_path.encode("latin-1"))


def _check_no_second_prefix(api_segments: Sequence[str]) -> None:
    if api_segments[:1] in (["t"], ["r"]):
        raise BadRequest(
            "the path names two threads or resources; name one in the base URL", "om_bad_path"
        )


def _encode_segment(segment: str) -> str:
    name = decode_path_segment(segment)
    if not name or name in (".", ".."):
        raise BadRequest(_BAD_NAME_MESSAGE, "om_bad_path")
    return encode_name(name)


def find_protocol_fault(scope: Scope) -> OmError | None:
    """Return the error for a request for something other than HTTP; None for plain HTTP.

    Codex opens a WebSocket first. After a 426 it continues with HTTP within 0.15 s; after any other
    answer it retries for 6.4 s.
    """
    for name, value in scope["headers"]:  # in lower case, as ASGI has them
        if name == b"upgrade" and value.lower() == b"websocket":
            error_class = HttpInstead if scope["raw_path"] in RESPONSES_PATHS else Unsupported
            return error_class("WebSockets are not relayed; use the HTTP endpoints")
    if scope["method"] == "CONNECT":
        return Unsupported("this is no tunnel; name it as the base URL, not as the HTTP proxy")
    return None


def needs_body_to_route(scope: Scope, config: EdgeConfig, api: ApiName) -> bool:
    return (
        scope["method"] == "POST"
        and api not in config.apis_without_choice
        and _FILE_PATHS.search(scope["raw_path"]) is None
    )


def choose_upstream(
    scope: Scope, config: EdgeConfig, body: bytes | None, api: ApiName = "chat"
) -> UpstreamSettings:
    """Choose the server. `body` is None if it does not matter. Raise BadRequest if no server is for
    the API or matches the model, or the model cannot be read."""
    first = config.first_upstreams.get(api)
    if first is None:
        raise BadRequest(NO_UPSTREAM.format(api=api), "om_no_upstream")
    if api in config.apis_without_choice:
        return first
    fallback = config.find_upstream(None, api) or first
    if body is None:
        return fallback
    content_type = find_header(scope["headers"], b"content-type") or b""
    encoding = find_header(scope["headers"], b"content-encoding") or b""
    try:
        model = read_model_name(body, content_type, encoding, max_bytes=config.settings.limits.body)
    except UnreadableModelName:
        raise BadRequest(UNREADABLE_MODEL_MESSAGE, "om_no_upstream", "model") from None
    return fallback if model is None else config.require_upstream(model, api)
