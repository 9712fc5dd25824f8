"""The settings in force for a model and a resource."""

import json
from typing import Any

import pytest

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.common.errors import ConfigError
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.settings.config import (
    MemorySettings,
    Settings,
    check_thread_overrides,
    compute_limits,
    merge_thread_overrides,
    parse,
)
from om_proxy.settings.config.snapshot import MAX_CACHED_PAIRS


def test_default_limits() -> None:
    """The settings' defaults and the domain's are the same numbers."""
    assert Settings().effective("any", None).limits == Limits()


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (
            "{observation: {message_tokens: 10000}}",
            {
                "observe_from_tokens": 10_000,
                "interval_tokens": 2_000,
                "keep_tokens": 2_000,
                "block_from_tokens": 12_000,
            },
        ),
        ("{observation: {buffer_tokens: 5000}}", {"interval_tokens": 5_000}),
        ("{observation: {buffer_activation: 9000}}", {"keep_tokens": 9_000}),
        ("{observation: {buffer_activation: 1}}", {"keep_tokens": 0}),
        ("{observation: {block_after: 1}}", {"block_from_tokens": 30_000}),
        ("{observation: {block_after: 99.9}}", {"block_from_tokens": 2_997_000}),
        ("{observation: {block_after: 50000}}", {"block_from_tokens": 50_000}),
        ("{observation: {previous_observer_tokens: false}}", {"log_excerpt_tokens": None}),
        ("{observation: {previous_observer_tokens: 0}}", {"log_excerpt_tokens": 0}),
        (
            "{observation: {buffer_tokens: false}}",
            {
                "interval_tokens": None,
                "keep_tokens": 0,
                "block_from_tokens": 30_000,
                "reflect_ahead_from_tokens": None,
                "reflect_block_from_tokens": 40_000,
            },
        ),
        (
            "{observation: {buffer_tokens: false, block_after: 1.5}, reflection: {block_after: 1.1}}",
            {"block_from_tokens": 45_000, "reflect_block_from_tokens": 44_000},
        ),
        (
            "{reflection: {observation_tokens: 1000, buffer_activation: 1}}",
            {"reflect_from_tokens": 1_000, "reflect_ahead_from_tokens": 1_000},
        ),
        ("{reflection: {block_after: 41000}}", {"reflect_block_from_tokens": 41_000}),
        ("{activate_after_idle: 5m}", {"activate_after_idle_s": 300.0}),
        ("{activate_after_idle: auto}", {"activate_after_idle_s": 3_600.0}),
        ("{share_token_budget: true, activate_on_provider_change: true}", {"has_shared_budget": True, "activate_on_provider_change": True}),
        ("{observation: {block_timeout: 500ms, buffer_on_idle: true}}", {"block_timeout_s": 0.5, "buffer_after_idle_s": 3_600.0}),
        ("{activate_after_idle: 5m, observation: {buffer_on_idle: true}}", {"buffer_after_idle_s": 300.0}),
        ("{activate_after_idle: 5m}", {"buffer_after_idle_s": None, "share_after_idle_s": 300.0}),
        ("{observation: {buffer_on_idle: false}}", {"share_after_idle_s": None}),
        ("{observation: {message_tokens: 1, buffer_tokens: false}}", {"observe_from_tokens": 1, "block_from_tokens": 1}),
        ("{}", {"fixed_thresholds": frozenset()}),
        ("{observation: {buffer_tokens: false, block_after: 99.9}}", {"fixed_thresholds": frozenset()}),
        (
            "{observation: {buffer_tokens: 5000, buffer_activation: 9000}}",
            {"fixed_thresholds": frozenset({"interval_tokens", "keep_tokens"})},
        ),
        (
            "{observation: {block_after: 40000}, reflection: {block_after: 50000}}",
            {"fixed_thresholds": frozenset({"block_from_tokens", "reflect_block_from_tokens"})},
        ),
    ],
)  # fmt: skip
def test_limits(memory: str, expected: dict[str, object]) -> None:
    """Each setting becomes the plain number that the domain compares with."""
    limits = parse(f"memory: {memory}").effective("m", "r").limits
    assert {name: getattr(limits, name) for name in expected} == expected


