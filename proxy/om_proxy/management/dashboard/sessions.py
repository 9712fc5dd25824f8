"""Open and end the dashboard's session at `/om/session`, by the link that the server printed."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadMethod, NotFound, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import (
    is_sign_in_open,
    read_host,
    require_open_api,
    require_same_site,
)
from om_proxy.management.api.sign_in import SESSION_HEADER, SESSION_LIFE_S, SignIn, name_cookie
from om_proxy.wire.server.disconnect import read_body

SESSION_PATH = b"/om/session"
MAX_TOKEN_BYTES = 200
_ATTRIBUTES = b"Path=/om; HttpOnly; SameSite=Strict"


async def send_session(
    scope: Scope, receive: Receive, send: Send, config: EdgeConfig, sign_in: SignIn | None
) -> None:
    """Open a session for the token in the body (POST), or end it (DELETE). Raise the errors of
    access, and ClientDisconnected."""
    require_open_api(config)
    require_same_site(scope, config)
    if sign_in is None or not is_sign_in_open(scope, config):
        raise NotFound("this server signs nobody in by a link")
    value, life_s = b"", 0
    match scope["method"]:
        case "POST":
            if not sign_in.take_link(await read_body(receive, MAX_TOKEN_BYTES)):
                raise Unauthorized(
                    "this link was used already, or is too old: om-proxy prints another at its "
                    "next start"
                )
            value, life_s = sign_in.open_session(), SESSION_LIFE_S
        case "DELETE":
            pass
        case _:
            raise BadMethod()
    pair = name_cookie(read_host(scope)) + b"=" + value
    cookie = b"%s; Max-Age=%d; %s" % (pair, life_s, _ATTRIBUTES)
    headers = [(b"set-cookie", cookie)]
    if value:
        headers.append((SESSION_HEADER, sign_in.make_page_half(value)))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
