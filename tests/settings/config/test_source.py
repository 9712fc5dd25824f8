"""YAML and environment as plain data with the origin of each key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config.source import DEFAULT_UPSTREAMS, read_document, render_path


def test_line_of_each_key() -> None:
    """Each path has its line, in block style, in flow style and in lists."""
    document = read_document("a:\n  b: 1\n  c: {d: 2}\ne:\n  - f: 3\n", "x.yaml", {})
    assert document.data == {"a": {"b": "1", "c": {"d": "2"}}, "e": [{"f": "3"}]}
    assert document.origins["a", "b"] == "x.yaml:2"
    assert document.origins["a", "c", "d"] == "x.yaml:3"
    assert document.origins["e", 0, "f"] == "x.yaml:5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: off", "off"),
        ("x: no", "no"),
        ("x: true", True),
        ("x: False", False),
        ("x: null", None),
        ("x: ~", None),
        ("x:", None),
        ("x: 0123", "0123"),
        ("x: 1:30", "1:30"),
        ("x: 2024-01-01", "2024-01-01"),
        ("x: 'true'", "true"),
        ("x: ''", ""),
        ('{"x": "1"}', "1"),
        ("x: &a [1]\n", ["1"]),
    ],
)
def test_scalars(text: str, value: object) -> None:
    """Only null, true and false are converted. JSON is valid YAML. No text becomes a date or a
    base-60 number."""
    assert read_document(text, "x.yaml", {}).data == {"x": value}


@pytest.mark.parametrize("text", ["", "# nothing\n", "null", "---\n"])
def test_empty_file(text: str) -> None:
    """An empty file sets nothing."""
    assert read_document(text, "x.yaml", {}).data == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("pre-${A}-${B:-b}", "pre-1-b"),
        ("'${A}'", "1"),
        ("${E:-default}", "default"),
        ("'${E:-}'", ""),
        ("'${E}'", ""),
        ("$${A}", "${A}"),
        ("'$A'", "$A"),
        ("${T}", True),
        ("'${T}'", "true"),
        ("${N:-x y}", "x y"),
    ],
)
def test_variables(text: str, value: object) -> None:
    """A variable's value replaces its name. Quotes keep it text. An empty variable takes the
    default."""
    assert (
        read_document(f"x: {text}", "x.yaml", {"A": "1", "E": "", "T": "true"}).data["x"] == value
    )


def test_variable_is_not_yaml() -> None:
    """A variable's value is never parsed as YAML or as another variable, so it can inject
    nothing."""
    assert (
        read_document("x: '${A}'", "x.yaml", {"A": "${B}: {a: 1}\n- b"}).data["x"]
        == "${B}: {a: 1}\n- b"
    )


def test_faults_of_the_text_are_told_together() -> None:
    """Missing variables, malformed ones and duplicate keys are in one error, each with its line."""
    with pytest.raises(ConfigError) as caught:
        read_document("a: ${GONE}\nb: '${bad name}'\na: 2\n", "x.yaml", {})
    faults = str(caught.value).splitlines()
    assert [fault.split(": ")[0] for fault in faults] == ["x.yaml:1", "x.yaml:2", "x.yaml:3"]
    assert "GONE is not set" in faults[0]
    assert "${NAME}" in faults[1]
    assert "a is set twice, first in line 1" in faults[2]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1\nb: 2", "x.yaml:2: this is not YAML"),
        ("a: {b: ${A}}", "x.yaml:1: this is not YAML"),
        ("\ta: 1", "x.yaml:1: this is not YAML"),
        ("- a", "x.yaml:1: the file must be a mapping"),
        ("text", "x.yaml:1: the file must be a mapping"),
        ("a: \x00", "x.yaml: this is not YAML"),
        ("a: 1\n---\nb: 2", "x.yaml:2: this is not YAML"),
        ("a: *nobody", "x.yaml:1: this is not YAML"),
    ],
)
def test_broken_yaml(text: str, start: str) -> None:
    """A text that is not YAML is refused with its line."""
    with pytest.raises(ConfigError) as caught:
        read_document(text, "x.yaml", {"A": "1"})
    assert str(caught.value).startswith(start)


def test_broken_yaml_does_not_quote_the_line() -> None:
    """The broken line is not repeated, because it may hold a key."""
    with pytest.raises(ConfigError) as caught:
        read_document('key: "sk-secret\nb: [', "x.yaml", {})
    assert "sk-secret" not in str(caught.value)


def test_merge_keys() -> None:
    """`<<` adds the keys of another mapping; the mapping's own keys win."""
    document = read_document("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", "x.yaml", {})
    assert document.data["b"] == {"y": "3", "x": "1"}


