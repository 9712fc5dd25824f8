"""Who is asking: every sentence of docs/spec/behaviour.md#identity that headers alone decide."""

import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.errors import BadRequest, Unauthorized
from om_proxy.memory import identity
from om_proxy.memory.identity import LOCAL_TENANT, Rules, admit, brings_own, fingerprint_key, identify
from om_proxy.memory.user_token import Claims, signed

SECRET = b"s" * 32
RULES = Rules()


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


def tenant_of(key: str) -> str:
    return hmac.new(SECRET, key.encode(), hashlib.sha256).hexdigest()


def test_thread_and_resource_name_the_memory() -> None:
    """The key is tenant, resource and thread, the tenant an HMAC of the credential."""
    caller = identify(headers(authorization="Bearer k", x_om_thread="t", x_om_resource="r"), RULES, SECRET)
    assert caller.key == (tenant_of("k"), "r", "t")
    assert (caller.mode, caller.history, caller.reason) == ("on", "auto", None)


def test_two_credentials_never_share_a_tenant() -> None:
    """The same thread under two API keys is two threads."""
    one, two = (identify(headers(authorization=f"Bearer {k}", x_om_thread="t"), RULES, SECRET) for k in ("a", "b"))
    assert one.key != two.key


@pytest.mark.parametrize(
    "other", ["sk-proj-" + "a" * 150 + "b", "sk-proj-" + "a" * 149, "SK-PROJ-" + "a" * 150, "sk-proj-"]
)
def test_a_credential_counts_whole(other: str) -> None:
    """One that begins like another's is another (CVE-2026-35030)."""
    one = headers(authorization=f"Bearer sk-proj-{'a' * 150}", x_om_thread="t")
    assert (
        identify(one, RULES, SECRET).tenant != identify(headers(authorization=f"Bearer {other}"), RULES, SECRET).tenant
    )


def test_one_credential_is_one_tenant_in_whatever_header() -> None:
    """Authorization, x-api-key and api-key are three spellings of the same credential."""
    spellings = [
        headers(authorization="Bearer k"),
        headers(x_api_key="k"),
        headers(api_key="k"),
        headers(authorization="k"),
    ]
    assert {identify(h, RULES, SECRET).tenant for h in spellings} == {tenant_of("k")}


def test_a_resource_left_out_is_the_thread_itself() -> None:
    """A thread without a resource stands alone."""
    caller = identify(headers(x_om_thread="t"), RULES, SECRET)
    assert caller.key == (LOCAL_TENANT, "t", "t")


@pytest.mark.parametrize(
    ("sent", "thread"),
    [
        ({"x_om_thread": "ours", "x_thread_id": "theirs"}, "ours"),
        ({"x_thread_id": "gateway"}, "gateway"),
        ({"x_openwebui_chat_id": "chat"}, "chat"),
        ({"x_om_thread": "", "x_thread_id": "second"}, "second"),
        ({"x_om_thread": "{{CHAT_ID}}", "x_thread_id": "second"}, "second"),
        ({"x_om_thread": "  "}, None),
        ({"x_om_thread": " \tt \t"}, "t"),
        ({"x_om_thread": "a{{USER}}b"}, None),
    ],
)
def test_aliases_in_order(sent: dict[str, str], thread: str | None) -> None:
    """The first usable header counts; an empty value or an unfilled template is absent."""
    key = identify(headers(**sent), RULES, SECRET).key
    assert (key.thread if key else None) == thread


NO_BLANKS = (
    "t\xa0",
    "\x85t",
    "\xa0",
    "t\x0b",
    "\x0ct",
    "t\x1c",
    "\x1ft",
    "t\n",
)  # white space to Python, and not to HTTP


@pytest.mark.parametrize(
    "value", ["a b", "ü".encode().decode("latin-1"), "x" * 257, "a\tb", "a,b", "a;b", "<t>", *NO_BLANKS]
)
def test_a_bad_thread_is_refused(value: str) -> None:
    """A value outside the character set is a 400 that names the header, never a guess."""
    with pytest.raises(BadRequest, match="x-om-thread") as caught:
        identify([(b"x-om-thread", value.encode("latin-1"))], RULES, SECRET)
    assert caught.value.code == "om_bad_header"


