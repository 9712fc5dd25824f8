"""What `om-proxy check` prints."""

import pytest

from om_proxy.settings.config import (
    Settings,
    list_warnings,
    parse,
    render_settings,
    render_summary,
)

TEXT = """
server: {admin_token: hush}
storage: {url: "sqlite:///om.db?password=hush"}
memory:
  activate_after_idle: 90s
  observation: {buffer_tokens: 3000}
  model: base
models:
  "gpt-4o*": {observation: {message_tokens: 20000, model: own}, relative_time: false}
resources:
  boss: {reflection: {observation_tokens: 1000}}
"""


def find_line(lines: list[str], start: str) -> str:
    matching_lines = [text for text in lines if text.startswith(start)]
    assert len(matching_lines) == 1
    return matching_lines[0]


@pytest.mark.parametrize(
    "expected",
    [
        "server.port = 9  (env OM_PROXY__SERVER__PORT)",
        "server.admin_token = (set)  (x.yaml:2)",
        "limits.body = 64MiB  (default)",
        "upstream[0].match = [*]  (default)",
        "storage.url = sqlite:///om.db?…  (x.yaml:3)",
        "memory.activate_after_idle = 90s  (x.yaml:5)",
        "memory.observation.message_tokens = 20000  (models[\"gpt-4o*\"], x.yaml:9)",
        "memory.observation.buffer_tokens = 3000  (x.yaml:6)",
        "memory.observation.previous_observer_tokens = 2000  (default)",
        "memory.observation.model = own  (models[\"gpt-4o*\"], x.yaml:9, observation.model)",
        "memory.reflection.model = base  (x.yaml:7, memory.model)",
        "memory.reflection.observation_tokens = 1000  (resources[\"boss\"], x.yaml:11)",
        "memory.reflection.model_settings.temperature = 0  (default)",
        "context.relative_time = false  (models[\"gpt-4o*\"], x.yaml:9)",
        "upstream: openai at https://api.openai.com/v1, for every model (chat, responses)",
        "tokens: messages are observed at 20000, every 3000 new ones; about 4000 stay raw; a request waits at 24000",
        "tokens: observations are reflected at 1000, prepared from 500; a request waits at 1200",
    ],
)  # fmt: skip
def test_line(expected: str) -> None:
    """Each line shows a setting with its value as the file writes it, and its origin."""
    settings = parse(TEXT, "x.yaml", {"OM_PROXY__SERVER__PORT": "9"})
    whose = ("gpt-4o-mini", "boss")
    assert expected in [*render_settings(settings, *whose), *render_summary(settings, *whose)]


@pytest.mark.parametrize(
    ("model", "idle", "pause"),
    [
        ("gpt-4o", "auto", "5m"),
        ("gpt-5.5", "auto", "1h"),
        ("gpt-4o", "90s", "90s"),
        ("gpt-4o", "off", None),
    ],
)
def test_pauses(model: str, idle: str, pause: str | None) -> None:
    """`check` shows the pause that `auto` means for this model's provider, with `buffer_on_idle`
    even if activate_after_idle is off."""
    settings = parse(
        f"memory: {{activate_after_idle: {idle}, observation: {{buffer_on_idle: true}}}}"
    )
    lines = render_summary(settings, model)
    active = [text for text in lines if text.endswith("what was observed ahead becomes active")]
    assert active == (
        [f"tokens: after a pause of {pause}, what was observed ahead becomes active"]
        if pause
        else []
    )
    assert (
        f"tokens: after a pause of {pause or '5m'}, 3000 new ones are enough to be observed ahead"
        in lines
    )
    assert list_warnings(settings, model) == []


def test_a_shared_budget_is_told() -> None:
    """`check` shows how far a shared budget moves the thresholds."""
    lines = render_summary(parse("memory: {share_token_budget: true}"))
    assert "messages are observed at 70000 and a request waits at 84000" in find_line(
        lines, "tokens: messages and observations share"
    )
    assert not [text for text in render_summary(Settings()) if "share one budget" in text]


def test_no_secret() -> None:
    """No line shows a credential."""
    settings = parse(TEXT, "x.yaml")
    lines = [*render_summary(settings), *render_settings(settings), *list_warnings(settings)]
    assert "hush" not in "".join(lines)


def test_defaults_need_no_warning() -> None:
    """The defaults give no warning, and each has the origin "default"."""
    assert list_warnings(Settings()) == []
    assert all(text.endswith("(default)") for text in render_settings(Settings()))


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "memory: {observation: {buffer_activation: 0.9}}",
            "leaves 3000 tokens raw, less than one buffering interval (6000)",
        ),
        (
            "memory: {observation: {message_tokens: 2000, buffer_activation: 0.8}}",
            "less than 1000 tokens stay raw",
        ),
        (
            "memory: {observation: {buffer_tokens: false, block_after: 1.2}}",
            "block_after delays observing to 36000",
        ),
        (
            "memory: {activate_after_idle: auto, observation: {buffer_tokens: false}}",
            "have nothing to work with",
        ),
        (
            "memory: {observation: {buffer_tokens: false, buffer_on_idle: true}}",
            "have nothing to work with",
        ),
        ("context: {tail_limit: 8000}", "context.tail_limit (8000) is below 36000"),
        (
            "memory: {share_token_budget: true}\ncontext: {tail_limit: 40000}",
            "context.tail_limit (40000) is below 84000",
        ),
        ("memory: false", "memory is off"),
        ("background: {external: true}", "a worker cannot do its work"),
    ],
)
def test_warning(text: str, warning: str) -> None:
    """A setting that is allowed, but works badly, gives a warning."""
    (found,) = list_warnings(parse(text))
    assert warning in found


