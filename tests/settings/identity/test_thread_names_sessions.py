"""Threads that are named by a client's own session."""

from __future__ import annotations

from typing import get_args

import pytest

from om_proxy.common.errors import Unauthorized
from om_proxy.edge.headers import NOT_FORWARDED, select_request_headers
from om_proxy.settings.config import Settings
from om_proxy.settings.config.sections.service import SessionProgram
from om_proxy.settings.identity.callers import identify, identify_off_route
from om_proxy.settings.identity.identity_rules import CLIENT_SESSIONS, IdentityRules
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.settings.identity.user_token import Claims, sign_claims
from om_proxy.wire.server.headers import Header

RULES = IdentityRules()
SECRET = b"s"
OPENCODE = {"x-session-id": "ses_1", "x-session-affinity": "ses_1"}
SUB_AGENT = {"x-session-id": "ses_2", "x-session-affinity": "ses_2", "x-parent-session-id": "ses_1"}


def headers(named: dict[str, str]) -> list[Header]:
    return [(name.encode(), value.encode()) for name, value in named.items()]


def test_every_program_can_be_configured() -> None:
    """All programs are on by default."""
    assert (
        set(get_args(SessionProgram))
        == set(CLIENT_SESSIONS)
        == set(Settings().identity.sessions)
        == set(RULES.sessions)
    )


@pytest.mark.parametrize(
    ("sent", "resource", "thread"),
    [
        (OPENCODE, "ses_1", "ses_1"),
        (SUB_AGENT, "ses_2", "ses_2"),
        ({"x-litellm-session-id": "abc"}, "abc", "abc"),
        ({"x-litellm-session-id": "abc", "x-litellm-end-user-id": "ada"}, "ada", "abc"),
        (
            {
                "x-litellm-session-id": "abc",
                "x-litellm-customer-id": "ada",
                "x-litellm-end-user-id": "ada",
            },
            "ada",
            "abc",
        ),
        ({"helicone-session-id": "a%20b"}, "a b", "a b"),
        (
            {"helicone-session-id": "abc", "helicone-user-id": "ada@example.com"},
            "ada@example.com",
            "abc",
        ),
        (OPENCODE | {"x-om-resource": "ada"}, "ada", "ses_1"),
        (
            {"helicone-session-id": "abc", "helicone-user-id": "bob", "x-om-resource": "ada"},
            "ada",
            "abc",
        ),
    ],
)
def test_a_session_names_a_thread(sent: dict[str, str], resource: str, thread: str) -> None:
    """The thread is the session's id. The resource is the user that the same program names, so that
    two users' sessions never share a thread."""
    assert identify(headers(sent), RULES, SECRET).key == (LOCAL_TENANT, resource, thread)


@pytest.mark.parametrize(
    "sent",
    [
        {"x-session-id": "ses_1"},  # many programs send it
        {"x-session-affinity": "ses_1"},
        {"x-session-id": "ses_1", "x-session-affinity": "ses_2"},
        {"x-session-id": "", "x-session-affinity": ""},
        {"x-session-id": "a b", "x-session-affinity": "a b"},
        {"x-litellm-session-id": "{{SESSION}}"},
        {"x-litellm-session-id": "x" * 257},
        {
            "x-litellm-session-id": "abc",
            "x-litellm-customer-id": "ada",
            "x-litellm-end-user-id": "bob",
        },
        {"helicone-session-id": "abc", "helicone-user-id": "a|b"},
        {"x-parent-session-id": "ses_1"},
    ],
)
def test_what_is_no_session(sent: dict[str, str]) -> None:
    """Without the client's mark, with an invalid name, or with an uncertain owner there is no
    memory, and never an error."""
    caller = identify(headers(sent), RULES, SECRET)
    assert (caller.key, caller.reason) == (None, "no-thread")
    assert identify_off_route(headers(sent), RULES, SECRET, 0.0) is None


def test_a_session_twice_is_none() -> None:
    """The proxy does not guess between two sessions."""
    twice = [(b"helicone-session-id", b"a"), (b"helicone-session-id", b"b")]
    assert identify(twice, RULES, SECRET).reason == "no-thread"


@pytest.mark.parametrize("name", ["x-om-thread", "x-thread-id", ":om-thread"])
def test_a_named_thread_wins(name: str) -> None:
    """A thread named by header or path wins. A sub-agent's conversation is never that thread, but a
    thread of its own beside it."""
    assert identify(headers(OPENCODE | {name: "mine"}), RULES, SECRET).key == (
        LOCAL_TENANT,
        "mine",
        "mine",
    )
    own = identify(headers(SUB_AGENT | {name: "mine"}), RULES, SECRET).key
    assert own == (LOCAL_TENANT, "mine/ses_2", "mine/ses_2")
    long = identify(headers(SUB_AGENT | {name: "x" * 255}), RULES, SECRET)
    assert (long.key, long.reason) == (None, "no-thread")


def test_a_configured_alias_stays_what_it_was() -> None:
    """If the operator configured `x-session-id` as a thread header, a sub-agent's threads keep
    their names."""
    rules = IdentityRules(thread_headers=("x-om-thread", "x-session-id"))
    assert identify(headers(SUB_AGENT), rules, SECRET).key == (LOCAL_TENANT, "ses_2", "ses_2")


def test_switched_off() -> None:
    """With `identity.sessions: []`, only headers and paths name threads."""
    rules = IdentityRules(sessions=())
    for sent in (OPENCODE, {"x-litellm-session-id": "abc"}, {"helicone-session-id": "abc"}):
        assert identify(headers(sent), rules, SECRET).reason == "no-thread"
    assert (
        identify(
            headers({"helicone-session-id": "a"}), IdentityRules(sessions=("opencode",)), SECRET
        ).reason
        == "no-thread"
    )


def test_session_headers_are_forwarded() -> None:
    """Session headers are the provider's, too. Headers that only this proxy reads are not
    forwarded."""
    sent = headers(
        OPENCODE | {"x-litellm-session-id": "a", "helicone-session-id": "b", "x-om-thread": "t"}
    )
    assert select_request_headers(sent, NOT_FORWARDED | {b"x-thread-id"}) == sent[:-1]


SIGNING = b"0123456789abcdef0123456789abcdef"


def test_sessions_beside_tokens() -> None:
    """If a token names no thread, the session does. If it names one, it is for that thread alone.
    Where tokens are required, a client that only sends its session is served without memory."""
    rules, required = (
        IdentityRules(token_secret=SIGNING),
        IdentityRules(token_secret=SIGNING, token_required=True),
    )
    any_thread = {"x-om-token": sign_claims(Claims("ada", 100.0), SIGNING)}
    one_thread = {"x-om-token": sign_claims(Claims("ada", 100.0, "t"), SIGNING)}
    for chosen in (rules, required):
        assert identify(headers(OPENCODE | any_thread), chosen, SECRET, 1.0).key == (
            LOCAL_TENANT,
            "ada",
            "ses_1",
        )
        assert identify(headers(OPENCODE | one_thread), chosen, SECRET, 1.0).key == (
            LOCAL_TENANT,
            "ada",
            "t",
        )
        assert identify(headers(SUB_AGENT | one_thread), chosen, SECRET, 1.0).reason == "no-thread"
    assert identify(headers(OPENCODE), rules, SECRET, 1.0).key == (LOCAL_TENANT, "ses_1", "ses_1")
    assert identify(headers(OPENCODE), required, SECRET, 1.0).reason == "no-thread"
    with pytest.raises(Unauthorized):
        identify(headers({":om-thread": "t"}), required, SECRET, 1.0)
