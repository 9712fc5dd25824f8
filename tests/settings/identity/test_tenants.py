"""The tenant comes from the credential alone."""

import hashlib
from collections.abc import Callable
from contextlib import suppress

import pytest

from om_proxy.common.errors import BadRequest, Unauthorized
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import (
    LOCAL_TENANT,
    check_access,
    find_tenant,
    has_provider_credential,
)
from tests.settings.identity.examples import (
    KEYED,
    RULES,
    SECRET,
    headers,
    tenant_of,
)


def test_two_credentials_never_share_a_tenant() -> None:
    """The same thread under two API keys is two threads."""
    one, two = (
        identify(headers(authorization=f"Bearer {k}", x_om_thread="t"), RULES, SECRET)
        for k in ("a", "b")
    )
    assert one.key != two.key


@pytest.mark.parametrize(
    "other",
    ["sk-proj-" + "a" * 150 + "b", "sk-proj-" + "a" * 149, "SK-PROJ-" + "a" * 150, "sk-proj-"],
)
def test_a_credential_counts_whole(other: str) -> None:
    """Two credentials with the same beginning are two tenants (CVE-2026-35030)."""
    one = headers(authorization=f"Bearer sk-proj-{'a' * 150}", x_om_thread="t")
    assert (
        identify(one, RULES, SECRET).tenant
        != identify(headers(authorization=f"Bearer {other}"), RULES, SECRET).tenant
    )


def test_one_credential_is_one_tenant_in_whatever_header() -> None:
    """Authorization, x-api-key and api-key carry the same credential."""
    spellings = [
        headers(authorization="Bearer k"),
        headers(x_api_key="k"),
        headers(api_key="k"),
        headers(authorization="k"),
    ]
    assert {identify(h, RULES, SECRET).tenant for h in spellings} == {tenant_of("k")}


def test_two_different_credentials_are_refused() -> None:
    """The proxy does not guess which of them owns the memory."""
    with pytest.raises(BadRequest) as caught:
        identify(headers(authorization="Bearer a", x_api_key="b", x_om_thread="t"), RULES, SECRET)
    assert caught.value.code == "om_two_credentials"


def test_the_same_credential_twice_is_one() -> None:
    """Some clients send their key in two headers."""
    twice = identify(
        headers(authorization="Bearer a", x_api_key="a", x_om_thread="t"), RULES, SECRET
    )
    assert twice == identify(headers(authorization="Bearer a", x_om_thread="t"), RULES, SECRET)


@pytest.mark.parametrize("value", ["Bearer k\xa0", "Bearer \x85k", "\xa0k", "k\x0b"])
def test_a_credential_ends_where_http_says(value: str) -> None:
    """White space outside HTTP's definition is part of the credential, so that two callers never
    share a tenant."""
    sent = [(b"authorization", value.encode("latin-1"))]
    assert identify(sent, RULES, SECRET).tenant not in (tenant_of("k"), LOCAL_TENANT)


@pytest.mark.parametrize(
    ("key", "tenant"), [("key-a", "acme"), ("key-b", "globex"), ("key-a2", "acme")]
)
def test_configured_keys_name_the_tenant(key: str, tenant: str) -> None:
    """Several keys may belong to one tenant, so a key can be replaced without losing the memory."""
    assert identify(headers(authorization=f"Bearer {key}"), KEYED, SECRET).tenant == tenant


@pytest.mark.parametrize(
    "sent",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer key-"}, {"x_api_key": ""}],
)
def test_an_unknown_key_is_refused(sent: dict[str, str]) -> None:
    """With auth.keys, an unknown key is refused, and the answer does not repeat it."""
    with pytest.raises(Unauthorized) as caught:
        identify(headers(**sent), KEYED, SECRET)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("key", ["key-a", "key-b", "key-a2", "key-", "x" * 500])
@pytest.mark.parametrize(
    "ask",
    [
        lambda sent, rules: identify(sent, rules, SECRET),
        lambda sent, rules: find_tenant(sent, rules, SECRET),
        check_access,
    ],
    ids=["identify", "tenant", "admit"],
)
def test_the_time_tells_nothing_of_the_keys(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[list[tuple[bytes, bytes]], IdentityRules], object],
    key: str,
) -> None:
    """With any key, or none, the sent key is compared with all configured ones, in constant time
    and as digests of one length."""
    compared = []

    def compare(sent: bytes, key_hash: bytes) -> bool:
        compared.append((sent, key_hash))
        return sent == key_hash

    monkeypatch.setattr("om_proxy.settings.identity.tenants.hmac.compare_digest", compare)
    with suppress(Unauthorized):
        ask(headers(authorization=f"Bearer {key}"), IdentityRules(keys=KEYED.keys))
    sent_hash, *key_hashes = (
        hashlib.sha256(k.encode()).digest() for k in (key, *(k for _, k in KEYED.keys))
    )
    assert compared == [(sent_hash, key_hash) for key_hash in key_hashes]


@pytest.mark.parametrize("name", ["x_om_authorization", "x_memory_gateway_authorization"])
@pytest.mark.parametrize("value", ["Bearer key-b", "key-b"])
def test_a_gateway_key_decides(name: str, value: str) -> None:
    """The key in a gateway header names the tenant. The one in Authorization is the provider's,
    even if it is also in auth.keys."""
    for own in ({}, {"authorization": "Bearer sk-provider"}, {"x_api_key": "key-a"}):
        sent = headers(**{name: value}, **own)
        assert identify(sent, KEYED, SECRET).tenant == "globex"
        check_access(sent, KEYED)


@pytest.mark.parametrize(
    "sent",
    [
        {"x_om_authorization": "key-a", "x_memory_gateway_authorization": "key-b"},
        {"x_om_authorization": "key-a", "authorization": "Bearer p", "api_key": "q"},
    ],
)
def test_two_keys_of_a_kind_are_refused(sent: dict[str, str]) -> None:
    """Two gateway keys, or two provider keys: the proxy does not guess which one counts."""
    with pytest.raises(BadRequest) as caught:
        identify(headers(**sent), KEYED, SECRET)
    assert caught.value.code == "om_two_credentials"


def test_a_wrong_gateway_key_is_refused() -> None:
    """The gateway header decides alone, even if Authorization carries a valid key."""
    sent = headers(x_om_authorization="wrong", authorization="Bearer key-a")
    for ask in (lambda: identify(sent, KEYED, SECRET), lambda: check_access(sent, KEYED)):
        with pytest.raises(Unauthorized):
            ask()


def test_without_keys_the_header_says_nothing() -> None:
    """Without auth.keys, no one verified the gateway header, so it names no tenant."""
    sent = headers(authorization="Bearer k", x_om_authorization="Bearer other", x_om_thread="t")
    assert identify(sent, RULES, SECRET).tenant == tenant_of("k")
    assert not has_provider_credential(sent, RULES)