@pytest.mark.parametrize(
    "made_with",
    [
        "memory: {model: openai/small}",
        "upstream: [{base_url: 'http://h/v1', api_key: k}]",
    ],
)
def test_external_work_that_a_worker_can_do(made_with: str) -> None:
    assert list_warnings(parse(f"background: {{external: true}}\n{made_with}")) == []


KEYED = "auth: {keys: [{tenant: a, key: 0123456789abcdef}]}\n"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (KEYED + "upstream: [{name: local, base_url: 'http://h/v1'}]", "upstream local has no api_key, and auth.keys is set"),
        (KEYED + "upstream: [{base_url: 'http://h/v1', api_key: k}]", None),
        ("upstream: [{base_url: 'http://h/v1'}]", None),
        ("upstream: [{match: ['gpt-*']}, {name: b, match: ['gpt-4*']}]", "upstream b never gets a request"),
        ("upstream: [{match: ['*']}, {name: b, match: ['gpt-4?', 'o[13]']}]", "upstream b never gets a request"),
        ("upstream: [{match: [a]}, {match: ['b*'], name: c}, {name: b, match: [a, bc]}]", "upstream b never gets a request"),
        ("upstream: [{match: ['x[ab]']}, {name: b, match: ['x[ab]']}]", "upstream b never gets a request"),
        ("upstream: [{match: ['gpt-*']}, {name: b, match: ['gpt-4*', 'o1']}]", None),
        ("upstream: [{match: ['gpt-4*']}, {name: b, match: ['gpt-*']}]", None),
        ("upstream: [{match: ['a?']}, {name: b, match: ['a*']}]", None),
        ("upstream: [{match: ['*a*']}, {name: b, match: ['[ab]']}]", None),
        ("upstream: [{match: ['[*]']}, {name: b, match: ['*']}]", None),
        ("upstream: [{match: ['*'], apis: [chat, responses]}]", "no upstream is for the API messages: its requests get 400"),
        ("upstream: [{match: ['*'], apis: [chat, messages]}, {name: b, match: [a], apis: [responses]}]", None),
        ("upstream: [{match: ['*'], apis: [chat, messages]}, {name: b, match: [a]}]", None),
        ("upstream: [{match: ['*']}, {name: b, match: [a], apis: [messages]}]", "upstream b never gets a request"),
    ],
)  # fmt: skip
def test_warning_of_an_upstream(text: str, warning: str | None) -> None:
    """A warning names the upstream that gets no credential, or no request."""
    text = text.replace("{match", "{base_url: 'http://h/v1', match").replace(
        "{name: b, ", "{name: b, base_url: 'http://h/v1', "
    )
    warnings = list_warnings(parse(text))
    assert len(warnings) == (1 if warning else 0)
    assert all(str(warning) in line for line in warnings)


def test_model_without_an_upstream() -> None:
    """`check` says so if no upstream matches the model."""
    lines = render_summary(parse("upstream: [{base_url: 'http://h/v1', match: [a]}]"), "b")
    assert find_line(lines, "upstream: ") == "upstream: none: the request is refused"


def test_servers_of_a_model() -> None:
    """`check` names the server of each API that a model goes to, once."""
    text = """
        upstream:
          - {name: a, match: ["gpt-*"], base_url: "http://a", apis: [chat]}
          - {name: b, base_url: "http://b", apis: [messages]}
          - {name: c, base_url: "http://c"}
    """
    for model, expected in (("gpt-4o", "abc"), ("claude", "bc")):
        lines = render_summary(parse(text), model)
        assert [line[10] for line in lines if line.startswith("upstream: ")] == list(expected)


def test_long_instruction_is_cut() -> None:
    """A setting takes one line, even if its text is long or contains a URL."""
    of_a_page = render_settings(
        parse(f'memory: {{observation: {{instruction: "as http://h/?a=b says: {"x" * 500}"}}}}')
    )
    assert len(find_line(of_a_page, "memory.observation.instruction = as http://h/?a=b says")) < 140
    lines = render_settings(
        parse(
            f'memory: {{observation: {{instruction: {"x" * 500}}}, reflection: {{instruction: "a\\nb"}}}}'
        )
    )
    assert len(find_line(lines, "memory.observation.instruction")) < 140
    assert find_line(lines, "memory.reflection.instruction").startswith(
        "memory.reflection.instruction = a…"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://om:geheim@db:5432/om?sslmode=require", "postgresql://…@db:5432/om"),
        ("postgres://db/om?user=om&password=geheim", "postgres://db/om"),
        ("postgresql://om:ge%40heim@/om?host=/run/postgresql", "postgresql://…@/om"),
        ("redis://om:geheim@cache:6379/1", "redis://…@cache:6379/1"),
        ("redis://:geheim@cache:6379/1", "redis://cache:6379/1"),
        ("rediss://cache?password=geheim", "rediss://cache"),
        ("sqlite:////data/om.db", "sqlite:////data/om.db"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    settings = parse(f'storage: {{url: "{url}"}}')
    assert f"store: {shown}" in render_summary(settings)
    lines = [*render_summary(settings), *render_settings(settings)]
    assert find_line(lines, "storage.url = ").startswith(f"storage.url = {shown}")
    assert "heim" not in str(lines)
