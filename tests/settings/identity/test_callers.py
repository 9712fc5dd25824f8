"""A caller is identified by headers alone (docs/contributing/behaviour.md#identity)."""

import pytest

from om_proxy.common.errors import BadRequest
from om_proxy.settings.identity import callers
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.settings.identity.examples import (
    CHOOSING,
    NOW,
    RULES,
    SECRET,
    SIGNED,
    headers,
    tenant_of,
    token,
)


def test_thread_and_resource_name_the_memory() -> None:
    """The key is tenant, resource and thread. The tenant is an HMAC of the credential."""
    caller = identify(
        headers(authorization="Bearer k", x_om_thread="t", x_om_resource="r"), RULES, SECRET
    )
    assert caller.key == (tenant_of("k"), "r", "t")
    assert (caller.mode, caller.history, caller.reason) == ("on", "auto", None)


def test_a_resource_left_out_is_the_thread_itself() -> None:
    """Without a resource, the thread is its own resource."""
    caller = identify(headers(x_om_thread="t"), RULES, SECRET)
    assert caller.key == (LOCAL_TENANT, "t", "t")


@pytest.mark.parametrize(
    ("rules", "sent", "reason"),
    [
        (RULES, {}, "no-thread"),
        (IdentityRules(loopback_only=False), {"x_om_thread": "t"}, "no-credential"),
        (RULES, {"x_om_thread": "t", "x_om_mode": "off"}, "mode-off"),
        (RULES, {"x_om_thread": "t", "x_om_task": "title_generation"}, "side-request"),
    ],
)
def test_no_memory_and_why(rules: IdentityRules, sent: dict[str, str], reason: str) -> None:
    """A caller without memory gets the reason in one word."""
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
    """A task header with any value makes a side request. A template that was not filled in counts
    as absent: a client that fills it for side requests only would otherwise never have memory."""
    sent = headers(x_om_thread="t") + [(b"x-om-task", value.encode("latin-1")) for value in values]
    assert identify(sent, RULES, SECRET).reason == reason


@pytest.mark.parametrize("mode", ["on", "read", "write"])
def test_modes_with_memory(mode: str) -> None:
    """Every mode except off has memory."""
    caller = identify(headers(x_om_thread="t", x_om_mode=mode.upper()), RULES, SECRET)
    assert caller.mode == mode
    assert caller.key


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
def test_a_scope_is_chosen_where_that_is_allowed(
    rules: IdentityRules, sent: dict[str, str], scope: str | None
) -> None:
    """X-OM-Scope counts only with `identity.scope_override`. Otherwise any value is ignored."""
    assert identify(headers(x_om_thread="t", **sent), rules, SECRET).scope == scope


@pytest.mark.parametrize("values", [["sometimes"], ["thread", "resource"]])
def test_an_invalid_scope(values: list[str]) -> None:
    """If the choice is allowed, an unknown word is refused: a guess could show a memory to
    others."""
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
    """A named resource is distinguished from one that merely stands in for the thread, even if the
    words are equal."""
    assert identify(headers(x_om_thread="r", **sent), RULES, SECRET).has_named_resource == named


@pytest.mark.parametrize(("thread", "reason"), [("t", "no-thread"), (None, None)])
def test_a_token_for_one_thread_is_for_no_sub_agent(thread: str | None, reason: str | None) -> None:
    """`t/a` may be a conversation of its own: a caller names the agent as it likes."""
    sent = headers(x_om_token=token(thread=thread), x_om_thread="t")
    caller = identify(sent, SIGNED, SECRET, NOW).name_sub_agent(b"a")
    assert caller.reason == reason
    assert caller.reason or (caller.key and caller.key.thread == "t/a")


@pytest.mark.parametrize(
    ("sent", "thread"),
    [
        (b"a7", "t/a7"),
        (b" a ", "t/a"),
        (b"caf%C3%A9", "t/caf\u00e9"),
        (b"caf\xc3\xa9", None),
        (b"caf%E9", None),
        (b"%20", None),
        (b"{{AGENT}}", None),
    ],
)
def test_a_sub_agent_is_named_as_a_thread_is(sent: bytes, thread: str | None) -> None:
    """One whose name cannot be read has no memory, and never that of the agent it works for."""
    caller = identify(headers(x_om_thread="t"), RULES, SECRET).name_sub_agent(sent)
    assert (caller.key.thread if caller.key and not caller.reason else None) == thread


def test_long_headers_are_not_cached() -> None:
    """Any client can send them: thousands would stay in memory, each with a credential."""
    rules = IdentityRules()
    callers._identify.cache_clear()
    for size, kept in ((200, 1), (callers.MAX_CACHED_HEADER_CHARS, 1), (60_000, 1)):
        headers = [(b"authorization", b"Bearer " + b"x" * size), (b"x-om-thread", b"t")]
        assert identify(headers, rules, b"s").tenant
        assert callers._identify.cache_info().currsize == kept
