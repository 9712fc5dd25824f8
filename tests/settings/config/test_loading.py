"""Loading: which file is used, and how each fault is reported."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import MemorySettings, Settings, load, parse
from om_proxy.settings.config.sections.memory import ObservationSettings
from om_proxy.settings.config.validation_messages import SECRET_SETTINGS

HOOK = "{url: 'http://h/?key=k', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}"
TYPO_HOOK = HOOK.replace("}", ", events: [data-om-activation, data-om-edit]}")
OTHER_HOOK = HOOK.replace("http://h/", "http://i/")


def faults_of(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml", env)
    return str(caught.value).splitlines()


def test_defaults() -> None:
    """Without a file and without variables, the built-in defaults are in force."""
    assert parse("").model_dump() == Settings().model_dump()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("server: {prot: 1}", "server.prot: is not a setting; did you mean port?"),
        ("qqq: 1", "qqq: is not a setting"),
        ("server: {port: many}", "server.port = many: must be a whole number"),
        ("server: {port: 70000}", "server.port = 70000: must be 65535 or less"),
        ("server: 1", "server = (hidden): must be a mapping of keys"),
        ("telemetry: {metrics: maybe}", "telemetry.metrics = maybe: must be true or false"),
        ("telemetry: {log: loud}", "telemetry.log = loud: must be 'auto', 'json', 'console' or 'off'"),
        ("limits: {body: big}", "limits.body = big: must be a size"),
        ("limits: {body_timeout: 30}", "limits.body_timeout = 30: must be a duration"),
        ("limits: {headers: many}", "limits.headers = (hidden): must be a size"),
        ("limits: {header_timeout: 30}", "limits.header_timeout = 30: must be a duration"),
        ("limits: {in_flight: 0}", "limits.in_flight = 0: must be 1 or more"),
        ("upstream: []", "upstream = […]: must not be empty"),
        ("upstream: {a: 1}", "upstream = {…}: must be a list"),
        ("upstream: [{name: x}]", "upstream[0].base_url: is required"),
        ("upstream: [{base_url: 'ftp://h'}]", "upstream[0].base_url = ftp://h: must be http:// or https://"),
        ("upstream: [{base_url: 'http://u:p@h'}]", "upstream[0].base_url = (hidden): must be http:// or https://"),
        ("upstream: [{base_url: 'http://h', match: []}]", "upstream[0].match = […]: must not be empty"),
        ("upstream: [{base_url: 'http://h'}, {base_url: 'http://i'}]", "upstream[1].name: is already the name of an earlier upstream"),
        ("auth: {keys: [{tenant: a b, key: k}]}", "auth.keys[0].tenant = (hidden): must match"),
        ("auth: {keys: [{tenant: a, key: k, tenannt: b}]}", "auth.keys[0].tenannt: is not a setting; did you mean tenant?"),
        ("auth: {keys: [{tenant: a, key: ''}]}", "auth.keys[0].key = (hidden): must not be empty"),
        ("auth: {keys: [{tenant: a, key: k}, {tenant: b, key: k}]}", "auth.keys = […]: each key must belong to one tenant"),
        ("auth: {token_secret: short}", "auth.token_secret = (hidden): must have at least 32 bytes"),
        (
            f"auth: {{token_secret: ssh-rsa {'A' * 64}}}",
            "auth.token_secret = (hidden): must not be a key in PEM, SSH or JWK form",
        ),
        (f"telemetry: {{webhooks: [{HOOK}, {OTHER_HOOK}, {HOOK}]}}", "telemetry.webhooks = […]: each url must stand once"),
        (f"telemetry: {{webhooks: [{TYPO_HOOK}]}}", "telemetry.webhooks[0].events = […]: an event has one of the types data-om-"),
        ("auth: {token_required: true}", "auth.token_required = true: needs auth.token_secret"),
        ("identity: {thread_headers: ['x y']}", "identity.thread_headers[0] = (hidden): must match"),
        ("side_requests: {prompts: ['(']}", "side_requests.prompts = […]: must be regular expressions"),
        ("storage: {url: 'mysql://h'}", "storage.url = mysql://h: must be sqlite:///"),
        ("storage: {url: 'mysql://db/om'}", "storage.url = mysql://db/om: must be sqlite:///<file>"),
        ("storage: {prefix: pg_own}", "storage.prefix = pg_own: must not begin with pg_"),
        ("storage: {url: 'redis://db/om'}", "storage.url = redis://db/om: must be sqlite:///<file>"),
        ("storage: {url: 'redis://h?protocol=3'}", "storage.url = (hidden): must have no options behind a ? but username, password"),
        ("storage: {url: 'redis://:geheim@h?decode_responses=true'}", "storage.url = (hidden): must have no options behind a ?"),
        ("storage: {url: 'redis://h?ssl_cert_reqs=none'}", "storage.url = (hidden): must have no options behind a ?"),
        ("storage: {url: 'rediss://h?ssl_cert_reqs=foo'}", "storage.url = (hidden): must have no option ssl_cert_reqs that is other"),
        ("storage: {url: 'rediss://h?ssl_certfile='}", "storage.url = (hidden): must have no option ssl_certfile that is empty"),
        ("storage: {encryption_key: hush}", "storage.encryption_key = (hidden): must be 32 bytes as base64 or hex"),
        ("storage: {search: true, url: 'redis://localhost:6379/0'}", "storage.search = true: must be auto or false with Redis"),
        ("storage: {search: true, encryption_key: 'file:/key'}", "storage.search = true: must be auto or false with storage.enc"),
        ("storage: {search: sometimes}", "storage.search = sometimes: must be"),
        ("storage: {keys_url: 'sqlite:///keys.db'}", "storage.keys_url = (hidden): needs storage.encryption_key"),
        ("storage: {keys_url: 'redis://h'}", "storage.keys_url = (hidden): must be sqlite:///<file> or postgresql://"),
        ("storage: {keys_url: 'sqlite:///:memory:'}", "storage.keys_url = (hidden): must be sqlite:///<file>"),
        ("storage: {keys_url: keys.db}", "storage.keys_url = (hidden): must be sqlite:///<file>"),
        (f"storage: {{url: 'sqlite:///:memory:', keys_url: 'sqlite:///k', encryption_key: {'A' * 43}}}",
         "storage.keys_url = (hidden): needs a file or a server in storage.url"),
        (f"storage: {{url: 'sqlite:///a/../om.db', keys_url: 'sqlite:///om.db', encryption_key: {'A' * 43}}}",
         "storage.keys_url = (hidden): must name another file or database"),
        (f"storage: {{url: 'postgres://a:b@h/om', keys_url: 'postgresql://h:5432/om', encryption_key: {'A' * 43}}}",
         "storage.keys_url = (hidden): must name another file or database"),
        ("storage: {encryption_key: []}", "storage.encryption_key = […]: must be one key, or a list of at most 5"),
        ("storage: {encryption_key: ['file:/a', 'file:/a']}", "storage.encryption_key = […]: must name each key once"),
        ("{server: {workers: 2}, storage: {url: 'sqlite:///:memory:'}}", "server.workers = 2: above 1 needs a file or a server"),
        ("{background: {external: true}, storage: {url: 'sqlite:///:memory:'}}", "background.external = true: needs a file or a server"),
        ("identity: {thread_headers: [Authorization]}", "identity.thread_headers = […]: must not contain authorization: it carries"),
        ("identity: {resource_headers: [a, x-api-key]}", "identity.resource_headers = […]: must not contain x-api-key: it carries"),
        ("upstream: [{base_url: 'http://h/v1/chat/completions/'}]",
         "upstream[0].base_url = http://h/v1/chat/completions/: must end before /chat"),
        ("memory: {api_base: 'http://h/v1/chat/completions'}", "memory.api_base = http://h/v1/chat/completions: must end before /chat"),
        ("upstream: [{base_url: 'http://h', match: 'gpt-*'}]", 'upstream[0].match = (hidden): must be a list: write it as ["…"]'),
        ("auth: {keys: hush}", "auth.keys = (hidden): must be a list: write it as [{…}]"),
        ("memory: {message_tokens: 1}", "memory.message_tokens: is not a setting; did you mean observation.message_tokens?"),
        ("memory: {observation_tokens: 1}", "memory.observation_tokens: is not a setting; did you mean reflection.observation_tokens?"),
        ("models: {'gpt-4o*': {message_tokens: 1}}",
         'models["gpt-4o*"].message_tokens: is not a setting; did you mean observation.message_tokens?'),
        ("resources: {x: {memory: {block_after: 2}}}",
         "resources.x.memory.block_after: is not a setting; did you mean observation.block_after or reflection.block_after?"),
        ("port: 1", "port: is not a setting; did you mean server.port?"),
        (
            "memory: {observation: {buffer_token: 1}}",
            "memory.observation.buffer_token: is not a setting; did you mean buffer_tokens or buffer_on_idle?",
        ),
        ("background: {reflector_interval: 30s}", "background.reflector_interval = 30s: is no longer a setting"),
        ("storage: {on_down: 500}", "storage.on_down = 500: must be 'bypass' or '503'"),
        ("storage: {prefix: A-B}", "storage.prefix = A-B: must match"),
        ("memory: {mode: dead}", "memory.mode = dead: must be 'live' or 'shadow'"),
        ("memory: {timezone: Mars}", "memory.timezone = Mars: must be an IANA time zone"),
        ("memory: {timezone: ../etc/passwd}", "memory.timezone = ../etc/passwd: must be an IANA time zone"),
        ("memory: {activate_after_idle: 5}", "memory.activate_after_idle = 5: must be off, auto, or a duration"),
        ("memory: {economy: max}", "memory.economy = max: must be 'off' or 'auto'"),
        ("memory: {model: null}", "memory.model = null: must be auto, inherit, default"),
        ("memory: {model: {up_to: {many: a}}}", "memory.model = {…}: must be auto, inherit, default"),
        ("memory: {model: [a, {model: b, tries: 2}]}", "memory.model = […]: must be auto, inherit, default"),
        ("memory: {retrieval: {vector: true}}", "memory.retrieval.vector = true: needs retrieval.embedding_model"),
        ("memory: {observation: {prompt: no-such.md}}", "memory.observation.prompt = no-such.md: must be default, condensed"),
        ("memory: {observation: {buffer_tokens: 0}}", "memory.observation.buffer_tokens = 0: must be false, a ratio"),
        ("memory: {observation: {buffer_tokens: 30000}}", "memory.observation.buffer_tokens = 30000: as 30000 tokens, it must be below"),
        ("memory: {observation: {buffer_activation: 5}}", "memory.observation.buffer_activation = 5: must be a ratio"),
        ("memory: {observation: {buffer_activation: 30000}}", "memory.observation.buffer_activation = 30000: as 30000 tokens to keep"),
        ("memory: {observation: {block_after: 0.5}}", "memory.observation.block_after = 0.5: must be a multiple"),
        ("memory: {observation: {block_after: 100}}", "memory.observation.block_after = 100: as 100 tokens, it must not be below"),
        ("memory: {observation: {previous_observer_tokens: -1}}", "memory.observation.previous_observer_tokens = -1: must be false"),
        ("memory: {reflection: {model_settings: {extra_body: {n: 2}}}}",
            "memory.reflection.model_settings.extra_body = {…}: must not"),
        ("memory: {observation: {model_settings: {temperature: 3}}}", "memory.observation.model_settings.temperature = 3: must be 2 or"),
        ("memory: {reflection: {buffer_activation: 1.5}}", "memory.reflection.buffer_activation = 1.5: must be 1 or less"),
        ("memory: {reflection: {buffer_activation: 0}}", "memory.reflection.buffer_activation = 0: must be more than 0"),
        ("memory: {reflection: {block_after: 39999}}", "memory.reflection.block_after = 39999: as 39999 tokens, it must not be below"),
        ("memory: {model: a, observation: {model: b}}", "memory.observation.model = b: cannot be set together with `model`"),
        ("memory: {model: a, reflection: {model: b}}", "memory.reflection.model = b: cannot be set together with `model`"),
        ("context: {priorities: [red]}", "context.priorities = […]: must contain red and done"),
        ("retention: {ttl_days: 0}", "retention.ttl_days = 0: must be more than 0"),
        ("retention: {ttl_days: -1}", "retention.ttl_days = -1: must be more than 0"),
        ("retention: {ttl_days: 0.01}", "retention.ttl_days = 0.01: must be an hour (0.042) or more; null keeps every thread"),
        ("retention: {ttl_days: .inf}", "retention.ttl_days = .inf: must be a number"),
        ("retention: {ttl_days: week}", "retention.ttl_days = week: must be a number"),
        ("resources: {x: {retention: {ttl_days: 0}}}", "resources.x.retention.ttl_days = 0: must be more than 0"),
        ("resources: {x: {retention: {generations: 3}}}", "resources.x.retention.generations = 3: is one number for all resources"),
        ("resources: {x: {retention: 5}}", "resources.x.retention = (hidden): must be a mapping of keys"),
        ("resources: {x: {retention: {ttl: 5}}}", "resources.x.retention.ttl: is not a setting"),
        ("models: {x: {retention: {ttl_days: 3}}}", "models.x.retention"),
        ("models: {'g*': {observaton: {}}}", 'models["g*"].observaton: is not a setting; did you mean observation?'),
        ("models: {x: {observation: {messagetokens: 1}}}", "models.x.observation.messagetokens: is not a setting; did you mean"),
        ("models: {x: 5}", "models.x = (hidden): must be a mapping of keys"),
        ("models: {x: {model: a, reflection: {model: b}}}", "models.x.reflection.model = b: cannot be set together with `model`"),
        ("models: {x: {model: [1, {}]}}", "models.x.model = […]: must be auto, inherit, default"),
        ("models: {x: {observation: {message_tokens: 40000, block_after: 35000}}}", "models.x.observation.block_after = 35000: as 35000"),
        ("resources: {x: {priorities: [green]}}", "resources.x.priorities = […]: must contain red and done"),
    ],
)  # fmt: skip
def test_fault(text: str, fault: str) -> None:
    """Each fault names key, value and line; credentials are not repeated."""
    first, *more = faults_of(text)
    assert first.startswith(f"x.yaml:1: {fault}")
    assert not more


def test_faults_are_told_together() -> None:
    """One error lists every fault of type, each with its line."""
    faults = faults_of("server:\n  port: x\nmemory:\n  scope: all\nmodells: {}\n")
    assert [line.split(": ")[0] for line in faults] == ["x.yaml:2", "x.yaml:4", "x.yaml:5"]


def test_a_hidden_name_is_found_by_its_line() -> None:
    """A credential in place of a key is hidden, and the line still leads to it."""
    assert faults_of("auth:\n  keys: []\n  sk-hush: acme\n") == [
        'x.yaml:3: auth["(hidden)"]: is not a setting; there are keys, token_secret, '
        "token_audience, token_required"
    ]


def test_rules_of_sections_are_told_together() -> None:
    """One error lists all rules that a section breaks."""
    faults = faults_of(
        "memory:\n  observation: {message_tokens: 1000, buffer_tokens: 2000,\n    block_after: 500}\n"
    )
    assert [line.split(" = ")[0] for line in faults] == [
        "x.yaml:2: memory.observation.buffer_tokens",
        "x.yaml:3: memory.observation.block_after",
    ]


def test_fault_of_an_override_that_breaks_a_base_key() -> None:
    """An override that makes a value of `memory` invalid is named, with its line."""
    faults = faults_of(
        "memory: {observation: {block_after: 40000}}\nmodels:\n  big:\n    observation: {message_tokens: 60000}\n"
    )
    assert faults == [
        "x.yaml:4: models.big.observation.block_after: as 40000 tokens, it must not be below message_tokens (60000)"
    ]


def test_overrides_that_meet_and_contradict() -> None:
    """Overrides of a model and of a resource that are valid alone, but not together, are refused at
    load."""
    faults = faults_of(
        "models: {m: {observation: {message_tokens: 10000}}}\nresources: {r: {observation: {buffer_activation: 12000}}}\n"
    )
    assert len(faults) == 1
    assert faults[0].startswith("x.yaml:2: resources.r.observation.buffer_activation = 12000")
    assert faults[0].endswith("where models.m matches too")


EVERYWHERE = "0.0.0.0"  # noqa: S104 - read, never bound


@pytest.mark.parametrize(
    ("host", "sound"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        (EVERYWHERE, False),
        ("::", False),
        ("h", False),
    ],
)
def test_a_bind_others_reach_needs_a_token(host: str, sound: bool) -> None:
    """An address other than loopback needs a token for the admin API."""
    text = f"server: {{host: '{host}'}}"
    if sound:
        assert parse(text).server.is_loopback
    else:
        assert "needs server.admin_token" in faults_of(text)[0]
    assert parse(text, env={"OM_PROXY_ADMIN_TOKEN": "t" * 16}).server.is_loopback == sound


LONG = "0123456789abcdef"
SHORT = LONG[1:]


@pytest.mark.parametrize(
    ("secrets", "faulty"),
    [
        ({}, None),
        ({"admin": SHORT}, "server.admin_token"),
        ({"admin": "x"}, "server.admin_token"),
        ({"admin": f"x{' ' * 30}"}, "server.admin_token"),
        ({"metrics": SHORT}, "telemetry.metrics_token"),
        ({"key": SHORT}, "auth.keys[1].key"),
    ],
)
def test_a_bind_others_reach_needs_long_secrets(
    secrets: dict[str, str], faulty: str | None
) -> None:
    """Others could guess a short one. The error says how to make one, and shows none. On loopback
    any length is good."""
    admin, metrics, key = (secrets.get(name, LONG) for name in ("admin", "metrics", "key"))
    rest = (
        f"telemetry: {{metrics_token: '{metrics}'}}\n"
        f"auth: {{keys: [{{tenant: a, key: {LONG}0}}, {{tenant: b, key: '{key}'}}]}}\n"
    )
    assert parse(f"server: {{admin_token: '{admin}'}}\n{rest}").server.is_loopback
    text = f"server: {{host: '{EVERYWHERE}', admin_token: '{admin}'}}\n{rest}"
    if faulty is None:
        assert not parse(text).server.is_loopback
        return
    [fault] = faults_of(text)
    assert f"{faulty} = (hidden): must have at least 16 characters" in fault
    assert "openssl rand -hex 32" in fault


@pytest.mark.parametrize(
    "text",
    [
        *(
            "auth: HUSH",
            "auth: {keys: HUSH}",
            "auth: {keys: [HUSH]}",
            "auth: {keys: [a, HUSH]}",
            "auth: {HUSH: acme}",
        ),
        *("auth: {keys: [{tenant: a, key: HUSH, x: 1}]}", "auth: {keys: [{tenant: a, kye: HUSH}]}"),
        *("auth: {keys: [{tenant: a, key: [HUSH]}]}", "auth: {keys: [{tenant: 'a HUSH', key: k}]}"),
        *(
            "auth: {keys: [{HUSH: acme}]}",
            "auth: {keys: {HUSH: acme}}",
            "auth: {keys: [{acme: HUSH}]}",
        ),
        *(
            "auth: {token_required: HUSH}",
            "auth: {token_required: [HUSH]}",
            "auth: {token_secret: [HUSH]}",
        ),
        *("auth: {tokens: [HUSH]}", "auth: {tokens: {a: HUSH}}", "auth: {other: {a: [HUSH]}}"),
        *(
            "server: HUSH",
            "server: {admin_tokn: HUSH}",
            "server: {admin: HUSH}",
            "server: {admin_token: [HUSH]}",
        ),
        *(
            "memory: HUSH",
            "memory: {api_key: [HUSH]}",
            "memory: {apikey: HUSH}",
            "memory: {sesame: HUSH}",
        ),
        *("upstream: HUSH", "upstream: [HUSH]", "upstream: {key: HUSH}"),
        *(
            "upstream: [{base_url: 'http://h', api_key: [HUSH]}]",
            "upstream: [{base_url: 'http://h', apikey: HUSH}]",
        ),
        *(
            "upstream: [{base_url: 'http://h', headers: [HUSH]}]",
            "upstream: [{base_url: 'http://h', header: HUSH}]",
        ),
        *("upstream: [{base_url: 'http://h/?k=HUSH'}]", "upstream: [{base_url: 'x://me:HUSH@h'}]"),
        *(
            "storage: {keys_url: 'mysql://me:HUSH@h'}",
            "storage: {keys_url: 'postgresql://me:HUSH@h/k'}",
        ),
        *("storage: {url: 'mysql://me:HUSH@h'}", "storage: {url: 'mysql://h?password=HUSH'}"),
        *("storage: {encryption_key: [HUSH]}", "storage: {password: HUSH}"),
        *(
            "models: HUSH",
            "models: {x: HUSH}",
            "models: {x: {api_key: [HUSH]}}",
            "models: {x: {token: HUSH}}",
        ),
        *(
            "resources: {x: HUSH}",
            "resources: {x: {observation: HUSH}}",
            "resources: {x: {observation: {key: HUSH}}}",
        ),
        *("HUSH", "openai_key: HUSH", "key: HUSH", "tokens: [HUSH]"),
    ],
)
@pytest.mark.parametrize("secret", ["sk-hush", "8642086420", "hush"])
def test_faults_keep_secrets(text: str, secret: str) -> None:
    """No error repeats a value that may be a credential, in any place."""
    assert secret not in "".join(faults_of(text.replace("HUSH", secret)))


@pytest.mark.parametrize(
    "text",
    [
        "identity: {thread_headers: ['x-om-thread: ada hush']}",
        "identity: {thread_headers: {x-om-thread: ada hush}}",
        "limits: {headers: ada hush}",
        "memory: {timezone: sk-proj-0hush1hush2hush3hush4hush5hush6}",  # by its shape
        "memory: {sk-proj-0hush1hush2hush3hush4hush5hush6: 1}",
    ],
)
def test_faults_keep_what_looks_like_a_secret(text: str) -> None:
    """A value is hidden if its setting is named like a secret, or if it has the form of one."""
    assert "hush" not in "".join(faults_of(text))


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("server: {port: '${P}'}", {"P": "sk-hush"}),
        ("", {"OM_PROXY__AUTH__KEYS": "[sk-hush]"}),
        ("", {"OM_PROXY__AUTH__KEYS": "sk-hush"}),
        ("", {"OM_PROXY__AUTH__KEYS__0": "sk-hush"}),
        ("", {"OM_PROXY__SERVER__ADMIN_TOKN": "sk-hush"}),
        ("server: {port: x}", {"OM_PROXY_ADMIN_TOKEN": "sk-hush"}),
    ],
)
def test_faults_keep_the_environment_s_secrets(text: str, env: dict[str, str]) -> None:
    """A variable's value is hidden in the same way as a value in the file."""
    assert "sk-hush" not in "".join(faults_of(text, **env))


