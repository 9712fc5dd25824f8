# ruff: noqa: E501 - a case of a table is one line
"""Who may be served with the operator's key: whoever may read memory."""

from __future__ import annotations

import pytest

from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.spending import is_preflight, may_spend_operator_key
from om_proxy.settings.identity.tenants import find_tenant
from tests.settings.identity.examples import KEYED, RULES, SECRET

HERE = ("host", "127.0.0.1:8400")
OWN_KEY = ("authorization", "Bearer sk-any")
OPEN = IdentityRules(loopback_only=False)

ADDRESS_NAMES = (
    "x-forwarded-for",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-cluster-client-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "x-envoy-external-address",
    "client-ip",
    "x-azure-clientip",
    "cloudfront-viewer-address",
    "x-original-forwarded-for",
)

LOCAL = [
    [HERE], [], [("host", "localhost:8400")], [("host", "LOCALHOST")], [("host", "localhost.:8400")], [("host", "[::1]:8400")],
    [("host", "[::ffff:127.0.0.1]:8400")], [("host", "127.8.9.10")], [("host", "0.0.0.0:8400")],
    *([HERE, (name, "127.0.0.1")] for name in ADDRESS_NAMES),
    [HERE, ("origin", "http://localhost:3000")], [HERE, ("origin", "http://localhost.:3000")], [HERE, ("origin", "https://[::1]:5173")],
    [HERE, ("sec-fetch-site", "same-origin")], [HERE, ("sec-fetch-site", "none")], [HERE, ("sec-fetch-site", "same-site"), ("origin", "http://localhost:3000")],
    [HERE, ("x-forwarded-for", "::ffff:127.0.0.1"), ("x-forwarded-host", "localhost:3000"), ("x-forwarded-proto", "http")],
    [HERE, ("forwarded", "for=127.0.0.1;host=localhost:3000")],
    [HERE, ("via", "1.1 caddy"), ("x-forwarded-for", "::1"), ("x-forwarded-port", "3000"), ("x-forwarded-server", "h")],
]  # fmt: skip

# of other sites' pages, under an address that the machine itself may use
FOREIGN = [
    [HERE, ("origin", "https://evil.example")], [HERE, ("origin", "null")], [HERE, ("origin", "http://192.168.1.7")], [HERE, ("origin", "http://localhost.evil.example")],
    [HERE, ("origin", "chrome-extension://abc")], [HERE, ("origin", "http://127.0.0.1"), ("origin", "https://evil.example")],
    [HERE, ("sec-fetch-site", "cross-site")], [HERE, ("sec-fetch-site", "same-site"), ("origin", "http://app.evil.example")],
    [HERE, ("origin", "http://127.0.0.1:8400"), ("sec-fetch-site", "cross-site")],
    # a name that no other machine can own
    [("host", "app.localhost:8400")], [("host", "app.localhost.:8400")],
    # a program in a container of this machine
    [("host", "host.docker.internal:8400")], [("host", "host.containers.internal:8400")],
]  # fmt: skip

# by a reverse proxy on this machine
FORWARDED = [
    [HERE, ("x-forwarded-for", "8.8.8.8")], [HERE, ("x-forwarded-for", "127.0.0.1, 10.0.0.3")], [HERE, ("x-real-ip", "10.0.0.8")], [HERE, ("forwarded", "for=192.0.2.60")],
    [HERE, ("forwarded", 'for="[2001:db8::1]:4711"')], [HERE, ("x-forwarded-host", "proxy.example")], [HERE, ("forwarded", "host=proxy.example")], [HERE, ("x-forwarded-for", "unknown")],
    *([HERE, (name, "8.8.8.8")] for name in ADDRESS_NAMES), *([HERE, ("x-forwarded-for", "127.0.0.1"), (name, "8.8.8.8")] for name in ADDRESS_NAMES),
    # a proxy that names no client
    [HERE, ("x-forwarded-proto", "https")], [HERE, ("x-forwarded-port", "443")], [HERE, ("x-forwarded-server", "h")], [HERE, ("x-forwarded-prefix", "/om")], [HERE, ("x-forwarded-user", "ada")],
    [HERE, ("x-forwarded-host", "localhost")], [HERE, ("x-forwarded-for", "")], [HERE, ("forwarded", "proto=https")], [HERE, ("via", "1.1 proxy")], [HERE, ("cdn-loop", "cloudflare")], [HERE, ("x-original-host", "localhost")], [HERE, ("x-original-host", "proxy.example")], [HERE, ("tailscale-user-login", "a@b")],
]  # fmt: skip

# the name of a page that merely resolves to this machine, by DNS, mDNS or LLMNR; an address of another machine
REBOUND = [
    [("host", "rebound.example:8400")], [("host", "rebound.example.:8400")], [("host", "127.0.0.1.rebound.example")], [("host", "localhost.rebound.example:8400")],
    [("host", "rebound.example:8400"), ("origin", "http://rebound.example:8400")], [("host", "rebound.example:8400"), ("origin", "http://localhost:8400"), ("sec-fetch-site", "same-origin")],
    [("host", "0.0.0.0.rebound.example")], [("host", "[x")], [("host", "")], [("host", "127.0.0.1"), ("host", "rebound.example")],
    [("host", "evil.local:8400"), ("origin", "http://evil.local:8400")], [("host", "evil:8400"), ("origin", "http://evil:8400")], [("host", "printer.local")], [("host", "om-proxy:8400")],
    [("host", "host.docker.internal.evil.example")], [("host", "docker.internal")], [("host", "10.0.0.5:8400")], [("host", "[2001:db8::1]:8400")], [("host", "localhost.local")], [("host", ".localhost.evil")],
]  # fmt: skip