@pytest.mark.parametrize(
    ("variable", "value", "data"),
    [
        ("OM_PROXY__SERVER__PORT", "9000", {"server": {"port": "9000"}}),
        ("OM_PROXY__MEMORY", "false", {"memory": False}),
        (
            "OM_PROXY__MEMORY__OBSERVATION__MODEL",
            "[a, b]",
            {"memory": {"observation": {"model": ["a", "b"]}}},
        ),
        (
            "OM_PROXY__MODELS",
            "{'gpt-*': {scope: resource}}",
            {"models": {"gpt-*": {"scope": "resource"}}},
        ),
        ("OM_PROXY__SERVER__ADMIN_TOKEN", "0123: [", {"server": {"admin_token": "0123: ["}}),
        ("OM_PROXY__SERVER__ADMIN_TOKEN", "", {"server": {"admin_token": None}}),
        ("OM_PROXY__SERVER__ADMIN_TOKEN", "'true'", {"server": {"admin_token": "true"}}),
    ],
)
def test_overrides(variable: str, value: str, data: object) -> None:
    """An override makes the sections it needs. Its value is YAML, or text if it is not YAML."""
    assert read_document("", "x.yaml", {variable: value}).data == data


def test_override_over_the_file() -> None:
    """An override replaces the file's value and its origin."""
    document = read_document(
        "memory: true\nserver:\n  port: 1\n",
        "x.yaml",
        {"OM_PROXY__SERVER__PORT": "2", "OM_PROXY__MEMORY__SCOPE": "x"},
    )
    assert document.data == {"memory": {"enabled": True, "scope": "x"}, "server": {"port": "2"}}
    assert document.origins["server", "port"] == "env OM_PROXY__SERVER__PORT"


def test_override_of_the_built_in_upstream() -> None:
    """A variable can change a built-in upstream without a file. One that gets another address is
    for all APIs: no key that was meant for it goes to Anthropic."""
    document = read_document("", "x.yaml", {"OM_PROXY__UPSTREAM__0__BASE_URL": "http://h/v1"})
    assert document.data["upstream"] == [{"name": "openai", "base_url": "http://h/v1"}]
    keys = {f"OM_PROXY__UPSTREAM__{index}__API_KEY": f"sk-{index}" for index in (0, 1)}
    assert read_document("", "x.yaml", keys).data["upstream"] == [
        {**upstream, "api_key": f"sk-{index}"} for index, upstream in enumerate(DEFAULT_UPSTREAMS)
    ]
    written = read_document(
        "upstream: [{base_url: 'http://h'}]", "x.yaml", {next(iter(keys)): "sk"}
    )
    assert written.data["upstream"] == [{"base_url": "http://h", "api_key": "sk"}]


@pytest.mark.parametrize(
    "variable",
    [
        "OM_PROXY__",
        "OM_PROXY__UPSTREAM__7__NAME",
        "OM_PROXY__UPSTREAM__A__NAME",
        "OM_PROXY__A____B",
    ],
)
def test_override_of_nothing(variable: str) -> None:
    """An override of a path that cannot exist is an error that names the variable."""
    with pytest.raises(ConfigError, match=f"env {variable}: "):
        read_document("", "x.yaml", {variable: "1"})


def test_admin_token_without_a_file() -> None:
    """Without a file, OM_PROXY_ADMIN_TOKEN is the admin token."""
    assert read_document("", "x.yaml", {"OM_PROXY_ADMIN_TOKEN": "t"}).data == {
        "server": {"admin_token": "t"}
    }
    assert read_document(
        "server: {admin_token: own}", "x.yaml", {"OM_PROXY_ADMIN_TOKEN": "t"}
    ).data["server"] == {"admin_token": "own"}


@given(st.text())
def test_any_text(text: str) -> None:
    """Any text of a file is read, or refused with a ConfigError."""
    try:
        document = read_document(text, "x.yaml", {})
    except ConfigError:
        return
    assert isinstance(document.data, dict)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("a", "b"), "a.b"),
        (("upstream", 0, "name"), "upstream[0].name"),
        (("models", "g-4*", "x"), 'models["g-4*"].x'),
    ],
)
def test_render_path(path: tuple[str | int, ...], text: str) -> None:
    """Paths are rendered as the documents write them."""
    assert render_path(path) == text


@pytest.mark.parametrize(
    "text",
    ["a: *sk-hidden", "a: &sk-hidden 1\nb: &sk-hidden 2", "a: !sk!hidden 1", "a: *sk-hidden 1"],
)
def test_a_key_that_looks_like_yaml_is_not_repeated(text: str) -> None:
    """A key that starts with `*`, `&` or `!` is read as YAML, and the error does not repeat it."""
    with pytest.raises(ConfigError) as caught:
        read_document(text, "x.yaml", {})
    assert "hidden" not in str(caught.value)
    assert "x.yaml:" in str(caught.value)