def secrets_of(section: type[BaseModel]) -> set[str]:
    """List the names of the secret settings of a section and of the sections inside it."""
    names = set()
    for name, kind in get_type_hints(section).items():
        types = {kind, *get_args(kind)}
        items = {item for inner_type in types for item in get_args(inner_type)}
        names |= {name} if SecretStr in types | items else set()
        for inner_type in types:
            names |= (
                secrets_of(inner_type)
                if isinstance(inner_type, type) and issubclass(inner_type, BaseModel)
                else set()
            )
    return names


def test_every_secret_is_hidden() -> None:
    """The value of every secret setting is hidden in faults."""
    assert secrets_of(Settings) == SECRET_SETTINGS


def test_settings_keep_secrets() -> None:
    """Neither repr nor str of the settings shows a credential."""
    text = "server: {admin_token: hush}\nauth: {keys: [{tenant: a, key: hush}]}\nmemory: {api_key: hush}"
    settings = parse(text)
    assert "hush" not in f"{settings!r}{settings}{settings.effective('m', 'r')!r}"
    assert settings.auth.keys[0].key.get_secret_value() == "hush"


def test_fault_of_an_environment_override() -> None:
    """A fault that came from the environment names its variable."""
    assert faults_of("", OM_PROXY__SERVER__PRT="1") == [
        "env OM_PROXY__SERVER__PRT: server.prt: is not a setting; did you mean port?"
    ]


