"""Local programs need no credential; web pages and forwarded requests do."""

import pytest

from om_proxy.common.errors import Unauthorized
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import LOCAL_TENANT, find_tenant
from tests.settings.identity.examples import (
    KEYED,
    NOW,
    RULES,
    SECRET,
    SIGNED,
    headers,
    tenant_of,
    token,
)

HERE = "127.0.0.1:8400"  # what a page of any site can ask for, where its visitor runs us


def make_headers(host: str, *origins: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"host", host.encode()),
        (b"x-om-thread", b"t"),
        *((b"origin", o.encode("latin-1")) for o in origins),
    ]


def assert_local(
    request_headers: list[tuple[bytes, bytes]], is_local: bool, rules: IdentityRules = RULES
) -> None:
    """Assert that the caller is `local`, or has no tenant. With a credential it has a tenant in
    either case."""
    caller = identify(request_headers, rules, SECRET)
    assert (caller.tenant, caller.reason) == (
        (LOCAL_TENANT, None) if is_local else (None, "no-credential")
    )
    assert (caller.key is not None) is is_local
    assert find_tenant(request_headers, rules, SECRET) == caller.tenant
    with_key = identify([*request_headers, (b"authorization", b"Bearer k")], rules, SECRET)
    assert with_key.key == (tenant_of("k"), "t", "t")


@pytest.mark.parametrize(
    ("host", "origin", "known"),
    [
        ("127.0.0.1:8400", None, True),
        ("localhost:8400", "http://localhost:3000", True),
        ("[::1]:8400", "http://[::1]:8400", True),
        ("0.0.0.0:8400", None, True),  # as some programs spell this machine
        ("proxy.example", None, False),  # a page asks so too, by a link or an image
        ("10.0.0.5:8400", None, False),
        ("0.0.0.0.rebound.example", None, False),
        ("rebound.example:8400", "http://rebound.example:8400", False),
        ("rebound.example:8400", "http://localhost:3000", False),
        ("127.0.0.1.rebound.example", "http://localhost", False),
        ("[x", "http://localhost", False),
    ],
)
def test_a_page_under_another_name_is_not_local(host: str, origin: str | None, known: bool) -> None:
    """On loopback, a caller without a credential is `local`, but not a page whose name merely
    resolves there (DNS rebinding)."""
    assert_local(make_headers(host, *([origin] if origin else [])), known)


@pytest.mark.parametrize(
    ("site", "known"),
    [
        ("same-origin", True),
        ("same-site", True),
        ("none", True),
        ("cross-site", False),
        ("Cross-Site", False),
        ("", False),
    ],
)
def test_the_site_that_a_browser_names(site: str, known: bool) -> None:
    """A request from another site's page is not local, even without an origin. An unknown value is
    not local either."""
    assert_local([*make_headers(HERE), (b"sec-fetch-site", site.encode())], known)


@pytest.mark.parametrize(
    "origin",
    [
        f"{scheme}://{at}"
        for scheme in ("http", "https")
        for at in ("localhost", "127.0.0.1", "127.8.9.10:1", "[::1]:5173")
    ],
)
def test_a_page_of_this_machine_is_local(origin: str) -> None:
    """A page on loopback is served by a program of this machine, which may call the proxy as
    well."""
    assert_local(make_headers(HERE, origin), True)


ELSEWHERE = (
    *(
        "https://evil.example",
        "http://evil.example:8400",
        "http://192.168.1.2",
        "http://0.0.0.0:8400",
        "http://[::2]",
    ),
    *("http://localhost.evil.example", "http://127.0.0.1.evil.example", "http://evil-localhost"),
    "null",  # a frame in a sandbox, which any page can make, or a file that somebody sent
)

UNREADABLE = (
    *(
        "http://localhost@evil.example",
        "http://evil.example@localhost",
        "http://evil.example#@localhost",
        "http://[::1",
    ),
    *(
        "http://localhost/",
        "http://localhost:",
        "http://localhost:x",
        "http:localhost",
        "//localhost",
        "localhost",
    ),
    *("http://local\thost", "http://localhost\n", "http://localhost\xa0", "http://", "", " ", "*"),
    *(
        "http://localhost, https://evil.example",
        "http://localhost http://[::1]",
        "http://localhost null",
    ),
    *(
        "ftp://localhost",
        "file://localhost",
        "chrome-extension://localhost",
        "file://",
    ),  # no page of a web server
)


