"""Decide who may use the admin API, and whose threads they see
(docs/contributing/http.md#admin-api).

The admin token shows all tenants; a caller's own credential shows its own tenant. A request from
another site's page is refused: otherwise any page that the user of a loopback server visits could
change threads.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct, structs
from pydantic import SecretStr
from starlette.types import Scope

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import BadRequest, Forbidden, NotFound, StorageError, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.sign_in import SESSION_HEADER, SignIn, name_cookie
from om_proxy.memory.model import Key
from om_proxy.settings.identity.callers import MODE_CHOICES
from om_proxy.settings.identity.header_values import (
    ValuesByName,
    group_by_name,
    read_choice,
    read_first_name,
    read_value,
)
from om_proxy.settings.identity.identity_rules import (
    CREDENTIAL_HEADERS,
    GATEWAY_KEY_HEADERS,
    MODE_HEADER,
    TOKEN_HEADER,
)
from om_proxy.settings.identity.keyed_hashes import digest_caller
from om_proxy.settings.identity.local_requests import is_local_request, is_loopback_host
from om_proxy.settings.identity.naming import normalize_name
from om_proxy.settings.identity.tenants import LOCAL_TENANT, find_tenant
from om_proxy.settings.identity.thread_names import RequestNames, check_times, read_names
from om_proxy.storage.contract.memories import ThreadLists
from om_proxy.wire.server.capacity.work_queues import UNKNOWN_KEYS, Share
from om_proxy.wire.server.headers import Header, find_header

USER_OF_APPLICATION = "user"  # in the audit
LOCAL_CALLER = "local"  # in the audit: without a credential, on a loopback bind
_BEARER_PREFIX = b"bearer "
_Query = TypeVar("_Query", bound=Struct)


class Visitor(NamedTuple):
    """Who asks, and what they may see."""

    tenant: str | None  # whose threads; None: those of all tenants
    is_admin: bool = False
    may_read_text: bool = True  # of conversations and notes
    who: str = "admin"  # in the audit; another caller is a keyed digest of its credential
    # of a user's token: the resource, and the thread if it names one; None: no token was sent
    confined_to: RequestNames | None = None

    def confine(self, key: Key | None, query: _Query, *, is_for_one_resource: bool) -> _Query:
        """Return the query within what the user's token opens. `key`: what the path names;
        `is_for_one_resource`: as in the route's row. Raise NotFound for anything else, and Forbidden
        where a route shows more than one resource."""
        only = self.confined_to
        if only is None:
            return query
        if key is not None and key.resource:
            # what the token names counts, never what the headers name
            is_own_thread = only.only_thread in (None, key.thread)
            if key.resource != only.resource or not is_own_thread:
                raise NotFound("there is no memory of it")
            return query
        if key is not None or only.only_thread is not None or not is_for_one_resource:
            raise Forbidden(
                "X-OM-Token opens its own threads only, and this route is about others too; "
                "leave it out"
            )
        named: str | None = structs.asdict(query)["resource"]
        if named is not None and normalize_name(named) != only.resource:
            raise NotFound("there is no memory of it")
        return structs.replace(query, resource=only.resource)

    def require_text(self) -> None:
        """Raise Forbidden if the visitor may see no text."""
        if not self.may_read_text:
            raise Forbidden(
                "server.admin_reads is off, so the admin token sees no text: "
                "ask with the tenant's own credential"
            )


def require_open_api(config: EdgeConfig) -> None:
    """Raise NotFound if the admin API is switched off."""
    if config.settings.server.api == "off":
        raise NotFound("the admin API is switched off (server.api)")


def require_same_site(scope: Scope, config: EdgeConfig) -> None:
    """Raise Unauthorized for a request from another site's page. On a loopback bind, also raise it
    for a `Host` that only resolves to loopback (DNS rebinding), unless the admin token was sent."""
    host = read_host(scope)
    origin = find_header(scope["headers"], b"origin")
    try:
        is_other_site = origin is not None and urlsplit(origin.decode("latin-1")).netloc != host
    except ValueError as exc:
        raise Unauthorized("Origin cannot be read") from exc
    if is_other_site:
        raise Unauthorized("the admin API answers no pages of other sites")
    # a page that only resolves to loopback has no admin token; a proxy in front passes its own Host
    has_token = _has_admin_bearer(scope, config) or _has_admin_header(scope, config)
    if config.identity.loopback_only and not is_loopback_host(host) and not has_token:
        raise Unauthorized("ask for the admin API by a loopback address or as localhost")


def read_host(scope: Scope) -> str:
    return (find_header(scope["headers"], b"host") or b"").decode("latin-1")


def is_sign_in_open(scope: Scope, config: EdgeConfig) -> bool:
    """Return whether a link can sign the sender in: a browser of this machine."""
    return config.identity.loopback_only and is_local_request(group_by_name(scope["headers"]))


def _is_signed_in(scope: Scope, config: EdgeConfig, sign_in: SignIn | None) -> bool:
    """Return whether the dashboard's session counts. A credential counts before it."""
    headers = scope["headers"]
    sent = {name for name, _ in headers}
    return (
        sign_in is not None
        and SESSION_HEADER in sent
        and sent.isdisjoint((b"authorization", b"x-om-admin"))
        and is_sign_in_open(scope, config)
        and sign_in.has_session(headers, name_cookie(read_host(scope)))
    )


