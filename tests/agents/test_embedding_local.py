"""A model in a file gives vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from om_proxy.agents import embedding
from om_proxy.agents.embedding import LocalModels
from om_proxy.common.errors import ModelError
from tests.agents.onnx_file import write_model

TOKEN_VECTORS = [(9.0, 9.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (3.0, 3.0), (0.0, 5.0)]


@pytest.fixture
def models() -> Iterator[LocalModels]:
    models = LocalModels()
    yield models
    models.close()


async def test_a_text_has_the_mean_of_its_tokens(models: LocalModels, tmp_path: Path) -> None:
    """Padding of a shorter text counts nothing."""
    path = str(write_model(tmp_path, TOKEN_VECTORS))
    vectors = await models.embed_texts(path, ["cat dog", "Cat cat dog violin", "dog"])
    assert vectors == ([0.5, 0.5], [1.25, 1.0], [0.0, 1.0])
    assert await models.embed_texts(path, ["violin"]) == ([3.0, 3.0],)


async def test_a_model_may_give_one_vector_a_text(models: LocalModels, tmp_path: Path) -> None:
    path = str(write_model(tmp_path, TOKEN_VECTORS, pooled=True))
    assert await models.embed_texts(path, ["cat dog"]) == ([0.5, 0.5],)


async def test_missing_files_are_named(models: LocalModels, tmp_path: Path) -> None:
    """Broken ones too; what is put right is used at the next call."""
    file = tmp_path / "model.onnx"
    with pytest.raises(ModelError, match="there is no file"):
        await models.embed_texts(str(file), ["cat"])
    file.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"no tokenizer\.json beside"):
        await models.embed_texts(str(file), ["cat"])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        await models.embed_texts(str(file), ["cat"])
    write_model(tmp_path, TOKEN_VECTORS)
    assert await models.embed_texts(str(file), ["cat"]) == ([1.0, 0.0],)


async def test_a_failing_model_quotes_no_text(models: LocalModels, tmp_path: Path) -> None:
    path = str(write_model(tmp_path, TOKEN_VECTORS[:3]))  # tokens beyond the table
    with pytest.raises(ModelError) as raised:
        await models.embed_texts(path, ["violin"])
    assert "violin" not in str(raised.value)
    assert raised.value.__cause__ is None


async def test_a_missing_package_is_named(
    models: LocalModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MODULES", ("numpy", "no_such_package"))
    with pytest.raises(ModelError, match=r"needs no_such_package.*\[vectors\]"):
        await models.embed_texts(str(write_model(tmp_path, TOKEN_VECTORS)), ["cat"])
