"""Configurations that people get wrong: `om-proxy check` names the place, the cause and the
remedy of each, or takes what was meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from om_proxy.cli import main


class Mistake(NamedTuple):
    """A file with a mistake. `said`: the parts of the one line that tells of it, in their order;
    none: it is taken as it was meant. `variables`: of the environment."""

    name: str
    text: str
    said: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


UPSTREAM = "upstream:\n  - base_url: "
MISTAKES = (
    # a word where a section is
    Mistake("yes for retrieval", "memory:\n  retrieval: yes\n"),
    Mistake("off for memory", "memory: off\n", ("memory is off: nothing is read or written",)),
    Mistake(
        "on for MCP",
        "mcp: on\n",
        ("x.yaml:1: mcp = on: must be a mapping of keys: write it as {enabled: …}",),
    ),
    Mistake(
        "no for reflection",
        "memory:\n  reflection: no\n",
        ("x.yaml:2: memory.reflection = no: must be a mapping", "write it as {observation_tokens"),
    ),
    Mistake(
        "a number for retention",
        "retention: 30\n",
        ("x.yaml:1: retention = (hidden): must be a mapping of keys: write it as {ttl_days",),
    ),
    Mistake(
        "models as a list",
        "models: [{name: gpt-4o}]\n",
        ('x.yaml:1: models = […]: must be a mapping of keys: write it as {"…": {…}}',),
    ),
    # the model server
    Mistake(
        "an address without /v1",
        UPSTREAM + "http://localhost:11434\n",
        (
            "x.yaml:2: upstream[0].base_url has no path",
            "want http://localhost:11434/v1",
            "om-proxy doctor",
        ),
    ),
    Mistake(
        "an address with the whole path",
        UPSTREAM + "http://localhost:11434/v1/chat/completions\n",
        ("x.yaml:2: upstream[0].base_url = http", "must end before /chat/completions, as in"),
    ),
    Mistake(
        "an address with the path of the Messages API",
        UPSTREAM + "https://api.anthropic.com/v1/messages\n",
        ("x.yaml:2: upstream[0].base_url = http", "must end before /messages, as in"),
    ),
    Mistake(
        "an address with the path of the Responses API",
        UPSTREAM + "http://localhost:11434/v1/responses/\n",
        ("x.yaml:2: upstream[0].base_url = http", "must end before /responses, as in"),
    ),
    Mistake(
        "an address with a blank in it",
        UPSTREAM + '"http://localhost:11434/ v1"\n',
        ("x.yaml:2: upstream[0].base_url = http", "without a user, query, fragment or blank"),
    ),
    Mistake("an address with a blank at its end", UPSTREAM + '"http://localhost:11434/v1 "\n'),
    Mistake(
        "the address of the proxy itself",
        UPSTREAM + "http://localhost:8400/v1\n",
        ("x.yaml:2: upstream[0].base_url is this proxy's own address", "name the model server"),
    ),
    Mistake(
        "a star without quotes",
        UPSTREAM + "http://h/v1\n    match: [*]\n",
        ("x.yaml:3: this is not YAML: ", 'a value that begins with * needs quotes: "*"'),
    ),
    Mistake("an address with a slash at its end", UPSTREAM + "http://localhost:11434/v1/\n"),
    Mistake(
        "an address without http",
        UPSTREAM + "localhost:11434/v1\n",
        ("x.yaml:2: upstream[0].base_url = localhost:11434/v1: must be http:// or https://",),
    ),
    Mistake(
        "one upstream without a list",
        "upstream:\n  base_url: http://h/v1\n",
        ("x.yaml:1: upstream = {…}: must be a list: write it as [{…}]",),
    ),
    Mistake(
        "upstreams",
        "upstreams:\n  - base_url: http://h/v1\n",
        ("x.yaml:1: upstreams: is not a setting; did you mean upstream?",),
    ),
    Mistake(
        "a match without a list",
        UPSTREAM + "http://h/v1\n    match: gpt-4o\n",
        ("x.yaml:3: upstream[0].match = (hidden): must be a list: write it as",),
    ),
    Mistake(
        "two upstreams of one name",
        "upstream:\n  - {name: a, base_url: http://h/v1}\n  - {name: a, base_url: http://i/v1}\n",
        ("x.yaml:3: upstream[1].name = a: is already the name of an earlier upstream",),
    ),
    Mistake(
        "an upstream that gets nothing",
        "upstream:\n  - {name: a, base_url: http://h/v1}\n  - {name: b, base_url: http://i/v1}\n",
        ("x.yaml:3: upstream b never gets a request", "move it before them, or remove it"),
    ),
    Mistake(
        "a forgotten address",
        "upstream:\n  - name: local\n",
        ("x.yaml:2: upstream[0].base_url: is required",),
    ),
    # variables
    Mistake(
        "a variable that is not set",
        UPSTREAM + "http://h/v1\n    api_key: ${NO_SUCH_KEY}\n",
        ("x.yaml:3: upstream[0].api_key: the variable NO_SUCH_KEY is not set: set it, or write",),
    ),
    Mistake(
        "a variable without braces",
        UPSTREAM + "http://h/v1\n    api_key: $OPENAI_API_KEY\n",
        ("x.yaml:3: upstream[0].api_key: a variable must be written ${OPENAI_API_KEY}",),
    ),
    Mistake(
        "one underscore",
        "",
        (
            "env OM_PROXY_SERVER_PORT is not read: the setting's variable is OM_PROXY__SERVER__PORT",
        ),
        (("OM_PROXY_SERVER_PORT", "9000"),),
    ),
    Mistake(
        "one underscore before an upstream",
        "",
        ("env OM_PROXY_UPSTREAM_BASE_URL is not read", "OM_PROXY__UPSTREAM__0__BASE_URL"),
        (("OM_PROXY_UPSTREAM_BASE_URL", "http://h/v1"),),
    ),
    Mistake(
        "one underscore in the middle",
        "",
        ("env OM_PROXY__SERVER_PORT: server_port: is not a setting; did you mean server.port?",),
        (("OM_PROXY__SERVER_PORT", "9000"),),
    ),
    Mistake(
        "a service of Kubernetes",
        "",
        (),
        (("OM_PROXY_PORT", "tcp://10.0.0.1:8400"), ("OM_PROXY_SERVICE_HOST", "10.0.0.1")),
    ),
    # memory models
    Mistake(
        "an unknown provider",
        "memory:\n  model: gemni/gemini-3-flash\n  api_key: k\nauth: {keys: [{tenant: a, key: b}]}\n",
        (
            "x.yaml:2, memory.model: memory model gemni/gemini-3-flash names no provider",
            "did you mean gemini/gemini-3-flash?",
        ),
    ),
    Mistake(
        "an unknown model",
        "memory: {model: openai/gpt-5-mimi}\n",
        ("x.yaml:1, memory.model: ", "is in no price list; did you mean gpt-5-mini?"),
    ),
    Mistake(
        "a local model without an address",
        "memory: {model: qwen3-8b}\n",
        ("x.yaml:1, memory.model: ", "names no provider: write <provider>/<model>, or set"),
    ),
    Mistake(
        "a model of a maker without an address",
        "memory: {model: qwen/qwen3-8b}\n",
        ("x.yaml:1, memory.model: ", "no provider that is known", "memory.api_base"),
    ),
    # values
    Mistake(
        "a port in words",
        "server: {port: eighty}\n",
        ("x.yaml:1: server.port = eighty: must be a whole number",),
    ),
    Mistake(
        "a port that is none",
        "server: {port: 84000}\n",
        ("x.yaml:1: server.port = 84000: must be 65535 or less",),
    ),
    Mistake(
        "thousands as k",
        "memory: {observation: {message_tokens: 30k}}\n",
        ("x.yaml:1: memory.observation.message_tokens = 30k: must be a whole number",),
    ),
    Mistake("thousands with an underscore", "memory: {observation: {message_tokens: 31_000}}\n"),
    Mistake(
        "a time without its unit",
        "memory: {activate_after_idle: 5}\n",
        ("x.yaml:1: memory.activate_after_idle = 5: must be off, auto, or a duration", "as in 5m"),
    ),
    Mistake(
        "a city for a time zone",
        "memory: {timezone: Berlin}\n",
        ("x.yaml:1: memory.timezone = Berlin: must be an IANA time zone, as in Europe/Berlin",),
    ),
    Mistake(
        "an unknown scope",
        "memory: {scope: user}\n",
        ("x.yaml:1: memory.scope = user: must be 'thread' or 'resource'",),
    ),
    Mistake(
        "a file for a store",
        "storage: {url: om.db}\n",
        ("x.yaml:1: storage.url = om.db: must be sqlite:///<file> or",),
    ),
    # keys and places
    Mistake(
        "open without a token",
        "server: {host: 0.0.0.0}\n",
        ("x.yaml:1: server.host = 0.0.0.0", "needs server.admin_token: set OM_PROXY_ADMIN_TOKEN"),
    ),
    Mistake(
        "a port in the host",
        "server: {host: '127.0.0.1:8400'}\n",
        ("x.yaml:1: server.host = 127.0.0.1:8400: must be a name or an address alone: server.port",),
    ),
    Mistake(
        "an address for the host",
        "server: {host: http://localhost}\n",
        ("x.yaml:1: server.host = http://localhost: must be a name or an address alone",),
    ),
    Mistake(
        "keys without tenants",
        "auth: {keys: [abc]}\n",
        ("x.yaml:1: auth.keys[0] = (hidden): must be a mapping", "write it as {tenant: …, …}"),
    ),
    Mistake(
        "a setting of another section",
        "observation: {message_tokens: 5000}\n",
        ("x.yaml:1: observation: is not a setting; did you mean memory.observation?",),
    ),
    Mistake(
        "a setting that does not exist",
        "telemetry: {level: debug}\n",
        ("x.yaml:1: telemetry.level: is not a setting; there are log, metrics,",),
    ),
    Mistake("a tab", "memory:\n\tmodel: auto\n", ("x.yaml:2: this is not YAML: found character",)),
    Mistake(
        "a section twice",
        "memory: {scope: thread}\nmemory: {timezone: UTC}\n",
        ("x.yaml:2: memory is set twice, first in line 1",),
    ),
)  # fmt: skip


def test_each_is_another_one() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 48


@pytest.mark.parametrize("mistake", MISTAKES, ids=[one.name for one in MISTAKES])
def test_a_mistake_is_named(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line has everything, and it is the error or one of the warnings."""
    for name in [name for name in os.environ if name.startswith("OM_PROXY")]:
        monkeypatch.delenv(name)
    for name, value in mistake.variables:
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(mistake.text, encoding="utf-8")
    status = main(["check", "--config", "x.yaml"])
    out, err = capsys.readouterr()
    if not mistake.said:
        assert (status, err) == (0, "")
        assert out.splitlines()[-1] == "nothing needs attention"
        return
    lines = [*err.splitlines(), *(one for one in out.splitlines() if one.startswith("warning: "))]
    assert any(_has_in_order(line, mistake.said) for line in lines), lines
    assert status == (3 if err else 0)


def _has_in_order(line: str, parts: tuple[str, ...]) -> bool:
    places = [line.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("memory:\n  retrieval: yes\n", "memory.retrieval.enabled = true  (x.yaml:2)"),
        ("memory:\n  retrieval: auto\n", "memory.retrieval.enabled = auto  (x.yaml:2)"),
        ("memory: on\n", "memory.enabled = true  (x.yaml:1)"),
        ("models: {m: {retrieval: on}}\n", 'memory.retrieval.enabled = true  (models["m"], x.yaml:1)'),
        ("memory: {scope: thread}\n", "memory.retrieval.enabled = auto  (default)"),
    ],
)  # fmt: skip
def test_a_short_form_has_its_origin(
    text: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OM_PROXY_CONFIG", raising=False)
    Path("x.yaml").write_text(text, encoding="utf-8")
    assert main(["check", "--all", "--model", "m", "--config", "x.yaml"]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_a_file_of_another_encoding_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_bytes(b"# caf\xe9\n")
    assert main(["check", "--config", str(tmp_path / "x.yaml")]) == 3
    assert "cannot be read (UnicodeDecodeError): save it as UTF-8\n" in capsys.readouterr().err