AUTO = """
upstream:
  - {name: a, match: ["claude*"], base_url: "https://api.anthropic.com/v1"}
  - {name: g, match: ["gem*"], base_url: "https://generativelanguage.googleapis.com/v1beta/openai"}
  - {name: o, match: ["*"], base_url: "https://api.openai.com/v1"}
memory: {activate_after_idle: auto, observation: {buffer_on_idle: true}}
"""


@pytest.mark.parametrize(
    ("model", "lives", "certainly"),
    [
        ("claude-sonnet-4-5", 300, 3_600),
        ("gemini-2.5-flash", 86_400, 86_400),
        ("gpt-4o", 300, 3_600),
        ("gpt-5.5", 3_600, 3_600),
        (None, 3_600, 3_600),
    ],
)
def test_the_provider_s_cache_lifetime(model: str | None, lives: int, certainly: int) -> None:
    """`auto` is how long the actor's provider keeps a prompt, by its address and the model's name.
    Dates move after an hour at the earliest."""
    limits = parse(AUTO).effective(model).limits
    assert (limits.activate_after_idle_s, limits.buffer_after_idle_s, limits.cache_lifetime_s) == (
        lives,
        lives,
        certainly,
    )


def test_known_cache_lifetime() -> None:
    """`auto` takes the given cache lifetime."""
    memory = MemorySettings(activate_after_idle="auto")
    assert (
        compute_limits(memory, Settings().context, cache_lifetime_s=300.0).activate_after_idle_s
        == 300.0
    )


LAYERED = """
memory: {scope: thread, observation: {message_tokens: 30000, instruction: base}}
models:
  "*": {observation: {message_tokens: 1000}, mode: shadow}
  "gpt-4o*": {observation: {message_tokens: 20000}}
  "gpt-*": {observation: {message_tokens: 10000, instruction: gpt}, relative_time: false}
resources:
  "over*": {observation: {message_tokens: 50000}}
"""


@pytest.mark.parametrize(
    ("model", "resource", "tokens", "instruction", "mode"),
    [
        ("gpt-4o-mini", None, 20_000, "gpt", "shadow"),
        ("gpt-5", None, 10_000, "gpt", "shadow"),
        ("claude", None, 1_000, "base", "shadow"),
        ("GPT-4o", None, 1_000, "base", "shadow"),
        (None, None, 30_000, "base", "live"),
        ("gpt-4o", "overseer", 50_000, "gpt", "shadow"),
        (None, "overseer", 50_000, "base", "live"),
        ("gpt-4o", "other", 20_000, "gpt", "shadow"),
    ],
)
def test_the_most_specific_wins_key_by_key(
    model: str | None, resource: str | None, tokens: int, instruction: str, mode: str
) -> None:
    """The override with the most literal characters wins, in any order of the file. Resources win
    over models."""
    effective = parse(LAYERED).effective(model, resource)
    observation = effective.memory.observation
    assert (observation.message_tokens, observation.instruction, effective.memory.mode) == (
        tokens,
        instruction,
        mode,
    )
    assert effective.limits.observe_from_tokens == tokens
    assert effective.context.relative_time == (instruction != "gpt")


def test_classes_and_wildcards_are_not_literal() -> None:
    """`[45]` is not counted as literal, however long it is."""
    text = "models: {'gpt-[4567890]*': {mode: shadow}, 'gpt-4*': {mode: live}}"
    assert parse(text).effective("gpt-4o").memory.mode == "live"


def test_equally_specific() -> None:
    """The later one of two equally specific overrides in the file takes precedence."""
    assert (
        parse("models: {'a*': {mode: shadow}, '*b': {mode: live}}").effective("ab").memory.mode
        == "live"
    )


BOTH = ["a", {"model": "b", "max_retries": 0}]


