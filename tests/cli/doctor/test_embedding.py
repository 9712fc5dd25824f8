"""What vectors lack is said before anyone waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.agents import local_embedding
from om_proxy.cli.doctor.embedding import list_vector_faults
from om_proxy.settings.config import Settings
from tests.agents.onnx_file import WORDS, write_model


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
    monkeypatch.setattr(local_embedding, "find_spec", lambda name: None)
    faults = list_vector_faults(set_model("openai/e"), {"OPENAI_API_KEY": "k"})
    assert faults == [
        "retrieval.vector needs numpy: install the extra: "
        "pip install 'observational-memory-proxy[vectors]'"
    ]
