"""The warnings of `check`, `doctor` and the banner about the memory models."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from om_proxy.agents import embedding
from om_proxy.agents.models import small_models
from om_proxy.cli import main
from om_proxy.cli.doctor.models import (
    describe_chosen_models,
    list_memory_model_warnings,
    list_missing_credentials,
    list_vector_faults,
)
from om_proxy.cli.serving import print_banner
from om_proxy.settings.config import Settings, load, parse
from tests.agents.onnx_file import WORDS, write_model

TWO_SERVERS = """
upstream:
  - {name: claude, base_url: "https://api.anthropic.com/v1", match: ["claude-*"]}
  - {name: local, base_url: "http://127.0.0.1:8000/v1"}
"""
CHAT_ALONE = "identity: {apis: [chat]}"
VARIABLES = (
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def list_missing(text: str, **environ: str) -> list[str]:
    settings = parse(text)
    return list_missing_credentials(settings, settings.effective(None), environ)


def list_warnings_of(settings: Settings) -> list[str]:
    return list_memory_model_warnings(settings, settings.effective(None), None)


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("{model: openai/a}", ["observer and reflector openai/a", "OPENAI_API_KEY"]),
        ("{model: default}", ["default finds no credential", "GEMINI_API_KEY or GOOGLE_API_KEY"]),
        ("{model: [inherit, anthropic/a]}", ["anthropic/a", "ANTHROPIC_API_KEY"]),
        ("{model: {up_to: {10: anthropic/a}}}", ["anthropic/a", "memory.api_key"]),
        ("{reflection: {model: openai/a}}", ["openai/a"]),
    ],
)
def test_a_missing_credential_is_named(memory: str, said: list[str]) -> None:
    """The line names the model, and the variable for its key."""
    (line,) = list_missing(f"memory: {memory}")
    assert all(text in line for text in said)


@pytest.mark.parametrize(
    "memory",
    [
        "{model: auto}",
        "{model: inherit}",
        "{model: openai/a, api_key: k}",
        "{model: [{model: openai/a, api_key: k}]}",
        '{model: openai/a, api_base: "http://127.0.0.1:1/v1"}',
        "{model: openai/a, enabled: false}",
        "{model: ollama_chat/qwen3}",
    ],
)
def test_nothing_is_missing(memory: str) -> None:
    """There is no line if the model has a key, needs none, or its provider is unknown."""
    assert list_missing(f"memory: {memory}") == []
    assert list_missing("memory: {model: openai/a}", OPENAI_API_KEY="k") == []


def test_a_shared_key_is_not_for_another_address() -> None:
    """A model with its own address does not get the shared key."""
    (line,) = list_missing(
        'memory: {api_key: k, model: [{model: openai/a, api_base: "https://api.openai.com/v1"}]}'
    )
    assert "OPENAI_API_KEY" in line


def test_the_request_s_own_server() -> None:
    """On the request's own server, the line says that the request's credential is used until
    then."""
    (own,) = list_missing("memory: {model: openai/a}")
    (other,) = list_missing(
        "memory: {model: openai/a}\nupstream: [{name: u, base_url: 'https://other.example/v1'}]"
    )
    assert "with the credential of the request" in own
    assert "with the credential of the request" not in other


def test_models_in_lists_are_warned_of() -> None:
    """A model in a list gets the same warnings as alone."""
    names = ["anthropic/claude-opus-4-1", "openai/gpt-4.1-nano"]
    settings = parse(f"memory: {{model: [{', '.join(names)}]}}")
    alone = [list_warnings_of(parse(f"memory: {{model: {name}}}")) for name in names]
    assert list_warnings_of(settings) == list(
        dict.fromkeys(text for found in alone for text in found)
    )


@pytest.mark.parametrize("name", ["openai/gpt-5-mini", "auto", "inherit"])
def test_a_model_whose_snapshots_end_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So is an actor that makes its own notes."""
    monkeypatch.setattr(small_models, "read_today", lambda: date(2026, 10, 12))
    settings = parse(f"memory: {{model: {name}}}")
    (found,) = list_memory_model_warnings(settings, settings.effective("gpt-5-mini"), "gpt-5-mini")
    assert "ends it on 2026-12-11" in found


