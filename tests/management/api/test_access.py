"""Who may use the admin API, and what they see."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.common.errors import BadRequest, Forbidden, NotFound, OmError, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import (
    Visitor,
    identify_visitor,
    require_open_api,
    require_same_site,
)
from om_proxy.settings.config import parse

SECRET = b"s" * 32
TOKEN = "a-long-admin-token"
ADMIN = Visitor(None, is_admin=True)
ADMIN_HEADER = (b"x-om-admin", TOKEN.encode())
ADMIN_BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
OWN_BEARER = (b"authorization", b"Bearer sk-a")


def make_config(more: str = "", token: str = f"admin_token: {TOKEN}") -> EdgeConfig:
    return EdgeConfig.from_settings(parse(f"server: {{{token or 'port: 0'}{more}}}"))


def identify(config: EdgeConfig, *headers: tuple[bytes, bytes], tenant: str | None = None) -> Any:
    scope = {"headers": [(b"host", b"127.0.0.1"), *headers]}
    return identify_visitor(scope, config, tenant, SECRET)


@pytest.mark.parametrize("api", ["own", "admin"])
@pytest.mark.parametrize(
    "header",
    [ADMIN_HEADER, ADMIN_BEARER, (b"authorization", f"bearer   {TOKEN} ".encode())],
)
def test_the_admin_token_sees_every_tenant(api: str, header: tuple[bytes, bytes]) -> None:
    config = make_config(f", api: {api}")
    assert identify(config, header) == ADMIN
    assert identify(config, header, tenant="one") == ADMIN._replace(tenant="one")


def test_a_caller_sees_its_own_tenant() -> None:
    """It may name its own tenant, and no other one."""
    config = make_config()
    own = identify(config, OWN_BEARER)
    assert own.tenant is not None
    assert own == Visitor(own.tenant, who=own.who)
    assert identify(config, OWN_BEARER, tenant=own.tenant) == own
    with pytest.raises(NotFound, match="send it as X-OM-Admin"):
        identify(config, OWN_BEARER, tenant="other")
    assert identify(config, (b"authorization", b"Bearer sk-b")).tenant != own.tenant


def test_the_audit_names_a_caller_without_its_key() -> None:
    """One credential is one name, however it is sent; another one is another."""
    config = make_config()
    own = identify(config, OWN_BEARER)
    key = OWN_BEARER[1].split()[1]
    assert identify(config, (b"x-api-key", key)).who == own.who
    assert identify(config, (b"authorization", b"bearer " + key)).who == own.who
    assert key.decode() not in own.who
    assert identify(config, (b"authorization", b"Bearer sk-b")).who != own.who
    assert own.who not in ("admin", "local", "cli")


@pytest.mark.parametrize("headers", [[], [OWN_BEARER]])
def test_with_api_admin_no_caller_sees_anything(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        identify(make_config(", api: admin"), *headers)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([(b"x-om-admin", b"wrong")], Unauthorized),
        ([(b"x-om-admin", b"wrong"), ADMIN_BEARER], Unauthorized),
        ([ADMIN_HEADER, ADMIN_HEADER], BadRequest),
        ([ADMIN_BEARER, OWN_BEARER], BadRequest),  # a server in front may have checked the other
    ],
)
def test_an_unclear_credential_opens_nothing(
    headers: list[tuple[bytes, bytes]], error: type[OmError]
) -> None:
    with pytest.raises(error):
        identify(make_config(), *headers)


def test_without_an_admin_token_no_bearer_is_one() -> None:
    config = make_config(token="")
    assert not identify(config, ADMIN_BEARER).is_admin
    assert not identify(config, (b"authorization", b"Bearer ")).is_admin
    with pytest.raises(Unauthorized):
        identify(config, (b"x-om-admin", b""))


def test_the_admin_token_may_be_kept_from_text() -> None:
    config = make_config(", admin_reads: false")
    admin = identify(config, ADMIN_HEADER)
    assert admin == ADMIN._replace(may_read_text=False)
    with pytest.raises(Forbidden):
        admin.require_text()
    identify(config, OWN_BEARER).require_text()


@pytest.mark.parametrize("header", [ADMIN_HEADER, ADMIN_BEARER])
def test_the_admin_token_may_come_by_another_host(header: tuple[bytes, bytes]) -> None:
    """A server in front passes its own name. A page that only resolves to loopback has no token."""
    config = make_config()
    host = (b"host", b"om.example.org")
    require_same_site({"headers": [host, header]}, config)
    for headers in ([host], [host, OWN_BEARER], [host, (b"x-om-admin", b"wrong")]):
        with pytest.raises(Unauthorized):
            require_same_site({"headers": headers}, config)
    with pytest.raises(Unauthorized):
        require_same_site({"headers": [host, header, (b"origin", b"https://x.example")]}, config)


def test_the_api_can_be_off() -> None:
    require_open_api(make_config(", api: admin"))
    for word in ("off", "'off'", "false"):
        with pytest.raises(NotFound):
            require_open_api(make_config(f", api: {word}"))
