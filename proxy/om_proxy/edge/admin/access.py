"""Decide who may use the admin API, and whose threads they see (docs/spec/http.md#admin-api).

The admin token shows all tenants; a caller's own credential shows its own tenant. A request from
another site's page is refused: otherwise any page that the user of a loopback server visits could
change threads.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.types import Scope

from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.errors import BadRequest, Unauthorized
from om_proxy.identity.local_requests import is_loopback_host
from om_proxy.identity.tenants import find_tenant
from om_proxy.server.headers import find_header


def require_same_site(scope: Scope, config: EdgeConfig) -> None:
    """Raise Unauthorized for a request from another site's page. On a loopback bind, also raise it
    for a `Host` that only resolves to loopback (DNS rebinding)."""
    host = (find_header(scope["headers"], b"host") or b"").decode("latin-1")
    origin = find_header(scope["headers"], b"origin")
    try:
        is_other_site = origin is not None and urlsplit(origin.decode("latin-1")).netloc != host
    except ValueError as exc:
        raise Unauthorized("Origin cannot be read") from exc
    if is_other_site:
        raise Unauthorized("the admin API answers no pages of other sites")
    if config.identity.loopback_only and not is_loopback_host(host):
        raise Unauthorized("ask for the admin API by a loopback address or as localhost")


def find_visible_tenant(
    scope: Scope, config: EdgeConfig, query_tenant: str | None, secret: bytes
) -> str | None:
    """Return the tenant whose threads the caller may see; None means all tenants. `query_tenant`:
    the one that the query names, which counts with the admin token only."""
    sent_token = _find_admin_token(scope)
    if sent_token is not None:
        if not _is_admin_token(sent_token, config):
            raise Unauthorized("X-OM-Admin is not the admin token (server.admin_token)")
        return query_tenant
    own_tenant = find_tenant(scope["headers"], config.identity, secret)
    # if user tokens are required, the users of one application share its credential
    if own_tenant is None or config.identity.token_required:
        raise Unauthorized("send the admin token as X-OM-Admin")
    return own_tenant


def _find_admin_token(scope: Scope) -> bytes | None:
    """Return the token that was sent. Raise BadRequest for two tokens: a server in front may have
    checked the other one."""
    tokens = [value for name, value in scope["headers"] if name == b"x-om-admin"]
    if len(tokens) > 1:
        raise BadRequest(
            f"header x-om-admin was sent {len(tokens)} times; send it once",
            "om_bad_header",
            "x-om-admin",
        )
    return tokens[0] if tokens else None


def _is_admin_token(token: bytes, config: EdgeConfig) -> bool:
    admin_token = config.settings.server.admin_token
    if admin_token is None:
        return False
    return hmac.compare_digest(token, admin_token.get_secret_value().encode())
