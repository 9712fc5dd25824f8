"""The edge's form of the settings is made once for each configuration."""

from __future__ import annotations

import orjson
import pytest
from pydantic import SecretStr

from om_proxy.common.errors import Forbidden, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.headers import CREDENTIAL_HEADERS
from om_proxy.settings.config import UpstreamSettings
from om_proxy.settings.config import parse as settings_of
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.registry import CHAT

PLAIN = EdgeConfig.from_settings(settings_of(""))
TITLE = "### Task:\nGenerate a concise title."


def request(*messages: tuple[str, str], model: str = "gpt-4o") -> Request:
    body = {
        "model": model,
        "messages": [{"role": role, "content": text} for role, text in messages],
    }
    return CHAT.parse_request(orjson.dumps(body))


def test_identity_follows_the_settings() -> None:
    """Aliases, keys, bind and switch reach the rules of identity."""
    config = EdgeConfig.from_settings(
        settings_of(
            """
            identity: {thread_headers: [X-Chat], resource_headers: [x-user], scope_override: true}
            auth: {keys: [{tenant: acme, key: sk-acme-0123456789}], token_secret: 0123456789abcdef0123456789abcdef, token_required: true}
            server: {host: 0.0.0.0, admin_token: 0123456789abcdef}
            memory: false
            """
        )
    )
    rules = config.identity
    assert (rules.thread_headers, rules.resource_headers) == (("x-chat",), ("x-user",))
    assert rules.keys == (("acme", "sk-acme-0123456789"),)
    assert (rules.scope_override, rules.token_secret, rules.token_required) == (
        True,
        b"0123456789abcdef" * 2,
        True,
    )
    assert not PLAIN.identity.scope_override
    assert not rules.loopback_only


def test_what_stays_here() -> None:
    """Identity headers are never sent upstream. With `auth.keys`, the caller's credential is not
    sent either."""
    assert PLAIN.own_headers >= {
        b"x-thread-id",
        b"x-resource-id",
        b"x-openwebui-chat-id",
        b"x-openwebui-user-id",
    }
    assert not PLAIN.own_headers & CREDENTIAL_HEADERS
    keyed = EdgeConfig.from_settings(settings_of("auth: {keys: [{tenant: acme, key: sk-acme}]}"))
    assert keyed.own_headers == PLAIN.own_headers | CREDENTIAL_HEADERS


KEYED = "auth: {keys: [{tenant: acme, key: sk-acme}, {tenant: globex, key: sk-globex}]}"
KEYLESS = UpstreamSettings(base_url="http://h")
KEYED_UPSTREAM = UpstreamSettings(base_url="http://h", api_key=SecretStr("sk-upstream"))
OWN = (b"authorization", b"Bearer sk-provider")


@pytest.mark.parametrize("gateway", [b"x-om-authorization", b"x-memory-gateway-authorization"])
@pytest.mark.parametrize("upstream", [KEYLESS, KEYED_UPSTREAM], ids=["keyless", "keyed"])
def test_the_provider_s_key_beside_ours(gateway: bytes, upstream: UpstreamSettings) -> None:
    """A caller may send a key of `auth.keys` in its own header together with the provider's key.
    Only the provider's key goes upstream."""
    sent = [(gateway, b"Bearer sk-acme"), OWN, (b"x", b"1")]
    assert EdgeConfig.from_settings(settings_of(KEYED)).select_upstream_headers(sent, upstream) == [
        OWN,
        (b"x", b"1"),
    ]


@pytest.mark.parametrize(
    "sent",
    [
        [(b"authorization", b"Bearer sk-acme")],
        [(b"x-api-key", b"sk-acme")],
        [(b"x-om-authorization", b"sk-acme")],
        [(b"x-om-authorization", b"sk-acme"), (b"authorization", b"Bearer sk-acme")],
        [(b"x-om-authorization", b"sk-acme"), (b"authorization", b"Bearer sk-globex")],
        [(b"x-om-authorization", b""), (b"authorization", b"Bearer sk-provider")],
    ],
    ids=[
        "authorization",
        "x-api-key",
        "by name",
        "in both",
        "another tenant's",
        "nothing beside it",
    ],
)
def test_a_key_of_ours_stays_here(sent: list[tuple[bytes, bytes]]) -> None:
    """A key of `auth.keys` stays here, in whatever header it came. The upstream gets its own key,
    or none."""
    config = EdgeConfig.from_settings(settings_of(KEYED))
    assert config.select_upstream_headers(sent, KEYLESS) == []
    assert config.select_upstream_headers(sent, KEYED_UPSTREAM) == [
        (b"authorization", b"Bearer sk-upstream")
    ]


def test_without_keys_the_caller_s_own_is_sent() -> None:
    """The caller's key is sent unless the upstream has its own. A key for another gateway is not
    forwarded."""
    sent = [
        OWN,
        (b"x-memory-gateway-authorization", b"Bearer sk-gateway"),
        (b"x-om-token", b"t"),
        (b"x", b"1"),
    ]
    assert PLAIN.select_upstream_headers(sent, KEYLESS) == [OWN, (b"x", b"1")]
    assert PLAIN.select_upstream_headers(sent, KEYED_UPSTREAM) == [
        (b"x", b"1"),
        (b"authorization", b"Bearer sk-upstream"),
    ]