@pytest.mark.parametrize(("retries", "told"), [(2, False), (3, True)])
def test_retries_that_do_nothing_are_told(retries: int, told: bool) -> None:
    """A model whose `max_retries` exceeds the three tries in all gets a warning."""
    settings = parse(f"memory: {{model: [{{model: openai/a, max_retries: {retries}}}]}}")
    assert any("max_retries" in text for text in list_warnings_of(settings)) is told


@pytest.mark.parametrize(
    ("text", "actor", "lines"),
    [
        ("", "gpt-4o", ["auto: on openai, gpt-5-mini", "auto: on anthropic, claude-haiku-4-5"]),
        (CHAT_ALONE, "gpt-5-mini", ["auto: on openai, gpt-5-mini"]),
        (
            "",
            None,
            [
                "auto: on openai, gpt-5-mini, or the request's own where that costs no more",
                "auto: on anthropic, claude-haiku-4-5, or the request's own where that costs no more",
            ],
        ),
        (TWO_SERVERS, "llama", ["auto: on local, llama"]),
        (
            TWO_SERVERS,
            None,
            [
                "auto: on claude, claude-haiku-4-5, or the request's own where that costs no more",
                "auto: on local, the request's own",
            ],
        ),
        ("memory: {model: default}", None, ["default: gemini/gemini-3.5-flash-lite"]),
        ("memory: {model: inherit}", "gpt-4o", []),
        ("memory: {enabled: false}", "gpt-4o", []),
    ],
)
def test_the_choice_is_told(text: str, actor: str | None, lines: list[str]) -> None:
    """`check` and the start say which models `auto` and `default` stand for."""
    settings = parse(text)
    told = describe_chosen_models(settings, settings.effective(actor), actor)
    assert told == [f"memory model {line}" for line in lines]


def test_the_actor_that_makes_its_own_notes_is_warned_of() -> None:
    """A model that `inherit` asks is warned of like a configured one; with `auto`, the small one is
    asked, and the next of its list replaces it when it ends."""
    for choice, is_warned in (("inherit", True), ("auto", False)):
        settings = parse(f"memory: {{model: {choice}}}")
        found = list_memory_model_warnings(settings, settings.effective("gpt-4o"), "gpt-4o")
        assert any("expensive" in text for text in found) is is_warned
        assert bool(found) is is_warned


def test_check_and_start_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both name a missing variable, and never show its value."""
    file = tmp_path / "om-proxy.yaml"
    file.write_text("memory: {model: openai/gpt-5-mini}", encoding="utf-8")
    for said in (True, False):
        assert main(["check", "--config", str(file)]) == 0
        print_banner(load(file), 1)
        out = capsys.readouterr().out
        assert out.count("OPENAI_API_KEY") == 2 * said
        monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-a-secret-of-the-operator")
    assert "a-secret" not in out


def set_model(name: str, **storage: object) -> Settings:
    retrieval = {"vector": True, "embedding_model": name}
    return Settings.model_validate({"memory": {"retrieval": retrieval}, "storage": storage})


def test_nothing_is_lacking(tmp_path: Path) -> None:
    model = write_model(tmp_path, [(1.0,)] * len(WORDS))
    assert list_vector_faults(Settings(), {}) == []
    assert list_vector_faults(set_model(f"local:{model}"), {}) == []
    assert list_vector_faults(set_model("openai/e"), {"OPENAI_API_KEY": "k"}) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (set_model("openai/e"), "finds no credential: set OPENAI_API_KEY"),
        (set_model("local:/no/model.onnx"), "there is no file /no/model.onnx"),
        (set_model("openai/e", url="redis://h"), "vector has no effect"),
        (set_model("openai/e", search=False), "vector has no effect"),
        (set_model("openai/e", encryption_key="0" * 64), "vector has no effect"),
    ],
)
def test_each_fault_is_named(settings: Settings, said: str) -> None:
    [fault] = list_vector_faults(settings, {})
    assert said in fault


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path, [(1.0,)])
    (tmp_path / "tokenizer.json").unlink()
    [fault] = list_vector_faults(set_model(f"local:{model}"), {})
    assert "there is no tokenizer.json beside" in fault


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    faults = list_vector_faults(set_model("openai/e"), {"OPENAI_API_KEY": "k"})
    assert faults == [
        "retrieval.vector needs numpy: install the extra: "
        "pip install 'observational-memory-proxy[vectors]', or in a clone pip install '.[vectors]'"
    ]