@pytest.mark.parametrize(
    ("text", "observer", "reflector"),
    [
        ("memory: true", "auto", "auto"),
        ("memory: {model: auto}", "auto", "auto"),
        ("memory: {model: inherit}", "inherit", "inherit"),
        ("memory: {observation: {model: inherit}}", "inherit", "auto"),
        ("memory: {model: auto, observation: {model: a}}", "a", "a"),
        ("memory: {model: inherit}\nmodels: {m: {model: auto}}", "auto", "auto"),
        ("memory: {model: a}", "a", "a"),
        ("memory: {observation: {model: a}}", "a", "a"),
        ("memory: {reflection: {model: b}}", "b", "b"),
        ("memory: {observation: {model: a}, reflection: {model: b}}", "a", "b"),
        ("memory: {model: inherit, observation: {model: a}}", "a", "a"),
        ("memory: {model: a, observation: {model: inherit}}", "a", "a"),
        ("memory: {model: a}\nmodels: {m: {observation: {model: b}}}", "b", "a"),
        ("memory: {observation: {model: a}, reflection: {model: b}}\nmodels: {m: {model: c}}", "c", "c"),
        ("memory: {observation: {model: a}}\nmodels: {m: {reflection: {model: b}}}", "a", "b"),
        ("memory: {model: a}\nmodels: {m: {model: inherit}}", "inherit", "inherit"),
        ("memory: {model: a}\nmodels: {m: {observation: {model: inherit}}}", "inherit", "a"),
        ("models: {m: {model: a}}\nresources: {r: {reflection: {model: b}}}", "a", "b"),
        ("memory: {model: default}", "default", "default"),
        ("memory: {model: [a, {model: b, max_retries: 0}]}", BOTH, BOTH),
        (
            "memory: {reflection: {model: {up_to: {40000: b, 10000: a}}}}",
            {"up_to": {10_000: "a", 40_000: "b"}},
            {"up_to": {10_000: "a", 40_000: "b"}},
        ),
        ("memory: {model: {up_to: {1: a}}}\nmodels: {m: {model: {up_to: {2: b}}}}", {"up_to": {2: "b"}}, {"up_to": {2: "b"}}),
    ],
)  # fmt: skip
def test_models(text: str, observer: object, reflector: object) -> None:
    """The most specific level that sets a model decides. `auto` and `inherit` on `memory` give way
    to any model; above it, they undo a choice."""
    effective = parse(text).effective("m", "r")
    assert effective.observer_model == observer
    assert effective.reflector_model == reflector


def test_tiers_are_sorted() -> None:
    """Tiers are sorted by size."""
    choice = parse("memory: {model: {up_to: {40000: b, 10000: a}}}").effective("m").observer_model
    assert isinstance(choice, dict)
    assert list(choice["up_to"]) == [10_000, 40_000]


def test_upstream_for() -> None:
    """The first upstream whose glob matches, case-sensitive; None if none does."""
    settings = parse(
        "upstream:\n  - {name: a, match: ['gpt-*', 'o3'], base_url: 'http://a/v1/'}\n  - {name: b, match: ['g*'], base_url: 'http://b'}"
    )
    assert [
        u and u.name for u in map(settings.upstream_for, ["gpt-4o", "o3", "gemini", "GPT-4o", None])
    ] == [
        "a",
        "a",
        "b",
        None,
        None,
    ]
    assert settings.upstream[0].base_url == "http://a/v1"


def test_upstream_for_an_api() -> None:
    """A server that does not list the API is passed over. One that lists none is for all."""
    settings = parse("""
        upstream:
          - {name: a, apis: [messages], base_url: 'http://a'}
          - {name: b, apis: [chat, messages], match: ['g*'], base_url: 'http://b'}
          - {name: c, base_url: 'http://c'}
    """)
    asked: list[tuple[ApiName, str | None]]
    asked = [
        ("messages", "g"),
        ("messages", None),
        ("chat", "g"),
        ("chat", "h"),
        ("responses", "g"),
    ]
    found = [settings.upstream_for(model, api) for api, model in asked]
    assert [one and one.name for one in found] == ["a", "a", "b", "c", "c"]
    found = [Settings().upstream_for(None, api) for api in API_NAMES]
    assert [one and one.name for one in found] == ["openai", "openai", "anthropic"]
    with pytest.raises(ConfigError, match="apis"):
        parse("upstream: [{base_url: 'http://a', apis: []}]")