@pytest.mark.parametrize("config", [PLAIN, EdgeConfig.from_settings(settings_of(KEYED))])
def test_the_upstream_s_key_by_api(config: EdgeConfig) -> None:
    """It goes in the header of the request's API, and no other key beside it."""
    for name in (b"authorization", b"x-api-key"):
        sent = [(name, b"sk-acme"), (b"x", b"1")]
        assert config.select_upstream_headers(sent, KEYED_UPSTREAM, api="messages") == [
            (b"x", b"1"),
            (b"x-api-key", b"sk-upstream"),
        ]


@pytest.mark.parametrize(
    ("messages", "side"),
    [
        ([("user", TITLE)], True),
        ([("system", TITLE), ("user", "hello")], True),
        ([("user", "hello"), ("assistant", "hi"), ("user", TITLE)], True),
        ([("user", TITLE), ("assistant", "A title"), ("user", "thanks")], False),
        ([("system", "Be brief."), ("developer", TITLE), ("user", "hello")], True),
        ([("user", "read it"), ("assistant", "I do"), ("tool", TITLE)], False),
        ([("user", "go on"), ("assistant", TITLE)], False),
        ([("user", "hello"), ("assistant", TITLE), ("user", "go on")], False),
        ([("user", "What does ### Task: mean?")], False),
        ([("user", "hello")], False),
        ([], False),
        ([("system", "You are a title generator. You write titles."), ("user", "hello")], True),
        ([("user", "Analyze this conversation and provide:\n1. its language")], True),
        ([("user", "Provide a concise, 5-word-or-less title for this")], True),
        ([("system", "You are a title generator bot for books"), ("user", "hello")], False),
    ],
    ids=[
        "only",
        "instructions",
        "newest",
        "first",
        "second instructions",
        "a tool's",
        "a model's",
        "in the middle",
        "quoted",
        "plain",
        "empty",
        "opencode",
        "LibreChat",
        "LibreChat, by completion",
        "alike",
    ],
)
def test_told_by_the_prompt(messages: list[tuple[str, str]], side: bool) -> None:
    """Title requests and the like are recognised by the text of the instructions or of the newest
    message, if no model or tool wrote that message. The first message does not count: it is sent
    again with every request of its conversation."""
    assert PLAIN.is_side_request(request(*messages)) == side


@pytest.mark.parametrize(("model", "side"), [("titles", True), ("gpt-4o", False)])
def test_told_by_the_model(model: str, side: bool) -> None:
    """A side request is recognised by a model that is used for nothing else."""
    config = EdgeConfig.from_settings(settings_of("side_requests: {models: [titles]}"))
    assert config.is_side_request(request(("user", "hello"), model=model)) == side


def test_prompts_of_the_operator_s() -> None:
    """The configured patterns replace the shipped one."""
    config = EdgeConfig.from_settings(
        settings_of('side_requests: {prompts: ["(?i)name this chat"]}')
    )
    assert config.is_side_request(request(("user", "Please name this CHAT")))
    assert not config.is_side_request(request(("user", TITLE)))
    either = EdgeConfig.from_settings(settings_of('side_requests: {prompts: ["^title|name it"]}'))
    assert either.is_side_request(request(("user", "Please name it")))
    assert not either.is_side_request(request(("user", "A title")))


def test_no_credential_in_its_repr() -> None:
    """The repr holds no credential, because it may be logged."""
    config = EdgeConfig.from_settings(settings_of("auth: {keys: [{tenant: acme, key: sk-secret}]}"))
    upstream = config.settings.upstream[0]
    config.policy.context_of_request("m", "r", upstream, ((b"authorization", b"Bearer sk-caller"),))
    assert "sk-caller" not in repr(config)
    assert "sk-secret" not in repr(config)


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key"])
@pytest.mark.parametrize("token", [b"admin-0123456789abcdef", b"metrics-0123456789abcdef"])
@pytest.mark.parametrize("scheme", [b"", b"Bearer ", b"bearer  ", b"Token "])
@pytest.mark.parametrize("auth", ["", KEYED])
@pytest.mark.parametrize("upstream", [KEYLESS, KEYED_UPSTREAM], ids=["keyless", "keyed"])
def test_a_token_of_the_proxy_s_own_goes_nowhere(
    name: bytes, token: bytes, scheme: bytes, auth: str, upstream: UpstreamSettings
) -> None:
    """Who sends it as the key for a model is told which header is meant."""
    config = EdgeConfig.from_settings(
        settings_of(
            "server: {admin_token: admin-0123456789abcdef}\n"
            f"telemetry: {{metrics_token: metrics-0123456789abcdef}}\n{auth}"
        )
    )
    sent = [(name, scheme + token), (b"x-om-authorization", b"Bearer sk-acme")]
    with pytest.raises(Unauthorized, match="X-OM-Admin") as refused:
        config.select_upstream_headers(sent, upstream)
    assert token.decode() not in str(refused.value)
    assert config.select_upstream_headers([OWN, *sent[1:]], upstream)


def test_a_stranger_gets_no_key_of_the_operator_s() -> None:
    """A page of another site is refused where the upstream has a key. Where another rule has let the
    caller in, the key is used."""
    sent = [(b"host", b"127.0.0.1"), (b"origin", b"https://evil.example")]
    with pytest.raises(Forbidden):
        PLAIN.select_upstream_headers(sent, KEYED_UPSTREAM)
    assert PLAIN.select_upstream_headers(sent, KEYLESS) == sent[1:]
    admitted = PLAIN.select_admitted_headers(sent, KEYED_UPSTREAM)
    assert admitted == [*sent[1:], (b"authorization", b"Bearer sk-upstream")]