@pytest.mark.parametrize("origin", [*ELSEWHERE, *UNREADABLE])
def test_a_page_of_another_site_is_not_local(origin: str) -> None:
    """The page may call our address, and the model server may allow it, but it gets no memory. The
    same holds for an unreadable origin."""
    assert_local(make_headers(HERE, origin), False)


@pytest.mark.parametrize("second", ["https://evil.example", "http://localhost", ""])
def test_two_origins_are_not_local(second: str) -> None:
    """No browser sends two origins, and the proxy does not guess which one counts."""
    for origins in (("http://localhost", second), (second, "http://localhost")):
        assert_local(make_headers(HERE, *origins), False)


def test_a_page_is_not_the_cached_program() -> None:
    """A request that differs only in its origin is another caller, even if the first one is
    cached."""
    rules = IdentityRules()
    for _ in range(2):
        assert_local(make_headers(HERE), True, rules)
        assert_local(make_headers(HERE, "https://evil.example"), False, rules)
        assert_local(make_headers(HERE, "http://localhost"), True, rules)


def test_a_token_is_no_credential() -> None:
    """A token names a user, and not the owner of the memory: only a credential does."""
    sent = [*make_headers(HERE, "https://evil.example"), (b"x-om-token", token().encode())]
    assert identify(sent, SIGNED, SECRET, NOW).reason == "no-credential"
    assert identify([*sent, (b"authorization", b"Bearer k")], SIGNED, SECRET, NOW).key == (
        tenant_of("k"),
        "ada",
        "t",
    )


FROM_HERE = [
    ("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", " ::1 "), ("x-forwarded-for", "127.0.0.1, ::1"),
    ("x-forwarded-for", "127.0.0.1:4711"),
    ("x-real-ip", "127.0.0.1"), ("forwarded", "for=127.0.0.1;proto=http"), ("forwarded", 'For="[::1]:4711"'),
]  # fmt: skip

FROM_ELSEWHERE = [
    ("x-forwarded-for", "8.8.8.8"), ("x-forwarded-for", "8.8.8.8, 127.0.0.1"), ("x-forwarded-for", "127.0.0.1, 192.168.1.7"),
    ("x-forwarded-for", "2001:db8::1"), ("x-forwarded-for", "unknown"), ("x-forwarded-for", "127.0.0.1,"), ("x-real-ip", "10.0.0.8"),
    ("forwarded", "for=192.0.2.60;proto=http"), ("forwarded", 'for="[2001:db8::1]:4711"'), ("forwarded", "for=127.0.0.1, FOR=8.8.8.8"),
    ("forwarded", "for=_hidden"), ("forwarded", "for=unknown"), ("forwarded", "for="), ("forwarded", 'for="8.8.8.8'),
    ("forwarded", "proto=https"), ("x-forwarded-proto", "https"), ("x-forwarded-any", "x"), ("via", "1.1 proxy"),
    ("cf-connecting-ip", "8.8.8.8"), ("tailscale-user-login", "a@b"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [*((*of, True) for of in FROM_HERE), *((*of, False) for of in FROM_ELSEWHERE)],
)
def test_a_forwarded_request_is_not_local(name: str, value: str, known: bool) -> None:
    """Every request of a proxy on this machine comes from loopback. If it forwards another
    machine's request, the request is not local."""
    assert_local([*make_headers(HERE), (name.encode(), value.encode())], known)


def test_a_credential_counts_from_everywhere() -> None:
    """A credential and a key of auth.keys count wherever the request comes from."""
    sent = [
        *headers(x_om_thread="t", authorization="Bearer key-a"),
        (b"x-forwarded-for", b"8.8.8.8"),
    ]
    assert identify(sent, RULES, SECRET).key is not None
    assert identify(sent, KEYED, SECRET).tenant == "acme"


def test_with_keys_the_origin_says_nothing() -> None:
    """With auth.keys, the key decides, whatever page sends it. Without a key there is no memory."""
    page = make_headers("proxy.example", "https://app.example")
    assert identify([*page, (b"authorization", b"Bearer key-a")], KEYED, SECRET).key == (
        "acme",
        "t",
        "t",
    )
    with pytest.raises(Unauthorized):
        identify(make_headers(HERE, "http://localhost"), KEYED, SECRET)