NO_KEYS = [[], [("authorization", "")], [("authorization", "Bearer ")], [("x-api-key", " ")], [("cookie", "a=b")], [("x-om-authorization", "Bearer k")], [("x-om-token", "t")]]  # fmt: skip
ANY_KEYS = [[OWN_KEY], [("x-api-key", "k")], [("api-key", "k")], [("authorization", "k")]]
# a browser adds them by itself: from the address (`http://x:y@…`), or as it remembers them
AMBIENT = [[("authorization", "Basic eDp5")], [("authorization", " basic eDp5")], [("authorization", "Negotiate YII=")], [("authorization", "NTLM TlRM")], [("authorization", 'Digest username="x"')]]  # fmt: skip
FOREIGN_PAGES = [sent for sent in FOREIGN if len(sent) > 1]
# no page of another site: a program, or a page that was sent from here
NO_FOREIGN_PAGES = [
    [("host", "host.docker.internal:8400")], [("host", "proxy.example")], [("host", "proxy.example"), ("sec-fetch-site", "none")],
    [("host", "proxy.example"), ("origin", "https://proxy.example")], [("host", "om-proxy:8400"), ("origin", "https://proxy.example"), ("sec-fetch-site", "same-origin")],
    [("host", "proxy.example:8400"), ("origin", "http://proxy.example:8400"), ("sec-fetch-site", "same-site")],
]  # fmt: skip


def may_spend(
    sent: list[tuple[str, str]], more: list[tuple[str, str]], rules: IdentityRules = RULES
) -> bool:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in [*sent, *more]]
    allowed = may_spend_operator_key(headers, rules)
    # one rule for memory and money: who has no tenant spends nothing
    assert not allowed or rules.keys or find_tenant(headers, rules, SECRET) is not None
    return allowed


@pytest.mark.parametrize("sent", LOCAL)
def test_a_program_of_this_machine_spends_the_key(sent: list[tuple[str, str]]) -> None:
    """On a loopback bind, with or without a credential."""
    assert [may_spend(sent, key) for key in (*NO_KEYS, *ANY_KEYS)] == [True] * 11


@pytest.mark.parametrize("sent", FOREIGN)
def test_a_stranger_needs_a_credential(sent: list[tuple[str, str]]) -> None:
    """A page of another site. A browser asks before it sends a page's
    credential, and a preflight has none."""
    assert [may_spend(sent, key) for key in NO_KEYS] == [False] * 7
    assert [may_spend(sent, key) for key in ANY_KEYS] == [True] * 4


@pytest.mark.parametrize("rules", [RULES, OPEN], ids=["loopback", "open"])
@pytest.mark.parametrize("sent", FOREIGN_PAGES)
def test_a_page_has_not_brought_what_its_browser_adds(
    sent: list[tuple[str, str]], rules: IdentityRules
) -> None:
    """It is no credential, neither for the key nor for memory."""
    assert [may_spend(sent, key, rules) for key in AMBIENT] == [False] * 5
    headers = [(name.encode(), value.encode()) for name, value in [*sent, *AMBIENT[0]]]
    assert find_tenant(headers, rules, SECRET) is None


@pytest.mark.parametrize("sent", NO_FOREIGN_PAGES)
def test_a_program_may_send_a_name_and_a_password(sent: list[tuple[str, str]]) -> None:
    assert [may_spend(sent, key, OPEN) for key in AMBIENT] == [True] * 5


@pytest.mark.parametrize("sent", [*REBOUND, *FORWARDED])
def test_where_anybody_may_ask_no_credential_counts(sent: list[tuple[str, str]]) -> None:
    """A page under a name that resolves to this machine can send any credential unasked, and so can
    whoever reaches a reverse proxy or another forwarder on this machine."""
    assert [may_spend(sent, key) for key in (*NO_KEYS, *ANY_KEYS)] == [False] * 11


@pytest.mark.parametrize("sent", [*LOCAL, *FOREIGN, *FORWARDED, *REBOUND])
def test_off_loopback_everybody_needs_a_credential(sent: list[tuple[str, str]]) -> None:
    """No host name says who is local there."""
    assert [may_spend(sent, key, OPEN) for key in NO_KEYS] == [False] * 7
    assert [may_spend(sent, key, OPEN) for key in ANY_KEYS] == [True] * 4


@pytest.mark.parametrize("sent", [*LOCAL, *FOREIGN, *FORWARDED, *REBOUND])
def test_with_keys_the_key_decides(sent: list[tuple[str, str]]) -> None:
    """Every route has asked for a key of `auth.keys` before."""
    assert may_spend(sent, [OWN_KEY], KEYED)


def test_a_preflight_is_known_by_its_header() -> None:
    """A browser names the method of the page's request."""
    assert is_preflight([(b"access-control-request-method", b"POST")])
    assert not is_preflight([(b"origin", b"https://evil.example")])


@pytest.mark.parametrize("rules", [RULES, OPEN, KEYED])
@pytest.mark.parametrize("sent", [*LOCAL, *FOREIGN, *FORWARDED, *REBOUND])
def test_an_identified_caller_may_spend_the_same(
    sent: list[tuple[str, str]], rules: IdentityRules
) -> None:
    """A chat request is identified first, and its caller knows what it may spend."""
    keys = [[("authorization", "Bearer key-a")]] if rules is KEYED else [*NO_KEYS, *ANY_KEYS]
    for key in keys:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in [*sent, *key]]
        caller = identify(headers, rules, SECRET)
        assert caller.may_spend_operator_key == may_spend_operator_key(headers, rules)