@pytest.mark.parametrize(
    ("text", "variable", "said"),
    [
        ("", "OM_PROXY__SERVR__PORT", "servr: is not a setting; did you mean server?"),
        ("memory: true", "OM_PROXY__MEMORY__OBSERVTION__PROMPT", "memory.observtion: is not a setting; did you mean observation?"),
        ("upstream: [{base_url: 'http://h'}]", "OM_PROXY__UPSTREAM__1__NAME", "upstream[1].base_url: is required"),
        ("", "OM_PROXY__MODELS__X__OBSERVTION__PROMPT", "models.x.observtion: is not a setting; did you mean observation?"),
    ],
)  # fmt: skip
def test_fault_of_what_only_an_override_made(text: str, variable: str, said: str) -> None:
    """A section that no file contains leads to the variable that made it."""
    assert faults_of(text, **{variable: "x"}) == [f"env {variable}: {said}"]


CREDENTIALS = (
    *(
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "cookie",
        "x-om-authorization",
    ),
    *("x-memory-gateway-authorization", "x-om-admin", "x-om-token"),
)


@pytest.mark.parametrize("key", ["thread_headers", "resource_headers"])
@pytest.mark.parametrize("header", CREDENTIALS)
def test_a_credential_names_no_thread(key: str, header: str) -> None:
    """A header that carries a credential cannot name a thread: names are stored, listed and sent
    back, and the key would not reach the model server."""
    (fault,) = faults_of(f"identity: {{{key}: [x-mine, {header.title()}]}}")
    assert f"must not contain {header}" in fault


