"""What one configuration means for one memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.agents.models import find_price
from om_proxy.common.apis import API_NAMES
from om_proxy.engine.policy import (
    MAX_CONTEXT_KEY_BYTES,
    MAX_REQUEST_CONTEXTS,
    MemoryContext,
    Policy,
    PolicyInForce,
)
from om_proxy.memory.model import Memory
from om_proxy.settings.config import UpstreamSettings, WatchedSettings
from om_proxy.settings.config import parse as settings_of
from tests.memory.building import KEY, chat

NOW = 1_700_000_000.0
PRICED_MODEL = "openai/gpt-4.1-mini"
CONFIGURED = "memory: {model: openai/notes, api_base: 'http://127.0.0.1:1/v1'}"
KEYED_ELSEWHERE = "upstream: [{base_url: 'https://models.example/v1'}]"


def policy_of(text: str) -> Policy:
    return Policy(settings_of(text))


def memory_of(model: str | None, overrides: bytes | None = None) -> Memory:
    return replace(Memory(key=KEY), model=model, overrides=overrides)


def context(policy: Policy, *credential: tuple[bytes, bytes], model: str = "m") -> MemoryContext:
    upstream: UpstreamSettings = policy.settings.upstream[0]
    return policy.context_of_request(model, "r", upstream, credential)


# ── one configuration at a time ───────────────────────────────────────────────────────────────────


def test_a_policy_is_made_once_for_each_configuration() -> None:
    """All rooms read the same one; settings that change bring another."""
    watched = WatchedSettings(settings_of(""))
    policies = PolicyInForce(watched)
    first = policies.current
    assert policies.current is first
    watched.current = settings_of("memory: {observation: {message_tokens: 700}}")
    assert policies.current is not first
    assert policies.current.base_settings(memory_of("m")).limits.observe_from_tokens == 700


def test_a_memory_call_has_the_configured_time() -> None:
    """Unless whoever made the app says another one."""
    settings = settings_of("background: {call_timeout: 70s}")
    assert Policy(settings).call_timeout_s == 70.0
    assert Policy(settings, 5.0).call_timeout_s == 5.0


# ── contexts of requests ──────────────────────────────────────────────────────────────────────────


def test_where_the_words_may_go() -> None:
    """An inherited call has the query and the routing of its request, and no other request's."""
    policy = policy_of("")
    upstream: UpstreamSettings = policy.settings.upstream[0]
    routing = (("provider", b'{"zdr":true}'),)
    given = policy.context_of_request("m", "r", upstream, (), b"v=2", routing).inherited
    assert given is not None
    assert (given.query, given.members) == (b"v=2", routing)
    bare = context(policy).inherited
    assert bare is not None
    assert (bare.query, bare.members) == (b"", ())


def test_a_context_is_made_once() -> None:
    """Requests that differ in nothing share what memory work needs of them."""
    policy = policy_of("")
    made = [context(policy, model="gpt-4o") for _ in range(3)]
    assert made[0] is made[1] is made[2]
    assert context(policy, model="gpt-4.1") is not made[0]


def test_contexts_are_not_kept_for_ever() -> None:
    """Their keys hold credentials: they are bounded, and a new configuration starts anew."""
    policy = policy_of("")
    for number in range(MAX_REQUEST_CONTEXTS + 1):
        context(policy, model=str(number))
    assert len(policy._contexts) <= MAX_REQUEST_CONTEXTS
    assert not policy_of("")._contexts