def test_a_bad_alias_is_refused_beside_a_good_header() -> None:
    """A bad header is never passed over in silence."""
    with pytest.raises(BadRequest, match="x-thread-id"):
        identify(headers(x_om_thread="t", x_thread_id="a b"), RULES, SECRET)


def test_a_header_sent_twice_is_refused() -> None:
    """Two thread headers could mean two threads."""
    with pytest.raises(BadRequest, match="2 times"):
        identify([(b"x-om-thread", b"a"), (b"x-om-thread", b"b")], RULES, SECRET)


def test_two_different_credentials_are_refused() -> None:
    """Which of them would own the memory is not ours to guess."""
    with pytest.raises(BadRequest) as caught:
        identify(headers(authorization="Bearer a", x_api_key="b", x_om_thread="t"), RULES, SECRET)
    assert caught.value.code == "om_two_credentials"


def test_the_same_credential_twice_is_one() -> None:
    """Some clients send their key in two headers."""
    twice = identify(headers(authorization="Bearer a", x_api_key="a", x_om_thread="t"), RULES, SECRET)
    assert twice == identify(headers(authorization="Bearer a", x_om_thread="t"), RULES, SECRET)


@pytest.mark.parametrize(
    ("rules", "sent", "reason"),
    [
        (RULES, {}, "no-thread"),
        (Rules(loopback=False), {"x_om_thread": "t"}, "no-credential"),
        (Rules(memory=False), {"x_om_thread": "t"}, "disabled"),
        (RULES, {"x_om_thread": "t", "x_om_mode": "off"}, "mode-off"),
        (RULES, {"x_om_thread": "t", "x_om_task": "title_generation"}, "side-request"),
    ],
)
def test_no_memory_and_why(rules: Rules, sent: dict[str, str], reason: str) -> None:
    """Whoever gets no memory is told in one word."""
    caller = identify(headers(**sent), rules, SECRET)
    assert (caller.key, caller.reason) == (None, reason)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["title"], "side-request"),
        (["", "title"], "side-request"),
        (["title", ""], "side-request"),
        (["{{TASK}}", "title"], "side-request"),
        (["title", "tags"], "side-request"),
        (["\xa0"], "side-request"),
        ([], None),
        ([""], None),
        ([" \t"], None),
        (["", ""], None),
        (["{{TASK}}"], None),
    ],
)
def test_a_task_is_a_side_request(values: list[str], reason: str | None) -> None:
    """Whatever it is called and wherever it stands. A template that nobody filled in says nothing, as in any other header: else a
    client that fills it for side requests alone would never have a memory."""
    sent = headers(x_om_thread="t") + [(b"x-om-task", value.encode("latin-1")) for value in values]
    assert identify(sent, RULES, SECRET).reason == reason


@pytest.mark.parametrize("mode", ["on", "read", "write"])
def test_modes_that_keep_a_memory(mode: str) -> None:
    """Every mode but off has a memory."""
    caller = identify(headers(x_om_thread="t", x_om_mode=mode.upper()), RULES, SECRET)
    assert caller.mode == mode
    assert caller.key


@pytest.mark.parametrize("name", ["x_om_mode", "x_om_history"])
def test_an_unknown_word_is_refused(name: str) -> None:
    """A misspelt mode must not silently mean the default."""
    with pytest.raises(BadRequest, match="must be one of"):
        identify(headers(x_om_thread="t", **{name: "sometimes"}), RULES, SECRET)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x-om-mode", ["off\xa0"]),
        ("x-om-history", ["\x85full"]),
        ("x-om-timezone", ["UTC\xa0"]),
        ("x-om-mode", ["", "off"]),
        ("x-om-mode", ["off", ""]),
    ],
)
def test_a_word_that_is_nearly_one_is_refused(name: str, values: list[str]) -> None:
    """White space is what HTTP calls so, and of a header sent twice no value is passed over."""
    sent = headers(x_om_thread="t") + [(name.encode(), value.encode("latin-1")) for value in values]
    with pytest.raises(BadRequest, match=name):
        identify(sent, RULES, SECRET)