def test_digits_stay_digits() -> None:
    """A secret of digits keeps its leading zero."""
    token = parse("server: {admin_token: 0123}").server.admin_token
    assert token
    assert token.get_secret_value() == "0123"


def test_memory_in_one_word() -> None:
    """`true` and `false` are short for `enabled`, also in overrides; the same for retrieval, which is
    `auto` where nothing says more, whatever other keys it has."""
    assert parse("memory: true").memory.enabled
    assert not parse("memory: false").memory.enabled
    assert not parse("models: {x: false}").effective("x").memory.enabled
    for retrieval, base, of_a_model in (
        ("{}", "auto", "auto"),
        ("{retrieval: true}", True, True),
        ("{retrieval: false}", False, False),
        ("{retrieval: {tokens: 500}}", "auto", "auto"),
        ("{retrieval: {enabled: true, tokens: 500}}", True, True),
    ):
        settings = parse(f"memory: {retrieval}\nmodels: {{x: {{retrieval: {{scope: thread}}}}}}")
        assert settings.memory.retrieval.enabled == base
        assert settings.effective("x").memory.retrieval.enabled == of_a_model


def test_which_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The given file, else the variable's, else ./config/om-proxy.yaml, else none."""
    monkeypatch.chdir(tmp_path)
    assert load(env={}).server.port == 8400
    (tmp_path / "config").mkdir()
    for port, name in ((1, "config/om-proxy.yaml"), (2, "named.yaml"), (3, "given.yaml")):
        (tmp_path / name).write_text(f"server: {{port: {port}}}")
    assert load(env={}).server.port == 1
    assert load(env={"OM_PROXY_CONFIG": "named.yaml"}).server.port == 2
    settings = load("given.yaml", {"OM_PROXY_CONFIG": "named.yaml"})
    assert settings.server.port == 3
    assert settings.file == Path("given.yaml")


