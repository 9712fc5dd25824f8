"""What `om-proxy check` prints."""

import pytest

from proxy.settings import Settings, effective_lines, parse

TEXT = """
server: {admin_token: hush}
storage: {url: "postgresql://me:hush@db/om"}
memory:
  activate_after_idle: 90s
  observation: {buffer_tokens: 3000}
  model: base
models:
  "gpt-4o*": {observation: {message_tokens: 20000, model: own}, relative_time: false}
resources:
  boss: {reflection: {observation_tokens: 1000}}
"""


def line(lines: list[str], start: str) -> str:
    found = [text for text in lines if text.startswith(start)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "expected",
    [
        "server.port = 9  (env OM_PROXY__SERVER__PORT)",
        "server.admin_token = (set)  (x.yaml:2)",
        "limits.body = 64MiB  (default)",
        "upstream[0].match = [*]  (default)",
        "storage.url = postgresql://…@db/om  (x.yaml:3)",
        "memory.activate_after_idle = 90s  (x.yaml:5)",
        "memory.observation.message_tokens = 20000  (models[\"gpt-4o*\"], x.yaml:9)",
        "memory.observation.buffer_tokens = 3000  (x.yaml:6)",
        "memory.observation.previous_observer_tokens = 2000  (default)",
        "memory.observation.model = own  (models[\"gpt-4o*\"], x.yaml:9, observation.model)",
        "memory.reflection.model = base  (x.yaml:7, memory.model)",
        "memory.reflection.observation_tokens = 1000  (resources[\"boss\"], x.yaml:11)",
        "memory.reflection.model_settings.temperature = 0  (default)",
        "context.relative_time = false  (models[\"gpt-4o*\"], x.yaml:9)",
        "upstream: openai",
        "tokens: messages are observed at 20000, every 3000 new ones; about 4000 stay raw; a request waits at 24000",
        "tokens: observations are reflected at 1000, prepared from 500; a request waits at 1200",
    ],
)  # fmt: skip
def test_line(expected: str) -> None:
    """Each setting with its value as the file writes it, and the place that decided."""
    settings = parse(TEXT, "x.yaml", {"OM_PROXY__SERVER__PORT": "9"})
    assert expected in effective_lines(settings, "gpt-4o-mini", "boss")


def test_no_secret() -> None:
    """No line shows a credential."""
    assert "hush" not in "".join(effective_lines(parse(TEXT, "x.yaml")))


def test_defaults_need_no_warning() -> None:
    """The defaults warn of nothing, and all stem from nowhere."""
    lines = effective_lines(Settings())
    assert not [text for text in lines if text.startswith("warning")]
    assert all(text.endswith("(default)") for text in lines if " = " in text)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "memory: {observation: {buffer_activation: 0.9}}",
            "leaves 3000 tokens raw, less than one buffering interval (6000)",
        ),
        ("memory: {observation: {message_tokens: 2000, buffer_activation: 0.8}}", "less than 1000 tokens stay raw"),
        ("memory: {observation: {buffer_tokens: false, block_after: 1.2}}", "block_after delays observing to 36000"),
        ("context: {tail_limit: 8000}", "context.tail_limit (8000) is below 36000"),
        ("memory: false", "memory is off"),
    ],
)
def test_warning(text: str, warning: str) -> None:
    """What is allowed and will disappoint is said."""
    warnings = [line for line in effective_lines(parse(text)) if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warning in warnings[0]


def test_upstream_that_takes_nothing() -> None:
    """A model no upstream takes is told."""
    lines = effective_lines(parse("upstream: [{base_url: 'http://h', match: [a]}]"), "b")
    assert line(lines, "upstream: ") == "upstream: none: the request is refused"


def test_long_instruction_is_cut() -> None:
    """A setting is one line, however long its text."""
    lines = effective_lines(
        parse(f'memory: {{observation: {{instruction: {"x" * 500}}}, reflection: {{instruction: "a\\nb"}}}}')
    )
    assert len(line(lines, "memory.observation.instruction")) < 140
    assert line(lines, "memory.reflection.instruction").startswith("memory.reflection.instruction = a…")
