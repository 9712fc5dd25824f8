"""Decide who reads memory by this route, and how far: as the admin API does, or by a user's token
(docs/contributing/recall.md#mcp)."""

from __future__ import annotations

from typing import NamedTuple

from starlette.types import Scope

from om_proxy.common.errors import Forbidden, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import find_own_tenant, identify_visitor
from om_proxy.management.api.requests import read_tenant
from om_proxy.settings.identity.callers import MODE_CHOICES
from om_proxy.settings.identity.header_values import (
    ValuesByName,
    group_by_name,
    read_choice,
    read_first_name,
    read_value,
)
from om_proxy.settings.identity.identity_rules import MODE_HEADER, TOKEN_HEADER
from om_proxy.settings.identity.thread_names import check_times, read_names

USER_OF_APPLICATION = "user"  # in the audit


class Reader(NamedTuple):
    """Who reads. `tenant` None: the admin token, which named none."""

    tenant: str | None
    who: str  # in the audit
    resource: str | None = None  # of a header; or the only one, for a user's token
    has_token: bool = False
    only_thread: str | None = None  # if a user's token names it
    is_admin: bool = False

    def may_read(self, resource: str) -> bool:
        return not self.has_token or resource == self.resource


def identify_reader(scope: Scope, config: EdgeConfig, secret: bytes, now: float) -> Reader:
    """Identify the reader. Raise Unauthorized, Forbidden, NotFound or BadRequest for a caller that
    may not read."""
    rules = config.identity
    values = group_by_name(rules.select_identity_headers(scope["headers"]))
    if read_choice(values, MODE_HEADER, MODE_CHOICES) in ("write", "off"):
        raise Forbidden("with X-OM-Mode: write or off nothing is read from memory")
    if rules.token_secret and any(map(read_value, values.get(TOKEN_HEADER, []))):
        return _identify_user(scope, config, values, secret, now)
    visitor = identify_visitor(scope, config, read_tenant(scope["query_string"]), secret)
    visitor.require_text()
    return Reader(
        visitor.tenant,
        visitor.who,
        read_first_name(values, rules.resource_headers),
        is_admin=visitor.is_admin,
    )


def _identify_user(
    scope: Scope, config: EdgeConfig, values: ValuesByName, secret: bytes, now: float
) -> Reader:
    """Identify the user whose token was sent. Headers name no other resource than it does."""
    if config.settings.server.api == "admin":
        raise Unauthorized("send the admin token as X-OM-Admin: server.api opens /om to it alone")
    tenant = find_own_tenant(scope, config, secret)
    if tenant is None:
        raise Unauthorized("a token is sent together with the credential of its application")
    names = read_names(values, config.identity, tenant)
    check_times(names, now)
    return Reader(
        tenant,
        USER_OF_APPLICATION,
        names.resource,
        has_token=True,
        only_thread=names.only_thread,
    )