@pytest.mark.parametrize(
    ("kind", "chat", "messages"),
    [
        ("auto", ("authorization", "Bearer k"), ("x-api-key", "k")),
        ("bearer", ("authorization", "Bearer k"), ("authorization", "Bearer k")),
        ("x-api-key", ("x-api-key", "k"), ("x-api-key", "k")),
    ],
)
def test_header_of_a_key(kind: str, chat: tuple[str, str], messages: tuple[str, str]) -> None:
    """The setting names the header that carries `api_key`; `auto` goes by the API."""
    text = f"upstream: [{{base_url: 'http://a', api_key_header: {kind}, api_key: ''}}]"
    (keyless,) = parse(text).upstream
    assert [keyless.build_key_header(api) for api in API_NAMES] == [None] * 3
    (keyed,) = parse(text.replace("''", "k")).upstream
    assert [keyed.build_key_header(api) for api in API_NAMES] == [chat, chat, messages]


def test_pairs_are_cached() -> None:
    """A pair is computed once, and the number of cached pairs is bounded, because clients name
    resources."""
    settings = parse("models: {m: {mode: shadow}}")
    assert settings.effective("m", "r") is settings.effective("m", "r")
    assert settings.effective("m", "r") is settings.effective("m", "s")
    for number in range(MAX_CACHED_PAIRS + 10):
        settings.effective("m", str(number))
    assert len(settings._effective_by_pair) == MAX_CACHED_PAIRS


def test_overrides_that_could_not_be_checked_together() -> None:
    """Globs with a set of characters that contradict each other for one model raise when it is
    used: memory fails, chat does not."""
    settings = parse(
        "models: {'[a]*': {observation: {message_tokens: 9000}}, '*b': {observation: {buffer_activation: 9500}}}"
    )
    assert settings.effective("a").limits.observe_from_tokens == 9_000
    with pytest.raises(
        ConfigError,
        match=r"models\.\[a\]\*, models\.\*b contradict each other: .*message_tokens \(9000\)",
    ):
        settings.effective("ab")


def test_a_thread_may_not_have_requests_wait_for_hours() -> None:
    """A thread's block_timeout is bounded, because each waiting request counts towards
    limits.in_flight. A value stored before the bound existed is bounded too."""
    base = parse("").effective(None)
    with pytest.raises(ConfigError, match="block_timeout of a thread must be at most 2m"):
        merge_thread_overrides(base, {"observation": {"block_timeout": "10000s"}})
    stored = b'{"observation": {"block_timeout": "10000s"}}'
    assert base.with_overrides(stored).limits.block_timeout_s == 120
    assert merge_thread_overrides(base, {"observation": {"block_timeout": "2m"}})
    patient = parse("memory: {observation: {block_timeout: 5m}}").effective(None)
    assert patient.with_overrides(stored).limits.block_timeout_s == 300


# what a thread may not say about itself
REFUSED_OVERRIDES: list[Any] = [
    {"model": "openai/other"},
    {"api_base": "http://127.0.0.1:9/v1"},
    {"api_key": "sk-x"},
    {"scope": "resource"},
    {"enabled": False},
    {"retrieval": {"enabled": True}},
    {"memory": {"model": "openai/other"}},
    {"context": {"layout": "merged"}},
    {"observation": {"model": {"model": "anthropic/x", "api_base": "http://127.0.0.1:9"}}},
    {"observation": {"prompt": "/etc/passwd"}},
    {"observation": {"instruction": "say other things"}},
    {"observation": {"model_settings": {"temperature": 2}}},
    {"observation": {"block_timeout": "10000s"}},
    {"observation": {"message_tokens": -5}},
    {"observation": {"message_tokens": 10**30}},
    {"observation": {"message_tokens": None}},
    {"observation": {"message_tokens": 1_000, "buffer_tokens": 2_000}},
    {"observation": {"block_timeout": " " * 5_000 + "20s"}},
    {"observation": []},
    {"observation": "x"},
    {"x\n" * 99: {}},
]


@pytest.mark.parametrize("overrides", REFUSED_OVERRIDES, ids=lambda one: str(one)[:50])
def test_stored_overrides_obey_the_rules_of_the_admin_api(overrides: dict[str, Any]) -> None:
    """They are refused where they come in, and change nothing where a row has them already, apart
    from a `block_timeout`, which is bounded there."""
    base = parse("").effective(None)
    stored = json.dumps(overrides).encode()
    with pytest.raises(ConfigError) as refused:
        check_thread_overrides(base, stored)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)
    in_force = base.with_overrides(stored)
    assert (
        in_force.memory.model_copy(update={"observation": base.memory.observation}) == base.memory
    )
    assert in_force is base or in_force.limits.block_timeout_s == 120