@pytest.mark.parametrize("value", ["Bearer k\xa0", "Bearer \x85k", "\xa0k", "k\x0b"])
def test_a_credential_ends_where_http_says(value: str) -> None:
    """White space that is none to HTTP is a part of it, so that two callers never meet."""
    sent = [(b"authorization", value.encode("latin-1"))]
    assert identify(sent, RULES, SECRET).tenant not in (tenant_of("k"), LOCAL_TENANT)


CHOOSING = Rules(scope_override=True)


@pytest.mark.parametrize(
    ("rules", "sent", "scope"),
    [
        (CHOOSING, {}, None),
        (CHOOSING, {"x_om_scope": ""}, None),
        (CHOOSING, {"x_om_scope": "resource"}, "resource"),
        (CHOOSING, {"x_om_scope": " Thread "}, "thread"),
        (RULES, {"x_om_scope": "resource"}, None),
        (RULES, {"x_om_scope": "sometimes"}, None),
    ],
)
def test_a_scope_is_chosen_where_that_is_allowed(rules: Rules, sent: dict[str, str], scope: str | None) -> None:
    """X-OM-Scope counts with `identity.scope_override` only; without it the header says nothing, whatever it says."""
    assert identify(headers(x_om_thread="t", **sent), rules, SECRET).scope == scope


@pytest.mark.parametrize("values", [["sometimes"], ["thread", "resource"]])
def test_a_scope_that_cannot_be_meant(values: list[str]) -> None:
    """Where the choice is allowed, a word that is no scope is refused: a guess could show a memory to others."""
    sent = headers(x_om_thread="t") + [(b"x-om-scope", value.encode()) for value in values]
    with pytest.raises(BadRequest, match="must be one of: thread, resource"):
        identify(sent, CHOOSING, SECRET)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"x_om_resource": "r"}, True),
        ({"x_openwebui_user_id": "r"}, True),
        ({}, False),
        ({"x_om_resource": "{{USER}}"}, False),
    ],
)
def test_whether_a_resource_was_named(sent: dict[str, str], named: bool) -> None:
    """A resource that only stands in for the thread is told from one that was named, even by the same word."""
    assert identify(headers(x_om_thread="r", **sent), RULES, SECRET).names_resource == named


KEYED = Rules(keys=(("acme", "key-a"), ("globex", "key-b"), ("acme", "key-a2")))


@pytest.mark.parametrize(("key", "tenant"), [("key-a", "acme"), ("key-b", "globex"), ("key-a2", "acme")])
def test_configured_keys_name_the_tenant(key: str, tenant: str) -> None:
    """Several keys may belong to one tenant, so a key can be changed without losing the memory."""
    assert identify(headers(authorization=f"Bearer {key}"), KEYED, SECRET).tenant == tenant


@pytest.mark.parametrize(
    "sent", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer key-"}, {"x_api_key": ""}]
)
def test_an_unknown_key_is_refused(sent: dict[str, str]) -> None:
    """With keys configured nobody else gets through, and the answer does not echo what was sent."""
    with pytest.raises(Unauthorized) as caught:
        identify(headers(**sent), KEYED, SECRET)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("key", ["key-a", "key-b", "key-a2", "key-", "x" * 500])
@pytest.mark.parametrize(
    "ask",
    [
        lambda sent, rules: identify(sent, rules, SECRET),
        lambda sent, rules: identity.tenant(sent, rules, SECRET),
        admit,
    ],
    ids=["identify", "tenant", "admit"],
)
def test_the_time_tells_nothing_of_the_keys(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[list[tuple[bytes, bytes]], Rules], object], key: str
) -> None:
    """Whichever key fits, or none: what was sent is compared with all of them, in constant time and as digests of one length."""
    compared = []

    def compare(sent: bytes, known: bytes) -> bool:
        compared.append((sent, known))
        return sent == known

    monkeypatch.setattr("om_proxy.memory.identity.hmac.compare_digest", compare)
    with suppress(Unauthorized):
        ask(headers(authorization=f"Bearer {key}"), Rules(keys=KEYED.keys))
    sent, *known = (hashlib.sha256(k.encode()).digest() for k in (key, *(k for _, k in KEYED.keys)))
    assert compared == [(sent, digest) for digest in known]