def admit_visitor(
    scope: Scope,
    config: EdgeConfig,
    query_tenant: str | None,
    secret: bytes,
    now: float,
    sign_in: SignIn | None = None,
) -> Visitor:
    """Identify who asks. A user's token confines its sender, and one that is not valid is
    refused. `now`: unix seconds. Raise the errors of `identify_visitor`."""
    if _is_signed_in(scope, config, sign_in):
        may_read_text = config.settings.server.admin_reads
        return Visitor(query_tenant, is_admin=True, may_read_text=may_read_text)
    visitor = identify_visitor(scope, config, query_tenant, secret)
    values = _read_identity(scope, config)
    if not _has_user_token(values, config):
        return visitor
    names = read_names(values, config.identity, visitor.tenant)
    check_times(names, now)
    return visitor._replace(confined_to=names)


def _read_identity(scope: Scope, config: EdgeConfig) -> ValuesByName:
    return group_by_name(config.identity.select_identity_headers(scope["headers"]))


def _has_user_token(values: ValuesByName, config: EdgeConfig) -> bool:
    return bool(config.identity.token_secret) and any(map(read_value, values.get(TOKEN_HEADER, [])))


def identify_visitor(
    scope: Scope, config: EdgeConfig, query_tenant: str | None, secret: bytes
) -> Visitor:
    """Identify who asks by the admin token or a credential. `query_tenant`: the tenant that the query
    names. Raise Unauthorized for a caller who may not ask, and NotFound for one who names another
    tenant without the admin token: else a script that lost the token would change its own memory in
    that one's place."""
    server = config.settings.server
    sent_token = _find_admin_token(scope)
    if sent_token is not None and not _is_admin_token(sent_token, config):
        raise Unauthorized("X-OM-Admin is not the admin token (server.admin_token)", "admin")
    if sent_token is not None or _has_admin_bearer(scope, config):
        return Visitor(query_tenant, is_admin=True, may_read_text=server.admin_reads)
    if server.api == "admin":
        raise _refuse_others(
            scope, "send the admin token as X-OM-Admin: server.api opens /om to it alone"
        )
    own_tenant = find_own_tenant(scope, config, secret)
    # if user tokens are required, the users of one application share its credential
    if own_tenant is None or config.identity.token_required:
        raise _refuse_others(scope, "send the admin token as X-OM-Admin")
    if query_tenant not in (None, own_tenant):
        # known or not: the words are the same
        raise NotFound(
            "there is no memory of it: another tenant's is shown to the admin token alone, "
            "so send it as X-OM-Admin, or leave out tenant"
        )
    return Visitor(own_tenant, who=_name_caller(scope, secret))


class Reader(NamedTuple):
    """Who reads memory by MCP (docs/contributing/recall.md#mcp). `tenant` None: the admin token,
    which named none."""

    tenant: str | None
    who: str  # in the audit
    resource: str | None = None  # of a header; or the only one, for a user's token
    has_token: bool = False
    only_thread: str | None = None  # if a user's token names it
    is_admin: bool = False

    def may_read(self, resource: str) -> bool:
        return not self.has_token or resource == self.resource