@pytest.mark.parametrize(
    "stored",
    [b"", b"x", b"null", b"[]", b'"text"', b"1", b"[" * 100_000, b"\xff", b'{"observation":'],
    ids=lambda stored: repr(stored[:12]),
)
def test_overrides_that_are_no_object_change_nothing(stored: bytes) -> None:
    base = parse("").effective(None)
    with pytest.raises(ConfigError):
        check_thread_overrides(base, stored)
    assert base.with_overrides(stored) is base
    changed = merge_thread_overrides(base, {"observation": {"message_tokens": 9_000}}, stored)
    assert changed == b'{"observation": {"message_tokens": 9000}}'


def test_enabled_stays_off_under_overrides() -> None:
    """An override does not switch memory on unless it says so."""
    settings = parse("memory: false\nmodels: {a: {mode: shadow}, b: {enabled: true}}")
    assert not settings.effective("a").memory.enabled
    assert settings.effective("b").memory.enabled


def test_sections_within_an_override() -> None:
    """`context: {…}` and `memory: {…}` inside an override hold its keys, and faults name the path
    inside them."""
    settings = parse(
        "models: {m: {scope: resource, context: {layout: merged}, memory: {retrieval: true}}}"
    )
    effective = settings.effective("m")
    assert (
        effective.memory.scope,
        effective.context.layout,
        effective.memory.retrieval.enabled,
    ) == (
        "resource",
        "merged",
        True,
    )
    with pytest.raises(
        ConfigError, match=r"models\.m\.context\.layot: is not a setting; did you mean layout\?"
    ):
        parse("models: {m: {context: {layot: merged}}}")


def test_a_cached_answer_changes_no_comparison() -> None:
    """Cached results do not take part in `==`."""
    asked = Settings()
    asked.effective("gpt-4o", "ana")
    assert asked == Settings()
    assert asked != Settings.model_validate({"retention": {"ttl_days": 3}})


@pytest.mark.parametrize(
    ("resource", "days"), [("r", 7), ("guest-1", 1), ("guest-kept", None), ("archive", None)]
)
def test_lifetime_of_a_resource(resource: str, days: float | None) -> None:
    """The most specific glob says it; `null` keeps every thread."""
    settings = Settings.model_validate(
        {
            "retention": {"ttl_days": 7},
            "resources": {
                "guest-*": {"retention": {"ttl_days": 1}, "observation": {"message_tokens": 9_000}},
                "guest-kept": {"retention": {"ttl_days": None}},
                "archive": {"retention": {"ttl_days": None}},
            },
        }
    )
    seconds = None if days is None else days * 86_400
    assert settings.find_lifetime(resource) == seconds
    assert settings.effective("any", resource).retention.lifetime_s == seconds
    assert settings.list_lifetimes() == (7 * 86_400, 86_400)
    assert Settings().list_lifetimes() == ()


@pytest.mark.parametrize(
    ("memory", "model", "expected"),
    [
        ("{retrieval: true}", "{}", "thread"),
        ("{scope: resource, retrieval: true}", "{}", "resource"),
        ("{scope: resource, retrieval: {scope: thread}}", "{}", "thread"),
        ("{retrieval: {scope: resource}}", "{}", "resource"),
        ("{retrieval: true}", "{scope: resource}", "resource"),
        ("{scope: resource, retrieval: true}", "{scope: thread}", "thread"),
        ("{scope: resource, retrieval: true}", "{retrieval: {tokens: 500}}", "resource"),
        ("{}", "{scope: resource}", "resource"),
    ],
)
def test_a_model_looks_where_its_memory_is(memory: str, model: str, expected: str) -> None:
    """Other threads are read only where their memory is shared, or a setting says so."""
    settings = parse(f"memory: {memory}\nmodels: {{m: {model}}}")
    retrieval = settings.effective("m", None).memory.retrieval
    assert retrieval.scope == expected
    assert retrieval.enabled == (True if "retrieval: true" in memory else "auto")
