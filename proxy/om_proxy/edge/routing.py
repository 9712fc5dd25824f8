"""Choose the model server for a request that is no chat completion: the one whose `match` fits the
model it names, as for chat.

A caller's key must not reach a server that is meant for another model. So with several servers, a
body that may name a model is read whole before any of it is forwarded: clients write the name
behind the input, or behind the file. A body whose model cannot be read is refused. A request that
names no model (lists, or bodies that are neither JSON nor a form) goes to the server for all
models, or to the first.
"""

from __future__ import annotations

import re

from starlette.types import Scope

from om_proxy.apis.model_name import UnreadableModelName, read_model_name
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.errors import BadRequest, HttpInstead, OmError, Unsupported
from om_proxy.server.headers import find_header
from om_proxy.settings import UpstreamSettings

UNREADABLE_MODEL_MESSAGE = (
    "which model this is for cannot be read, and each has a server of its own; "
    "send valid JSON, or a form, with a short `model`"
)
RESPONSES_PATHS = (b"/v1/responses", b"/responses")
# OpenAI's file routes: their bodies are of any size, and name no model.
_FILE_PATHS = re.compile(rb"/(?:files|uploads)(?:/|\Z)")


def find_protocol_fault(scope: Scope) -> OmError | None:
    """Return the error for a request for something other than HTTP; None for plain HTTP.

    Codex opens a WebSocket first. After a 426 it goes on with HTTP within 0.15 s; after any other
    answer it tries for 6.4 s.
    """
    for name, value in scope["headers"]:  # in lower case, as ASGI has them
        if name == b"upgrade" and value.lower() == b"websocket":
            kind = HttpInstead if scope["raw_path"] in RESPONSES_PATHS else Unsupported
            return kind("WebSockets are not relayed; use the HTTP endpoints")
    if scope["method"] == "CONNECT":
        return Unsupported("this is no tunnel; name it as the base URL, not as the HTTP proxy")
    return None


def needs_body_to_route(scope: Scope, config: EdgeConfig) -> bool:
    """Return whether the choice of the server depends on the request's body."""
    return (
        scope["method"] == "POST"
        and not config.has_catch_all_upstream
        and _FILE_PATHS.search(scope["raw_path"]) is None
    )


def choose_upstream(scope: Scope, config: EdgeConfig, body: bytes | None) -> UpstreamSettings:
    """Choose the server; `body` is None where it does not matter. Raises BadRequest if no server
    matches the model, or the model cannot be read."""
    fallback = config.find_upstream(None) or config.settings.upstream[0]
    if body is None or config.has_catch_all_upstream:
        return fallback
    kind, encoding = (
        find_header(scope["headers"], name) or b""
        for name in (b"content-type", b"content-encoding")
    )
    try:
        named = read_model_name(body, kind, encoding, max_bytes=config.settings.limits.body)
    except UnreadableModelName:
        raise BadRequest(UNREADABLE_MODEL_MESSAGE, "om_no_upstream", "model") from None
    return fallback if named is None else config.require_upstream(named)
