"""The names of thread and resource: by headers, aliases and signed tokens."""

import math

import pytest

from om_proxy.common.errors import BadRequest, Unauthorized
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.header_values import group_by_name
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.settings.identity.thread_names import read_names
from om_proxy.settings.identity.user_token import Claims, sign_claims
from tests.settings.identity.examples import (
    KEYED,
    NOW,
    REQUIRED,
    RULES,
    SECRET,
    SIGNED,
    SIGNING,
    headers,
    token,
)
from tests.settings.identity.test_thread_names_sessions import OPENCODE, SUB_AGENT


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
    """The first usable header counts. An empty value or an unfilled template counts as absent."""
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
    "value",
    ["a b", "ü".encode().decode("latin-1"), "x" * 257, "a\tb", "a,b", "a;b", "<t>", *NO_BLANKS],
)
def test_a_bad_thread_is_refused(value: str) -> None:
    """A value outside the character set gets a 400 that names the header."""
    with pytest.raises(BadRequest, match="x-om-thread") as caught:
        identify([(b"x-om-thread", value.encode("latin-1"))], RULES, SECRET)
    assert caught.value.code == "om_bad_header"


def test_a_bad_alias_is_refused_beside_a_good_header() -> None:
    """A bad header is never ignored."""
    with pytest.raises(BadRequest, match="x-thread-id"):
        identify(headers(x_om_thread="t", x_thread_id="a b"), RULES, SECRET)


def test_a_header_sent_twice_is_refused() -> None:
    """Two thread headers could mean two threads."""
    with pytest.raises(BadRequest, match="2 times"):
        identify([(b"x-om-thread", b"a"), (b"x-om-thread", b"b")], RULES, SECRET)


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
    """A token names the resource, and may name the thread. Headers may repeat the names."""
    for rules in (SIGNED, REQUIRED):
        caller = identify(headers(x_om_token=claimed, **sent), rules, SECRET, NOW)
        assert caller.key == (LOCAL_TENANT, *names)
        assert caller.has_named_resource


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
    """A token for another resource, thread or tenant is refused, and so is a malformed one."""
    with pytest.raises(Unauthorized, match="x-om-token") as caught:
        identify(headers(x_om_token=claimed, **sent), SIGNED, SECRET, NOW)
    assert claimed not in str(caught.value)


def test_a_token_is_refused_where_the_headers_alone_would_do() -> None:
    """A wrong token is never treated as absent."""
    with pytest.raises(Unauthorized):
        identify(headers(x_om_token="x", x_om_thread="t", x_om_resource="r"), SIGNED, SECRET, NOW)


def test_a_token_expires() -> None:
    """A token expires for a cached caller, too. Without a clock every token has expired."""
    sent = headers(x_om_token=token(thread="t", exp=NOW + 60))
    assert identify(sent, SIGNED, SECRET, NOW).key
    for late in (NOW + 91, math.inf):
        with pytest.raises(Unauthorized, match="expired"):
            identify(sent, SIGNED, SECRET, late)
    with pytest.raises(Unauthorized, match="expired"):
        identify(sent, SIGNED, SECRET)


def test_a_token_begins() -> None:
    """A token is valid half a minute before its `nbf`, because clocks differ. This holds for a
    cached caller, too."""
    claims = Claims(resource="ada", exp=NOW + 600, thread="t", nbf=NOW + 100)
    sent = headers(x_om_token=sign_claims(claims, SIGNING))
    for early in (NOW, NOW + 69):
        with pytest.raises(Unauthorized, match="nbf"):
            identify(sent, SIGNED, SECRET, early)
    assert identify(sent, SIGNED, SECRET, NOW + 70).key == (LOCAL_TENANT, "ada", "t")


def test_a_token_for_one_tenant() -> None:
    """With auth.keys, a token counts only beside a key of its own tenant."""
    rules = IdentityRules(keys=KEYED.keys, token_secret=SIGNING)
    sent = {"x_om_thread": "t", "x_om_token": token(tenant="acme")}
    assert identify(headers(authorization="Bearer key-a", **sent), rules, SECRET, NOW).key == (
        "acme",
        "ada",
        "t",
    )
    for wrong in (
        headers(authorization="Bearer key-b", **sent),
        headers(authorization="Bearer key-a", x_om_token=token()),
    ):
        with pytest.raises(Unauthorized, match="another tenant"):
            identify(wrong, rules, SECRET, NOW)


@pytest.mark.parametrize(
    "sent", [{"x_om_thread": "t"}, {"x_thread_id": "t", "x_om_token": "{{TOKEN}}"}]
)
def test_where_a_token_is_required(sent: dict[str, str]) -> None:
    """A thread needs a token. A request that names no thread passes through."""
    with pytest.raises(Unauthorized, match="only in x-om-token"):
        identify(headers(**sent), REQUIRED, SECRET, NOW)
    assert identify(headers(x_om_resource="r"), REQUIRED, SECRET, NOW).reason == "no-thread"
    assert identify(headers(**sent), SIGNED, SECRET, NOW).key


def test_two_tokens_are_refused() -> None:
    """Two tokens are refused, like any header that may be sent once."""
    with pytest.raises(BadRequest, match="2 times"):
        identify(headers(x_om_token=token()) * 2, SIGNED, SECRET, NOW)


def test_without_a_secret_a_token_says_nothing() -> None:
    """Without a secret the token cannot be verified, and the headers count as if it were absent."""
    assert identify(headers(x_om_token="x", x_om_thread="t"), RULES, SECRET, NOW).key == (
        LOCAL_TENANT,
        "t",
        "t",
    )


@pytest.mark.parametrize("thread", ["chat-7", None])
def test_a_token_for_one_thread_reads_that_alone(thread: str | None) -> None:
    """Whatever scope the settings give to look-ups."""
    claims = Claims("ada", NOW + 60, thread)
    sent = headers(x_om_token=sign_claims(claims, SIGNING), x_om_thread="chat-7")
    caller = identify(sent, SIGNED, SECRET, NOW)
    assert caller.key
    assert caller.key.thread == "chat-7"
    assert caller.choose_look_up_scope("resource") == ("thread" if thread else "resource")
    assert caller.choose_look_up_scope("thread") == "thread"


@pytest.mark.parametrize("claimed", ["chat-7", None])
@pytest.mark.parametrize(
    "sent",
    [{}, {"x-om-thread": "chat-7"}, {"x-om-resource": "ada"}, OPENCODE, SUB_AGENT],
    ids=["none", "thread", "resource", "session", "sub-agent"],
)
def test_the_claim_alone_says_what_a_token_opens(claimed: str | None, sent: dict[str, str]) -> None:
    """No header narrows a token for a resource, or widens one for a thread. A sub-agent has a
    thread of its own, so a token for one thread names none for it."""
    values = group_by_name(headers(x_om_token=token(thread=claimed), **sent))
    names = read_names(values, SIGNED, LOCAL_TENANT)
    assert (names.resource, names.only_thread) == ("ada", claimed)
    if claimed and sent is SUB_AGENT:
        assert names.thread is None