def test_contexts_with_long_credentials_are_not_kept() -> None:
    """A thousand credentials as long as headers may be would be many megabytes; nor do they push
    out what is kept."""
    policy = policy_of("")
    kept = context(policy, (b"authorization", b"k" * (MAX_CONTEXT_KEY_BYTES // 2)))
    for number in range(MAX_REQUEST_CONTEXTS + 1):
        context(policy, (b"authorization", b"%d" % number + b"k" * MAX_CONTEXT_KEY_BYTES))
    context(policy, *[(b"x-api-key", b"k" * (MAX_CONTEXT_KEY_BYTES // 3))] * 3)
    assert list(policy._contexts.values()) == [kept]


def test_no_credential_in_the_repr_of_a_policy() -> None:
    """A policy may be logged."""
    policy = policy_of("auth: {keys: [{tenant: acme, key: sk-secret}]}")
    context(policy, (b"authorization", b"Bearer sk-caller"))
    assert "sk-caller" not in repr(policy)
    assert "sk-secret" not in repr(policy)


def test_the_model_of_a_request_is_inherited_with_its_credential() -> None:
    """Memory work asks the actor's own server, as the caller."""
    found = context(policy_of(""), (b"authorization", b"Bearer sk-caller"), model="gpt-4o")
    assert found.inherited is not None
    assert found.inherited.model == "gpt-4o"
    assert found.inherited.headers == (("authorization", "Bearer sk-caller"),)


@pytest.mark.parametrize(
    ("text", "model", "observer"),
    [
        ("", "gpt-4o", "gpt-5-mini"),
        ("", "gpt-5-mini", "gpt-5-mini"),
        ("memory: {model: inherit}", "gpt-4o", "gpt-4o"),
        ("memory: {model: [inherit, openai/notes]}", "gpt-4o", "gpt-4o"),
        ("memory: {model: openai/notes}", "gpt-4o", "openai/notes"),
        (KEYED_ELSEWHERE, "gpt-4o", "gpt-4o"),
    ],
)
def test_a_context_names_the_model_that_observes(text: str, model: str, observer: str) -> None:
    """The log of a turn tells it. `auto` is a small model of a known server, else the request's."""
    assert context(policy_of(text), model=model).observer_name == observer


SUBSCRIPTION = "sk-ant-oat01-x"


@pytest.mark.parametrize("value", [SUBSCRIPTION, f"Bearer {SUBSCRIPTION}"])
@pytest.mark.parametrize(
    ("text", "lacks"), [("", True), ("memory: {model: inherit}", True), (CONFIGURED, False)]
)
def test_the_credential_of_a_subscription_is_not_inherited(
    text: str, lacks: bool, value: str
) -> None:
    found = context(policy_of(text), (b"authorization", value.encode()))
    assert (found.inherited, found.lacks_observer) == (None, lacks)
    assert not context(policy_of(text), (b"x-api-key", b"sk-ant-api-x")).lacks_observer


def test_the_key_of_a_server_may_be_one_too() -> None:
    text = f"upstream: [{{base_url: 'https://models.example/v1', api_key: {SUBSCRIPTION}}}]"
    assert policy_of(text).context_without_request(memory_of("m")) is None


def test_work_after_a_restart_goes_by_the_api_of_the_conversation() -> None:
    """Not to a server of another API, though its pattern fits every model."""
    policy = policy_of(
        """
        upstream:
          - {name: one, apis: [chat], base_url: 'https://one.example/v1', api_key: sk-one}
          - {name: two, apis: [messages], base_url: 'https://two.example/v1', api_key: sk-two}
          - {name: three, apis: [responses], base_url: 'https://three.example/v1'}
        """
    )
    keys = {}
    for api in API_NAMES:
        tail = tuple(
            replace(message, item=replace(message.item, api=api)) for message in chat(1, 9)
        )
        found = policy.context_without_request(replace(memory_of("m"), tail=tail))
        keys[api] = found.inherited and found.inherited.headers if found else None
    assert keys == {
        "chat": (("authorization", "Bearer sk-one"),),
        "responses": None,
        "messages": (("x-api-key", "sk-two"),),
    }


# ── contexts without a request ────────────────────────────────────────────────────────────────────


def test_work_found_after_a_restart_needs_a_model_that_can_be_asked() -> None:
    """A configured one, or the actor's with the upstream's own key; else the next request brings
    the credential."""
    configured = "memory: {model: openai/notes, api_base: 'http://127.0.0.1:1/v1'}"
    keyed = "upstream: [{base_url: 'https://models.example/v1', api_key: sk-upstream}]"
    actors = memory_of("gpt-4o")
    assert policy_of("").context_without_request(actors) is None
    assert policy_of(keyed).context_without_request(memory_of(None)) is None
    found = policy_of(configured).context_without_request(actors)
    assert found is not None
    assert found.inherited is None
    found = policy_of(keyed).context_without_request(actors)
    assert found is not None
    assert found.inherited is not None
    assert found.inherited.model == "gpt-4o"
    assert found.inherited.headers == (("authorization", "Bearer sk-upstream"),)


KEYED = "upstream: [{base_url: 'https://models.example/v1', api_key: sk-upstream}]"
ONE_KEYED = """
upstream:
  - {name: ours, base_url: 'https://models.example/v1', api_key: sk-upstream, match: ['gpt-*']}
  - {name: theirs, base_url: 'https://others.example/v1'}
"""
ONE_API_KEYED = """
upstream:
  - {name: ours, apis: [chat], base_url: 'https://models.example/v1', api_key: sk-upstream}
  - {name: theirs, apis: [messages], base_url: 'https://others.example/v1'}
"""
INHERITED_BY_ONE = (
    CONFIGURED
    + """
models:
  "gpt-*": {memory: {observation: {model: inherit}}}
"""
)


@pytest.mark.parametrize(
    ("text", "model", "needs", "may_need"),
    [
        ("", "gpt-4o", True, True),
        (CONFIGURED, "gpt-4o", False, False),
        (CONFIGURED, None, False, False),
        (KEYED, "gpt-4o", False, False),
        (ONE_KEYED, "gpt-4o", False, True),
        (ONE_KEYED, "o5", True, True),
        (ONE_KEYED + CONFIGURED, "o5", False, False),
        (KEYED + "\nidentity: {apis: [messages]}", "gpt-4o", False, False),
        (ONE_API_KEYED, "gpt-4o", False, True),
        (ONE_API_KEYED + "identity: {apis: [chat]}", "gpt-4o", False, False),
        (INHERITED_BY_ONE, "gpt-4o", True, True),
        (INHERITED_BY_ONE, "o5", False, True),
        ("memory: {model: inherit}", "gpt-4o", True, True),
        ("memory: {model: [inherit, openai/notes]}", "gpt-4o", False, False),
    ],
)
def test_work_needs_a_caller_whose_credential_it_inherits(
    text: str, model: str | None, needs: bool, may_need: bool
) -> None:
    """Not if the memory model is configured, or the upstream has a key of its own. It is as true of
    one memory as a context without a request is missing."""
    policy, memory = policy_of(text), memory_of(model)
    assert policy.needs_caller(memory) is needs
    assert policy.needs_caller(memory) is (policy.context_without_request(memory) is None)
    assert policy.may_need_caller is may_need


# ── when work is due ──────────────────────────────────────────────────────────────────────────────

# both fit `ab` alone, which is asked about when it is met
CONTRADICTING = """
models:
  "[a]*": {observation: {message_tokens: 9000}}
  "*b": {observation: {buffer_tokens: 9500}}
"""


def test_a_thread_is_due_by_its_own_thresholds() -> None:
    """Those that a person gave the thread take the place of the configured ones."""
    policy = policy_of("memory: {observation: {message_tokens: 100000}}")
    tail = chat(6, 200)
    quiet = replace(memory_of("m"), tail=tail, next_seq=len(tail) + 1)
    assert policy.due_at(quiet, NOW) is None
    own = b'{"observation": {"buffer_tokens": 300, "message_tokens": 1000}}'
    assert policy.due_at(replace(quiet, overrides=own), NOW) == NOW


def test_overrides_that_contradict_each_other_make_nothing_due() -> None:
    """The thread's requests say so, and go upstream as they came."""
    policy, actors = policy_of(CONTRADICTING), memory_of("ab")
    assert policy.due_at(actors, NOW) is None
    assert policy.resource_wakeup(actors, NOW) is None
    assert policy.context_without_request(actors) is None
    assert not policy.needs_caller(actors)


def test_a_shared_log_wakes_at_the_interval() -> None:
    """Without one, at the threshold."""
    buffered = policy_of("memory: {observation: {message_tokens: 1000, buffer_tokens: 200}}")
    whole = policy_of("memory: {observation: {message_tokens: 1000, buffer_tokens: false}}")
    assert buffered.resource_wakeup(memory_of("m"), NOW) == (NOW, 200)
    assert whole.resource_wakeup(memory_of("m"), NOW) == (NOW, 1000)


# ── prices ────────────────────────────────────────────────────────────────────────────────────────


def test_list_prices_hold_unless_the_operator_wants_no_economy() -> None:
    """And both models are known; they are looked up once for a pair."""
    policy = policy_of("")
    found = policy.base_settings(memory_of(PRICED_MODEL))
    listed = find_price("gpt-5-mini")  # which `auto` chooses there
    assert listed is not None
    assert found.limits.prices is not None
    assert found.limits.prices.observer_input == listed.input
    assert policy.base_settings(memory_of(PRICED_MODEL)) is found
    assert policy.base_settings(memory_of("unheard-of")).limits.prices is None
    assert (
        policy_of("memory: {economy: off}").base_settings(memory_of(PRICED_MODEL)).limits.prices
        is None
    )


def test_the_server_lists_the_model_s_price() -> None:
    """Without a price, notes would be made that never pay back."""
    text = "upstream: [{name: groq, match: ['*'], base_url: https://api.groq.com/openai/v1}]"
    found = policy_of(text).base_settings(memory_of("openai/gpt-oss-120b")).limits
    listed = find_price("groq/openai/gpt-oss-120b")
    assert listed is not None
    assert found.prices is not None
    assert found.prices.observer_input == found.prices.actor_fresh == listed.input


def test_a_thread_s_own_thresholds_keep_the_prices_of_its_model() -> None:
    """Settings that two models share keep a thread's own thresholds made, and those hold the prices
    of one model: another model's thread must not find them."""
    policy = policy_of("memory: {economy: auto}")
    own = b'{"observation": {"message_tokens": 40000}}'
    for model in ("unheard-of", PRICED_MODEL, "openai/gpt-4o"):
        memory = memory_of(model, own)
        found = policy.thread_settings(memory).limits
        assert found.observe_from_tokens == 40_000
        assert found.prices == policy.base_settings(memory).limits.prices