@pytest.mark.parametrize(
    ("sent", "zone"), [("Europe/Berlin", "Europe/Berlin"), (" UTC ", "UTC"), ("", None), ("{{TIMEZONE}}", None)]
)
def test_timezone(sent: str, zone: str | None) -> None:
    """An IANA name; an empty value or an unfilled template is absent."""
    assert identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET).timezone == zone


@pytest.mark.parametrize(
    "sent",
    [
        "Mars/Olympus",
        "../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "x" * 5_000,
        "a/" * 600 + "a",
        "a/a/a/a",
        "Europe//Berlin",
    ],
)
def test_a_bad_timezone(sent: str) -> None:
    """What no clock knows is refused, and never looked for outside the zone table."""
    with pytest.raises(BadRequest, match="IANA") as caught:
        identify(headers(x_om_thread="t", x_om_timezone=sent), RULES, SECRET)
    assert sent not in str(caught.value)


def test_fingerprint_keys_differ_between_tenants() -> None:
    """Equal messages of two tenants never look equal."""
    assert fingerprint_key(SECRET, "a") != fingerprint_key(SECRET, "b")


# ── our key beside the provider's ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["x_om_authorization", "x_memory_gateway_authorization"])
@pytest.mark.parametrize("value", ["Bearer key-b", "key-b"])
def test_a_key_sent_by_name_decides(name: str, value: str) -> None:
    """It names the tenant; what stands in Authorization is the provider's, even where it is a key of ours too."""
    for own in ({}, {"authorization": "Bearer sk-provider"}, {"x_api_key": "key-a"}):
        sent = headers(**{name: value}, **own)
        assert identify(sent, KEYED, SECRET).tenant == "globex"
        admit(sent, KEYED)


@pytest.mark.parametrize(
    "sent",
    [
        {"x_om_authorization": "key-a", "x_memory_gateway_authorization": "key-b"},
        {"x_om_authorization": "key-a", "authorization": "Bearer p", "api_key": "q"},
    ],
)
def test_two_keys_of_a_kind_are_refused(sent: dict[str, str]) -> None:
    """Two tenants, or two providers' keys: which is meant is not ours to guess."""
    with pytest.raises(BadRequest) as caught:
        identify(headers(**sent), KEYED, SECRET)
    assert caught.value.code == "om_two_credentials"


def test_a_wrong_key_by_name_is_not_made_good_by_a_right_one() -> None:
    """The header that was meant for us decides alone."""
    sent = headers(x_om_authorization="wrong", authorization="Bearer key-a")
    for ask in (lambda: identify(sent, KEYED, SECRET), lambda: admit(sent, KEYED)):
        with pytest.raises(Unauthorized):
            ask()


def test_without_keys_the_header_says_nothing() -> None:
    """Nobody verified it, so it makes no tenant."""
    sent = headers(authorization="Bearer k", x_om_authorization="Bearer other", x_om_thread="t")
    assert identify(sent, RULES, SECRET).tenant == tenant_of("k")
    assert not brings_own(sent, RULES)


# ── signed names ─────────────────────────────────────────────────────────────────────────────────────────────────────

SIGNING = b"0123456789abcdef0123456789abcdef"
SIGNED = Rules(token_secret=SIGNING)
REQUIRED = Rules(token_secret=SIGNING, token_required=True)
NOW = 1_700_000_000.0


def token(resource: str = "ada", thread: str | None = None, tenant: str | None = None, exp: float = NOW + 60) -> str:
    return signed(Claims(resource=resource, exp=exp, thread=thread, tenant=tenant), SIGNING)


