"""Which model server a request goes to that is no chat completion: the one whose `match` fits the model it names, as for chat.

A caller's key must not reach a server that another model is meant for, so where there are several, a body that may name a model is
read whole before any of it is passed on: clients write the name behind the input, or the file. What may name one that we cannot read
is refused. Where nothing is named (lists, or bodies that are neither JSON nor a form), it is the server for all models, or the first.
"""

from __future__ import annotations

import re

from starlette.types import Scope

from om_proxy.edge.headers import header
from om_proxy.edge.site import Site
from om_proxy.errors import BadRequest, HttpInstead, OmError, Unsupported
from om_proxy.settings import UpstreamSettings
from om_proxy.wire.named import Illegible, model_of

UNREAD = "which model this is for cannot be read, and each has a server of its own; send valid JSON, or a form, with a short `model`"
RESPONSES = (b"/v1/responses", b"/responses")
_FILES = re.compile(rb"/(?:files|uploads)(?:/|\Z)")  # of OpenAI's API: as large as they come, and no model's


def fault_of_protocol(scope: Scope) -> OmError | None:
    """Why this request asks for something other than HTTP; None where it does not.

    Codex opens a WebSocket first. Told 426 it goes on with HTTP after 0.15 s; told anything else it
    tries for 6.4 s.
    """
    for name, value in scope["headers"]:  # in lower case, as ASGI has them
        if name == b"upgrade" and value.lower() == b"websocket":
            kind = HttpInstead if scope["raw_path"] in RESPONSES else Unsupported
            return kind("WebSockets are not relayed; use the HTTP endpoints")
    if scope["method"] == "CONNECT":
        return Unsupported("this is no tunnel; name it as the base URL, not as the HTTP proxy")
    return None


def may_name(scope: Scope, site: Site) -> bool:
    """Whether it depends on the request's body which server it is for."""
    return scope["method"] == "POST" and not site.meets_all and _FILES.search(scope["raw_path"]) is None


def server_for(scope: Scope, site: Site, body: bytes | None) -> UpstreamSettings:
    """`body`: None where it does not matter. Raises BadRequest where the request names a model that no server is for, or one that
    cannot be read."""
    anyway = site.upstream_for(None) or site.settings.upstream[0]
    if body is None or site.meets_all:
        return anyway
    kind, encoding = (header(scope["headers"], name) or b"" for name in (b"content-type", b"content-encoding"))
    try:
        named = model_of(body, kind, encoding, limit=site.settings.limits.body)
    except Illegible:
        raise BadRequest(UNREAD, "om_no_upstream", "model") from None
    return anyway if named is None else site.server_for(named)
