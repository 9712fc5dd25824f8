"""Decide who may ask the admin API, and whose threads they see (docs/spec/http.md#admin-api).

The admin token sees all tenants; a caller's own credential sees its own. A request from another
site's page is refused, so no page that the user of a loopback server happens to visit can change
anything.
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
    """Raises Unauthorized for a request from another site's page. On a loopback bind, also for a
    `Host` that only resolves to loopback (DNS rebinding)."""
    host = (find_header(scope["headers"], b"host") or b"").decode("latin-1")
    origin = find_header(scope["headers"], b"origin")
    try:
        foreign = origin is not None and urlsplit(origin.decode("latin-1")).netloc != host
    except ValueError as exc:
        raise Unauthorized("Origin cannot be read") from exc
    if foreign:
        raise Unauthorized("the admin API answers no pages of other sites")
    if config.identity.loopback_only and not is_loopback_host(host):
        raise Unauthorized("ask for the admin API by a loopback address or as localhost")


def find_visible_tenant(
    scope: Scope, config: EdgeConfig, query_tenant: str | None, secret: bytes
) -> str | None:
    """Return the tenant whose threads the caller may see; None means all tenants. `query_tenant`:
    the one that the query names, which counts with the admin token only."""
    sent, known = _find_admin_token(scope), config.settings.server.admin_token
    if sent is not None:
        if known is None or not hmac.compare_digest(sent, known.get_secret_value().encode()):
            raise Unauthorized("X-OM-Admin is not the admin token (server.admin_token)")
        return query_tenant
    own = find_tenant(scope["headers"], config.identity, secret)
    if own is None or config.identity.token_required:
        # with tokens required, the users of one application share its credential
        raise Unauthorized("send the admin token as X-OM-Admin")
    return own


def _find_admin_token(scope: Scope) -> bytes | None:
    """Raises BadRequest for two tokens: a server in front may have checked the other one."""
    sent = [value for name, value in scope["headers"] if name == b"x-om-admin"]
    if len(sent) > 1:
        raise BadRequest(
            f"header x-om-admin was sent {len(sent)} times; send it once",
            "om_bad_header",
            "x-om-admin",
        )
    return sent[0] if sent else None