@pytest.mark.parametrize(
    ("claimed", "sent", "names"),
    [
        (token(), {"x_om_thread": "t"}, ("ada", "t")),
        (token(), {"x_om_thread": "t", "x_om_resource": "ada"}, ("ada", "t")),
        (token(thread="t"), {}, ("ada", "t")),
        (token(thread="t"), {"x_thread_id": "t", "x_resource_id": "ada"}, ("ada", "t")),
    ],
)
def test_a_token_names(claimed: str, sent: dict[str, str], names: tuple[str, str]) -> None:
    """The resource, and the thread where it says one; headers may repeat it."""
    for rules in (SIGNED, REQUIRED):
        caller = identify(headers(x_om_token=claimed, **sent), rules, SECRET, NOW)
        assert caller.key == (LOCAL_TENANT, *names)
        assert caller.names_resource


@pytest.mark.parametrize(
    ("claimed", "sent"),
    [
        (token(), {"x_om_thread": "t", "x_om_resource": "eve"}),
        (token(), {"x_om_thread": "t", "x_openwebui_user_id": "eve"}),
        (token(thread="t"), {"x_om_thread": "other"}),
        (token(resource="a\tb"), {"x_om_thread": "t"}),
        (token(thread="a\nb"), {}),
        (token(thread="ü" * 129), {}),
        (token(resource=""), {"x_om_thread": "t"}),
        (token(tenant="acme"), {"x_om_thread": "t"}),
        (token()[:-2], {"x_om_thread": "t"}),
        ("rubbish", {"x_om_thread": "t"}),
    ],
)
def test_a_token_that_does_not_fit_is_refused(claimed: str, sent: dict[str, str]) -> None:
    """No other resource, no other thread, no other tenant, and no guess where it is broken."""
    with pytest.raises(Unauthorized, match="x-om-token") as caught:
        identify(headers(x_om_token=claimed, **sent), SIGNED, SECRET, NOW)
    assert claimed not in str(caught.value)


def test_a_token_is_refused_where_the_headers_alone_would_do() -> None:
    """A wrong token is never read as none."""
    with pytest.raises(Unauthorized):
        identify(headers(x_om_token="x", x_om_thread="t", x_om_resource="r"), SIGNED, SECRET, NOW)


def test_a_token_ends() -> None:
    """Also for a caller who is known already; without a clock every token has ended."""
    sent = headers(x_om_token=token(thread="t", exp=NOW + 60))
    assert identify(sent, SIGNED, SECRET, NOW).key
    for late in (NOW + 91, math.inf):
        with pytest.raises(Unauthorized, match="ended"):
            identify(sent, SIGNED, SECRET, late)
    with pytest.raises(Unauthorized, match="ended"):
        identify(sent, SIGNED, SECRET)


def test_a_token_begins() -> None:
    """Half a minute sooner than it says, because clocks differ; also for a caller who is known already."""
    claims = Claims(resource="ada", exp=NOW + 600, thread="t", nbf=NOW + 100)
    sent = headers(x_om_token=signed(claims, SIGNING))
    for early in (NOW, NOW + 69):
        with pytest.raises(Unauthorized, match="nbf"):
            identify(sent, SIGNED, SECRET, early)
    assert identify(sent, SIGNED, SECRET, NOW + 70).key == (LOCAL_TENANT, "ada", "t")


def test_a_token_for_one_tenant() -> None:
    """With keys a token counts beside its own tenant's key only."""
    rules = Rules(keys=KEYED.keys, token_secret=SIGNING)
    sent = {"x_om_thread": "t", "x_om_token": token(tenant="acme")}
    assert identify(headers(authorization="Bearer key-a", **sent), rules, SECRET, NOW).key == ("acme", "ada", "t")
    for wrong in (
        headers(authorization="Bearer key-b", **sent),
        headers(authorization="Bearer key-a", x_om_token=token()),
    ):
        with pytest.raises(Unauthorized, match="another tenant"):
            identify(wrong, rules, SECRET, NOW)


@pytest.mark.parametrize("sent", [{"x_om_thread": "t"}, {"x_thread_id": "t", "x_om_token": "{{TOKEN}}"}])
def test_where_a_token_is_required(sent: dict[str, str]) -> None:
    """No thread without one; what names no thread passes through as ever."""
    with pytest.raises(Unauthorized, match="x-om-token only"):
        identify(headers(**sent), REQUIRED, SECRET, NOW)
    assert identify(headers(x_om_resource="r"), REQUIRED, SECRET, NOW).reason == "no-thread"
    assert identify(headers(**sent), SIGNED, SECRET, NOW).key