@pytest.mark.parametrize("name", ["gone.yaml", "."])
def test_named_file_must_be_readable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named file that cannot be read is an error. The defaults do not replace it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(name, {})


def test_file_with_wrong_bytes(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused; a byte order mark is not."""
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file, {})
    file.write_bytes(b"\xef\xbb\xbfserver: {port: 1}")
    assert load(file, {}).server.port == 1


KNOWN = [*Settings.model_fields, *MemorySettings.model_fields, *ObservationSettings.model_fields]
KEYS = st.sampled_from([*KNOWN, "up_to", "x*", "0", "[a].{b}"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 100_000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [
            "",
            "off",
            "auto",
            "5m",
            "64MiB",
            "a",
            "inherit",
            "http://h",
            "http://[",
            "{x}",
            "${",
            "(",
            "/",
            "a\x00b",
        ]
    ),
)


@given(
    st.dictionaries(
        KEYS,
        st.recursive(
            VALUES,
            lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=4),
            max_leaves=12,
        ),
        max_size=4,
    )
)
def test_any_file(data: dict[str, object]) -> None:
    """Any keys with any values give Settings, or a ConfigError whose every line names its key."""
    assert all(line.startswith("x.yaml:1: ") for line in faults_if_any(data))


def faults_if_any(data: object) -> list[str]:
    """List the faults; none for valid settings. Any other exception than a ConfigError passes
    on."""
    try:
        parse(json.dumps(data), "x.yaml").effective("x", "x")
    except ConfigError as exc:
        return str(exc).splitlines()
    return []


ODD: tuple[object, ...] = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        0.5,
        1e9,
        10**400,
        "",
        "off",
        "auto",
        "5m",
        "64MiB",
        "a",
        "inherit",
        "{x}",
        "(",
        "/",
        "a\x00b",
    ),
    *(
        [],
        [[]],
        [{}],
        ["a", None],
        {},
        {"": {}},
        {"a": "b"},
        {"up_to": {}},
        {"up_to": {"1": ["a"]}},
        {"model": "a"},
    ),
)


def paths(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        yield (name,)
        inside = field.annotation
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            yield from ((name, *path) for path in paths(inside))


@pytest.mark.parametrize(
    "path",
    [*paths(Settings), *(("models", "x", *path) for path in paths(MemorySettings))],
    ids=".".join,
)
def test_any_value_of(path: tuple[str, ...]) -> None:
    """Each key with each odd value is accepted, or refused with a ConfigError that names the key,
    one line a fault."""
    for odd in ODD:
        data = odd
        for part in reversed(path):
            data = {part: data}
        assert all(line.startswith("x.yaml:1: ") for line in faults_if_any(data)), odd


def test_each_upstream_knows_its_setting() -> None:
    """An error about a server names its path in the settings."""
    two = parse(
        "upstream: [{base_url: 'http://a', match: [a]}, {name: b, base_url: 'http://b'}]"
    ).upstream
    assert [server.path_in_settings for server in (*two, *Settings().upstream)] == [
        "upstream[0]",
        "upstream[1]",
        "upstream[0]",
        "upstream[1]",
    ]


@pytest.mark.parametrize("around", [" ", "\t", "\r", "\n"])
def test_an_address_has_no_blank(around: str) -> None:
    """A request's first line ends at a blank. A variable's value has one at its end easily."""
    env = {"HOST": f"{around}http://h/v1/{around}"}
    text = 'upstream: [{base_url: "${HOST}"}]'
    assert parse(text, env=env).upstream[0].base_url == "http://h/v1"
    with pytest.raises(ConfigError, match="fragment or blank"):
        parse(text, env={"HOST": f"http://h/{around}v1"})


@pytest.mark.parametrize("end", [" ", "\r", "\n"])
def test_a_key_has_no_end_of_a_line(end: str) -> None:
    """No header takes it: each request would fail, with no word of the key."""
    env = {"KEY": f"sk-1{end}", "NONE": end}
    keyed, plain = parse(
        'upstream: [{base_url: http://h/v1, name: a, api_key: "${KEY}"},'
        ' {base_url: http://h/v1, name: b, api_key: "${NONE}"}]\n'
        'memory: {model: openai/m, api_key: "${KEY}"}',
        env=env,
    ).upstream
    assert keyed.api_key is not None
    assert keyed.api_key.get_secret_value() == "sk-1"
    assert plain.api_key is None
