"""Vectors are made in batches; what a model does wrong stops no other message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import nan

import pytest

from om_proxy.common.errors import ModelBusy, ModelError, Unusable
from om_proxy.engine.background.embedding import (
    EmbeddingChoice,
    MessageVectors,
    choose_embedding,
)
from om_proxy.observability.facts import Facts, MemoryCallEnded
from om_proxy.settings.config import Settings
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import add_said, index_all, store_thread
from tests.support.embedding_model import ScriptedModel, embed_topics

EMBEDDING_MODEL = "text-embedding-3-small"


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(":memory:")
    await store_thread(store, add_said(MemoryBuilder(), "cat", "violin", "tax"))
    await index_all(store, KEY)
    yield store
    await store.close()


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def calls() -> list[MemoryCallEnded]:
    return []


@pytest.fixture
def vectors(
    store: SqliteStore, model: ScriptedModel, calls: list[MemoryCallEnded]
) -> MessageVectors:
    facts = Facts()
    facts.subscribe(calls.append, MemoryCallEnded)  # type: ignore[arg-type] - of this kind alone
    return MessageVectors(store, model, facts)


async def list_lengths(store: SqliteStore) -> list[int]:
    return [len(each.vector) for each in (await store.read_vectors(KEY, EMBEDDING_MODEL)).vectors][
        ::-1
    ]


async def test_vectors_are_made_batch_by_batch(
    store: SqliteStore, model: ScriptedModel, vectors: MessageVectors
) -> None:
    """A short message takes the one before it along."""
    assert [await vectors.embed_batch(KEY, EMBEDDING_MODEL, 2) for _ in range(3)] == [2, 1, 0]
    assert model.calls == [
        (EMBEDDING_MODEL, ("cat", "cat\nviolin")),
        (EMBEDDING_MODEL, ("violin\ntax",)),
    ]
    assert await list_lengths(store) == [8, 8, 8]


async def test_a_message_that_is_refused_stops_no_other(
    store: SqliteStore, model: ScriptedModel, vectors: MessageVectors
) -> None:
    """It is not asked about again."""

    def refuse(_: str, texts: Sequence[str]) -> list[list[float]]:
        if any("violin" in text for text in texts):
            raise ModelError("no violins")
        return [embed_topics(text) for text in texts]

    model.answer = refuse
    assert await vectors.embed_batch(KEY, EMBEDDING_MODEL) == 3
    assert await list_lengths(store) == [8, 0, 0]
    assert await vectors.embed_batch(KEY, EMBEDDING_MODEL) == 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda model, texts: [[nan, 1.0] for _ in texts],
        lambda model, texts: [[0.0, 0.0] for _ in texts],
        lambda model, texts: [[] for _ in texts],
        lambda model, texts: [[1.0]] * (len(texts) + 1),
    ],
    ids=["nan", "zero", "empty", "too many"],
)
async def test_a_model_that_gives_no_vectors_writes_none(
    store: SqliteStore, model: ScriptedModel, vectors: MessageVectors, answer: object
) -> None:
    model.answer = answer  # type: ignore[assignment] - a table of lambdas
    with pytest.raises(Unusable):
        await vectors.embed_batch(KEY, EMBEDDING_MODEL)
    assert await list_lengths(store) == []


async def test_vectors_of_several_lengths_are_not_mixed(
    store: SqliteStore, model: ScriptedModel, vectors: MessageVectors
) -> None:
    """One by one each is usable, as if the model had changed between."""
    model.answer = lambda _, texts: [[1.0] * (1 + place) for place, _ in enumerate(texts)]
    assert await vectors.embed_batch(KEY, EMBEDDING_MODEL) == 3
    assert await list_lengths(store) == [2, 2, 2]


async def test_a_busy_model_is_left_alone(
    store: SqliteStore, model: ScriptedModel, vectors: MessageVectors
) -> None:
    def refuse(*_: object) -> list[list[float]]:
        raise ModelBusy("busy")

    model.answer = refuse
    with pytest.raises(ModelBusy):
        await vectors.embed_batch(KEY, EMBEDDING_MODEL)
    assert len(model.calls) == 1


async def test_calls_are_counted_and_priced(
    model: ScriptedModel, vectors: MessageVectors, calls: list[MemoryCallEnded]
) -> None:
    """By the server's tokens, or by the length of the texts."""
    model.tokens = 1_000_000
    await vectors.embed_batch(KEY, EMBEDDING_MODEL)
    model.tokens = 0
    await vectors.embed_query(KEY, EMBEDDING_MODEL, "cat" * 4)
    model.answer = lambda *_: [[nan]]
    with pytest.raises(ModelError):
        await vectors.embed_query(KEY, EMBEDDING_MODEL, "cat")
    assert [(call.work, call.outcome, call.usage.input_tokens) for call in calls] == [
        ("embed", "answered", 1_000_000),
        ("embed", "answered", 3),
        ("embed", "failed", 0),
    ]
    [[(name, account)], [(_, estimated)], _] = [call.accounts for call in calls]
    assert (name, account.cost, account.estimated) == (EMBEDDING_MODEL, 20_000, 0)
    assert estimated.estimated == 1


async def test_a_local_model_costs_nothing(
    vectors: MessageVectors, calls: list[MemoryCallEnded]
) -> None:
    await vectors.embed_query(KEY, "local:/model.onnx", "cat")
    assert (calls[0].accounts, calls[0].cost) == ((), 0)


VECTOR_SETTINGS = {"vector": True, "embedding_model": "e"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"memory": {"retrieval": {"embedding_model": "e"}}}, None),
        ({"memory": {"retrieval": {**VECTOR_SETTINGS, "enabled": False}}}, None),
        ({"memory": {"retrieval": VECTOR_SETTINGS}}, ("e", 1.5, 1.5)),
        ({"memory": {"retrieval": {**VECTOR_SETTINGS, "timeout": 60}}}, ("e", 2.0, 45.0)),
        ({"resources": {"r": {"retrieval": VECTOR_SETTINGS}}}, ("e", 1.5, 1.5)),
        ({"resources": {"other": {"retrieval": VECTOR_SETTINGS}}}, None),
        ({"memory": {"retrieval": VECTOR_SETTINGS}, "storage": {"search": False}}, None),
        ({"memory": {"retrieval": VECTOR_SETTINGS}, "storage": {"url": "redis://h"}}, None),
    ],
)
def test_settings_choose_the_model(
    settings: dict[str, object], expected: tuple[str, float, float] | None
) -> None:
    read = Settings.model_validate(settings)
    choice = choose_embedding(read, None, "r")
    assert choice == (EmbeddingChoice(*expected) if expected else None)
    assert choice is None or read.embedding_models == ("e",)