def test_two_tokens_are_refused() -> None:
    """As any header that can be meant once."""
    with pytest.raises(BadRequest, match="2 times"):
        identify(headers(x_om_token=token()) * 2, SIGNED, SECRET, NOW)


def test_without_a_secret_a_token_says_nothing() -> None:
    """It cannot be verified: the headers count, as they would without it."""
    assert identify(headers(x_om_token="x", x_om_thread="t"), RULES, SECRET, NOW).key == (LOCAL_TENANT, "t", "t")


# ── web pages ────────────────────────────────────────────────────────────────────────────────────────────────────────

HERE = "127.0.0.1:8400"  # what a page of any site can ask for, where its visitor runs us


def asked(host: str, *origins: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", host.encode()), (b"x-om-thread", b"t"), *((b"origin", o.encode("latin-1")) for o in origins)]


def assert_known(sent: list[tuple[bytes, bytes]], known: bool, rules: Rules = RULES) -> None:
    """As `local`, or as nobody; a caller with a credential is known in either case."""
    caller = identify(sent, rules, SECRET)
    assert (caller.tenant, caller.reason) == ((LOCAL_TENANT, None) if known else (None, "no-credential"))
    assert (caller.key is not None) is known
    assert identity.tenant(sent, rules, SECRET) == caller.tenant
    with_key = identify([*sent, (b"authorization", b"Bearer k")], rules, SECRET)
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
def test_a_page_under_another_name_is_nobody(host: str, origin: str | None, known: bool) -> None:
    """On loopback a caller without a credential is `local`, but no page whose name only resolves there (DNS rebinding)."""
    assert_known(asked(host, *([origin] if origin else [])), known)


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
def test_what_a_browser_says_of_the_page(site: str, known: bool) -> None:
    """A request of another site's page is nobody's also where no origin is told; what we do not
    know, neither."""
    assert_known([*asked(HERE), (b"sec-fetch-site", site.encode())], known)


@pytest.mark.parametrize(
    "origin",
    [
        f"{scheme}://{at}"
        for scheme in ("http", "https")
        for at in ("localhost", "127.0.0.1", "127.8.9.10:1", "[::1]:5173")
    ],
)
def test_a_page_of_this_machine_is_local(origin: str) -> None:
    """Whoever serves pages on loopback runs programs here, and those may ask as well."""
    assert_known(asked(HERE, origin), True)


ELSEWHERE = (
    *("https://evil.example", "http://evil.example:8400", "http://192.168.1.2", "http://0.0.0.0:8400", "http://[::2]"),
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
    *("http://localhost/", "http://localhost:", "http://localhost:x", "http:localhost", "//localhost", "localhost"),
    *("http://local\thost", "http://localhost\n", "http://localhost\xa0", "http://", "", " ", "*"),
    *("http://localhost, https://evil.example", "http://localhost http://[::1]", "http://localhost null"),
    *("ftp://localhost", "file://localhost", "chrome-extension://localhost", "file://"),  # no page of a web server
)


@pytest.mark.parametrize("origin", [*ELSEWHERE, *UNREADABLE])
def test_a_page_of_another_site_is_nobody(origin: str) -> None:
    """It may ask for our address, and the model server may allow it to, but what is remembered here is none of its own. Nor is it
    anybody whose origin cannot be read."""
    assert_known(asked(HERE, origin), False)


@pytest.mark.parametrize("second", ["https://evil.example", "http://localhost", ""])
def test_two_origins_are_nobody_s(second: str) -> None:
    """No browser sends two; which of them would count is not ours to guess."""
    for origins in (("http://localhost", second), (second, "http://localhost")):
        assert_known(asked(HERE, *origins), False)


def test_a_page_is_no_known_program() -> None:
    """Whoever asks alike but for the origin is another caller, also when one of them is known already."""
    rules = Rules()
    for _ in range(2):
        assert_known(asked(HERE), True, rules)
        assert_known(asked(HERE, "https://evil.example"), False, rules)
        assert_known(asked(HERE, "http://localhost"), True, rules)


def test_a_token_makes_no_page_somebody() -> None:
    """It says whose user asks, and not who the owner of the memory is: only a credential says that."""
    sent = [*asked(HERE, "https://evil.example"), (b"x-om-token", token().encode())]
    assert identify(sent, SIGNED, SECRET, NOW).reason == "no-credential"
    assert identify([*sent, (b"authorization", b"Bearer k")], SIGNED, SECRET, NOW).key == (tenant_of("k"), "ada", "t")


FROM_HERE = [
    ("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", " ::1 "), ("x-forwarded-for", "127.0.0.1, ::1"),
    ("x-forwarded-for", "127.0.0.1:4711"),
    ("x-real-ip", "127.0.0.1"), ("forwarded", "for=127.0.0.1;proto=http"), ("forwarded", 'For="[::1]:4711"'), ("forwarded", "proto=https"),
]  # fmt: skip
FROM_ELSEWHERE = [
    ("x-forwarded-for", "8.8.8.8"), ("x-forwarded-for", "8.8.8.8, 127.0.0.1"), ("x-forwarded-for", "127.0.0.1, 192.168.1.7"),
    ("x-forwarded-for", "2001:db8::1"), ("x-forwarded-for", "unknown"), ("x-forwarded-for", "127.0.0.1,"), ("x-real-ip", "10.0.0.8"),
    ("forwarded", "for=192.0.2.60;proto=http"), ("forwarded", 'for="[2001:db8::1]:4711"'), ("forwarded", "for=127.0.0.1, FOR=8.8.8.8"),
    ("forwarded", "for=_hidden"), ("forwarded", "for=unknown"), ("forwarded", "for="), ("forwarded", 'for="8.8.8.8'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "known"), [*((*of, True) for of in FROM_HERE), *((*of, False) for of in FROM_ELSEWHERE)]
)
def test_who_a_proxy_asks_for(name: str, value: str, known: bool) -> None:
    """A proxy on this machine comes from loopback whoever asks it; where it says that somebody elsewhere does, nobody is local."""
    assert_known([*asked(HERE), (name.encode(), value.encode())], known)


def test_a_credential_is_no_matter_of_place() -> None:
    """Nor is a key of ours: both are known wherever they come from."""
    sent = [*headers(x_om_thread="t", authorization="Bearer key-a"), (b"x-forwarded-for", b"8.8.8.8")]
    assert identify(sent, RULES, SECRET).key is not None
    assert identify(sent, KEYED, SECRET).tenant == "acme"


def test_with_keys_the_origin_says_nothing() -> None:
    """A key says who asks, wherever the page comes from that sends it; without one there is no memory for anybody."""
    page = asked("proxy.example", "https://app.example")
    assert identify([*page, (b"authorization", b"Bearer key-a")], KEYED, SECRET).key == ("acme", "t", "t")
    with pytest.raises(Unauthorized):
        identify(asked(HERE, "http://localhost"), KEYED, SECRET)


def test_long_headers_are_not_remembered() -> None:
    """Anybody can send them: they would stay in memory by the thousand, with a credential in each."""
    rules = Rules()
    identity._identified.cache_clear()
    for size, kept in ((200, 1), (identity.MAX_REMEMBERED_CHARS, 1), (60_000, 1)):
        headers = [(b"authorization", b"Bearer " + b"x" * size), (b"x-om-thread", b"t")]
        assert identify(headers, rules, b"s").tenant
        assert identity._identified.cache_info().currsize == kept


@given(st.text(alphabet="{}a ", max_size=12))
def test_a_template_is_two_pairs_of_braces(value: str) -> None:
    """In this order, whatever stands around and between them."""
    says = value.strip(" \t")
    assert identity._value(value) == ("" if re.search(r"\{\{.*\}\}", says) else says)


@pytest.mark.parametrize("value", ["{{" * 30_000, "{{" * 30_000 + "}", "{{{}" * 15_000])
def test_many_braces(value: str) -> None:
    """64 kB of them once took seven seconds, in which nobody else was served; now it is a thousandth of one."""
    began = time.process_time()
    assert identity._value(value) == value
    assert time.process_time() - began < 1