def identify_reader(
    scope: Scope, config: EdgeConfig, query_tenant: str | None, secret: bytes, now: float
) -> Reader:
    """Identify who reads by MCP, as the admin API does, or by a user's token. Raise Unauthorized,
    Forbidden, NotFound or BadRequest for a caller that may not read."""
    rules = config.identity
    values = _read_identity(scope, config)
    if read_choice(values, MODE_HEADER, MODE_CHOICES) in ("write", "off"):
        raise Forbidden("with X-OM-Mode: write or off nothing is read from memory")
    if _has_user_token(values, config):
        return _identify_user(scope, config, values, secret, now)
    visitor = identify_visitor(scope, config, query_tenant, secret)
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


def find_own_tenant(scope: Scope, config: EdgeConfig, secret: bytes) -> str | None:
    """Return the tenant of the caller's own credential, None if there is none. Raise Forbidden for
    a caller whose requests may spend no key of the operator's."""
    tenant = find_tenant(scope["headers"], config.identity, secret)
    if tenant is not None:
        config.check_own_memory(scope["headers"])
    return tenant


def _refuse_others(scope: Scope, message: str) -> Unauthorized:
    """Return the error where the admin token alone counts. A bearer is then a wrong one."""
    if find_header(scope["headers"], b"authorization"):
        return Unauthorized(message, "admin")
    return Unauthorized(message)


def _name_caller(scope: Scope, secret: bytes) -> str:
    credentials = [
        value.split(b" ")[-1]  # without its scheme
        for name, value in scope["headers"]
        if name.decode("latin-1") in (*CREDENTIAL_HEADERS, *GATEWAY_KEY_HEADERS)
    ]
    return digest_caller(secret, credentials) if credentials else LOCAL_CALLER


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


def _has_admin_header(scope: Scope, config: EdgeConfig) -> bool:
    tokens = [value for name, value in scope["headers"] if name == b"x-om-admin"]
    return len(tokens) == 1 and _is_admin_token(tokens[0], config)


def _has_admin_bearer(scope: Scope, config: EdgeConfig) -> bool:
    """Return whether the only `Authorization` header carries the admin token. Another credential is
    the caller's own."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return len(values) == 1 and _is_admin_bearer(values[0], config)


def drop_admin_token(headers: Sequence[Header], config: EdgeConfig) -> list[Header]:
    """Return the headers without an `Authorization` that carries the admin token: no other server
    may see it."""
    return [
        (name, value)
        for name, value in headers
        if name != b"authorization" or not _is_admin_bearer(value, config)
    ]


def _is_admin_bearer(value: bytes, config: EdgeConfig) -> bool:
    return _is_admin_token(read_bearer(value), config)


def read_bearer(value: bytes) -> bytes | None:
    """Return the token of an `Authorization` header; None for another scheme."""
    is_bearer = value.lower().startswith(_BEARER_PREFIX)
    return value[len(_BEARER_PREFIX) :].strip(b" \t") if is_bearer else None


def _is_admin_token(token: bytes | None, config: EdgeConfig) -> bool:
    return is_token(token, config.settings.server.admin_token)


def is_token(sent: bytes | None, expected: SecretStr | None) -> bool:
    if sent is None or expected is None:
        return False
    return hmac.compare_digest(sent, expected.get_secret_value().encode())


MAX_CACHED_TENANTS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class KnownTenants:
    """A key of `auth.keys` is known, and a program of this machine. Any other key is known once a
    model server has accepted it, so that a thread is stored."""

    store: ThreadLists
    _known: BoundedCache[str, bool] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_CACHED_TENANTS)
    )

    async def is_known(self, tenant: str, config: EdgeConfig) -> bool:
        """Return whether the tenant is known. A tenant that has been known stays so in this
        process. Raise StorageError."""
        if config.identity.keys or tenant == LOCAL_TENANT or self._known.get(tenant):
            return True
        if not await self.store.threads(tenant, limit=1):
            return False
        self._known.put(tenant, True)
        return True

    async def require_known(self, tenant: str, config: EdgeConfig) -> None:
        """Raise NotFound for an unknown tenant."""
        if not await self.is_known(tenant, config):
            raise NotFound(
                "no model server has accepted this key here yet: send one chat request of a "
                "thread with it first, or ask with the admin token"
            )

    async def find_share(self, tenant: str | None, config: EdgeConfig, *, is_admin: bool) -> Share:
        """Return whose slots a request takes (wire/server/capacity/work_queues.py)."""
        if is_admin or tenant is None:
            return None
        try:
            is_known = await self.is_known(tenant, config)
        except StorageError:  # the work itself says so
            is_known = False
        return tenant if is_known else UNKNOWN_KEYS
