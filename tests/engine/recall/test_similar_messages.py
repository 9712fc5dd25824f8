"""Vectors find what shares no word with the query; whatever fails, the words still answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from math import nan
from typing import Any

import numpy
import pytest

from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong, StorageError
from om_proxy.engine.background.embedding import EmbeddingChoice, MessageVectors
from om_proxy.engine.recall import similar_messages
from om_proxy.engine.recall.searching import MessageSearch
from om_proxy.engine.recall.similar_messages import MAX_SIMILAR, Comparison, SimilarMessages
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import NO_FILTER, PassageFilter, RankedMessage
from om_proxy.memory.recall.vectors import StoredVector, encode_vector
from om_proxy.observability.facts import Facts
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import SECOND, add_said, index_all, store_thread
from tests.support.embedding_model import ScriptedModel

STORED_TEXTS = (
    "nothing here",
    "my kitten sleeps",
    "nothing there",
    "the violin hums",
    "nothing else",
)
BY_WORDS = [4, 5, 3]  # of "violin": neighbours are understood with it


class World:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.model = ScriptedModel()
        self.choice: EmbeddingChoice | None = EmbeddingChoice("m", 30.0, 30.0)
        self.similar = SimilarMessages(MessageVectors(store, self.model, Facts()), self._choose)
        self.search = MessageSearch(store, similar=self.similar)
        self.failure: StorageError | None = None  # of the choice
        self.is_stalled = False

    async def _choose(self, key: Key) -> EmbeddingChoice | None:
        if self.failure:
            raise self.failure
        if self.is_stalled:
            await asyncio.Event().wait()
        return self.choice

    async def make_vectors(self, model: str = "m", key: Key = KEY) -> None:
        vectors = MessageVectors(self.store, ScriptedModel(), Facts())
        while await vectors.embed_batch(key, model):
            continue

    async def find(self, query: str, chosen_by: PassageFilter = NO_FILTER) -> list[int]:
        result = await self.search.search(KEY, query, chosen_by)
        return [hit.seq for hit in result.ranked]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = await SqliteStore.open(":memory:")
    await store_thread(store, add_said(MemoryBuilder(), *STORED_TEXTS))
    await index_all(store, KEY)
    yield World(store)
    await store.close()


async def test_a_message_without_the_words_is_found(world: World) -> None:
    await world.make_vectors()
    assert await world.find("pet") == [3, 2]
    assert (await world.find("violin song"))[0] == 4
    world.choice = None
    assert await world.find("pet") == []


async def test_a_filter_holds_for_vectors_too(world: World) -> None:
    await world.make_vectors()
    await store_thread(world.store, add_said(MemoryBuilder(SECOND), "a kitten"))
    await index_all(world.store, SECOND)
    await world.make_vectors(key=SECOND)
    assert await world.find("pet", PassageFilter(thread="second")) == [1]
    assert await world.find("pet", PassageFilter(roles=("tool",))) == []


async def test_without_vectors_the_words_answer(world: World) -> None:
    """None is made yet, or all are of another model."""
    assert await world.find("violin") == BY_WORDS
    await world.make_vectors("another model")
    assert await world.find("violin") == BY_WORDS


async def test_a_search_says_that_words_alone_counted(world: World) -> None:
    """Before the first vector and while the model fails, and not where vectors are switched off."""

    async def goes_by_words(query: str) -> bool:
        return (await world.search.search(KEY, query, NO_FILTER)).by_words_only

    assert await goes_by_words("violin")
    await world.make_vectors()
    assert not await goes_by_words("violin")
    world.model.answer = raise_busy
    assert await goes_by_words("song")
    world.choice = None
    assert not await goes_by_words("song")


async def test_vectors_of_another_length_are_left_out(world: World) -> None:
    await world.make_vectors()
    world.model.answer = lambda _, texts: [[1.0, 0.0]] * len(texts)
    assert await world.find("violin") == BY_WORDS


def raise_busy(model: str, texts: Sequence[str]) -> Any:
    raise ModelBusy("down")


@pytest.mark.parametrize(
    "answer",
    [
        raise_busy,
        lambda model, texts: [[nan] * 4],
        lambda model, texts: [],
        lambda model, texts: [[0.0] * 4],
    ],
    ids=["down", "nan", "none", "zero"],
)
async def test_a_model_that_fails_leaves_the_words(world: World, answer: Any) -> None:
    """It is not asked again for a while, so that it costs no further search its time."""
    await world.make_vectors()
    world.model.answer = answer
    assert await world.find("violin") == BY_WORDS
    world.model.answer = None
    assert await world.find("violin") == BY_WORDS
    assert len(world.model.calls) == 1
    world.similar._models_paused_until.clear()
    assert await world.find("violin") != BY_WORDS or len(world.model.calls) == 2


async def test_a_slow_model_leaves_the_words(world: World) -> None:
    await world.make_vectors()
    world.model.is_stalled.set()
    world.choice = EmbeddingChoice("m", 0.05, 30.0)
    assert await asyncio.wait_for(world.find("violin"), 30) == BY_WORDS


async def test_a_store_that_fails_at_vectors_leaves_the_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.make_vectors()

    async def fail(*_: object) -> None:
        raise StorageError("away")

    monkeypatch.setattr(SqliteStore, "read_vectors", fail)
    assert await world.find("violin") == BY_WORDS


@pytest.mark.parametrize("failure", [StorageError("away"), None], ids=["fails", "stalls"])
async def test_a_memory_that_does_not_load_leaves_the_words(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: StorageError | None
) -> None:
    """It names the model. No other search waits for it."""
    await world.make_vectors()
    monkeypatch.setattr(similar_messages, "MAX_SEARCH_S", 0.05)
    choice, world.choice = world.choice, None
    world.failure, world.is_stalled = failure, failure is None
    assert await asyncio.wait_for(world.find("violin"), 30) == BY_WORDS
    world.choice, world.failure, world.is_stalled = choice, None, False
    monkeypatch.setattr(similar_messages, "MAX_SEARCH_S", 60.0)
    assert await world.find("pet") == [3, 2]


async def test_a_missing_package_leaves_the_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.make_vectors()

    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(similar_messages, "import_module", fail)
    assert await world.find("violin") == BY_WORDS


class Stall:
    """A way to read vectors that never answers."""

    async def __call__(self, *_: object) -> Any:
        await asyncio.Event().wait()


class Away:
    async def __call__(self, *_: object) -> Any:
        raise StorageError("away")


@pytest.mark.parametrize("read", [Stall(), Away()], ids=["slow", "fails"])
async def test_one_resource_takes_vectors_from_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    await world.make_vectors()
    other = Key("another tenant", KEY.resource, KEY.thread)
    world.choice = EmbeddingChoice("m", 0.05, 30.0)
    query = await world.similar.embed_query(KEY, "pet")
    assert query is not None
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "read_vectors", read)
        assert await world.similar.compare(KEY, query, NO_FILTER, ()) is None
    world.choice = EmbeddingChoice("m", 30.0, 30.0)
    assert await world.similar.embed_query(KEY, "kitten") is None
    assert await world.similar.embed_query(other, "pet") is not None


async def test_words_that_took_the_time_pause_nothing(world: World) -> None:
    """Neither the model nor comparing had any of it."""
    await world.make_vectors()
    world.choice = EmbeddingChoice("m", 30.0, 30.0)
    query = await world.similar.embed_query(KEY, "violin")
    assert query is not None
    assert (
        await world.similar.compare(KEY, query._replace(search_ends_at=0.0), NO_FILTER, ()) is None
    )
    world.choice = EmbeddingChoice("m", 30.0, 0.0)
    world.model.is_stalled.set()
    assert await world.find("violin song") == BY_WORDS
    world.model.is_stalled.clear()
    world.choice = EmbeddingChoice("m", 30.0, 30.0)
    assert await world.find("pet") == [3, 2]


@pytest.mark.parametrize("status", [400, 422, None], ids=["400", "422", "too_long"])
async def test_a_query_that_the_model_refuses_pauses_nothing(
    world: World, status: int | None
) -> None:
    await world.make_vectors()

    def refuse(model: str, texts: Sequence[str]) -> Any:
        refused = PromptTooLong("long") if status is None else ModelError("no")
        refused.server_status = status
        raise refused

    world.model.answer = refuse
    assert await world.find("violin") == BY_WORDS
    world.model.answer = None
    assert await world.find("pet") == [3, 2]


async def test_a_tenant_asks_once_for_a_query(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each resource of a person's search needs its vector."""
    monkeypatch.setattr(similar_messages, "MAX_KEPT_QUERIES", 2)
    world.similar = SimilarMessages(world.similar.vectors, world._choose)
    other = Key(KEY.tenant, "another resource", "t")
    first = await world.similar.embed_query(KEY, "pet")
    second = await world.similar.embed_query(other, "pet")
    assert first is not None
    assert second is not None
    assert second.vector == first.vector
    assert len(world.model.calls) == 1
    await world.similar.embed_query(Key("another tenant", KEY.resource, "t"), "pet")
    world.choice = EmbeddingChoice("n", 30.0, 30.0)
    await world.similar.embed_query(KEY, "pet")
    assert len(world.model.calls) == 3
    await world.similar.embed_query(Key("another tenant", KEY.resource, "t"), "song")
    world.choice = EmbeddingChoice("m", 30.0, 30.0)
    await world.similar.embed_query(KEY, "pet")
    assert len(world.model.calls) == 5, "only the newest are kept"


async def test_one_search_compares_at_a_time_and_holds_a_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two performers of a process share its vectors. Who waits too long goes by words, unpaused."""
    monkeypatch.setattr(similar_messages, "PAGE_BYTES", 20)
    await world.make_vectors()
    sizes: list[int] = []
    add = Comparison.add

    def count(comparison: Comparison, found: Sequence[Any]) -> None:
        sizes.append(len(found))
        add(comparison, found)

    monkeypatch.setattr(Comparison, "add", count)
    query = await world.similar.embed_query(KEY, "pet")
    assert query is not None
    second = SimilarMessages(world.similar.vectors, world._choose)
    async with world.similar.vectors.comparing:
        late = query._replace(compare_s=0.05)
        assert await second.compare(KEY, late, NO_FILTER, ()) is None
        assert sizes == []
    assert await second.embed_query(KEY, "pet") is not None
    compared = await second.compare(KEY, query, NO_FILTER, ())
    assert compared is not None
    assert len(compared.messages) == 5
    assert sizes == [2, 2, 1]


def make_vector(seq: int) -> StoredVector:
    numbers = [((seq * factor) % 17) - 8.5 for factor in (3, 5, 7)]  # many are alike
    role = "user" if seq % 3 else "assistant"
    return StoredVector("t", seq, role, float(seq), seq % 200, encode_vector(numbers))


@pytest.mark.parametrize("page", [1, 7, 50, 500])
def test_pages_do_not_change_what_is_chosen(page: int) -> None:
    """The most similar ones that the filter lets pass, of equals the first, and what the words
    found; the figures are of all that were compared."""
    stored = [make_vector(seq) for seq in range(1, 501)]
    query = numpy.frombuffer(stored[0].vector, "<f2").astype("f4")
    only_users = PassageFilter(roles=("user",))
    ranked = [RankedMessage("t", seq, 1.0, 0, 0.0, "user", ()) for seq in (3, 250, 499)]
    comparison = Comparison(stored[0].vector, only_users, ranked)
    for begin in range(0, len(stored), page):
        comparison.add(stored[begin : begin + page])
    chosen = comparison.choose()
    assert chosen is not None

    cosines = {
        each.seq: float(numpy.frombuffer(each.vector, "<f2").astype("f4") @ query)
        for each in stored
    }
    users = [each.seq for each in stored if each.role == "user" and each.seq not in (250, 499)]
    best = sorted(users, key=lambda seq: -cosines[seq])[:MAX_SIMILAR]
    assert {message.seq for message in chosen.messages} == {*best, 3, 250, 499}
    shown = [message.cosine for message in chosen.messages]
    assert shown == sorted(shown, reverse=True)
    assert chosen.median == pytest.approx(numpy.median(list(cosines.values())))
    assert chosen.largest == pytest.approx(max(cosines.values()))
    assert chosen.mean_words == sum(min(each.length, 150) for each in stored) / 500
    assert comparison.compared == {("t", seq) for seq in (3, 250, 499)}


async def test_a_failing_search_leaves_no_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.model.is_stalled.set()

    async def fail(*_: object) -> None:
        raise StorageError("away")

    monkeypatch.setattr(SqliteStore, "find_passages", fail)
    with pytest.raises(StorageError):
        await world.find("violin")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_of_a_large_resource_the_newest_and_the_found_are_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that words found is compared, however old it is."""
    monkeypatch.setattr(similar_messages, "MAX_COMPARED", 1)
    monkeypatch.setattr(similar_messages, "PAGE_VECTORS", 1)
    await world.make_vectors()
    query = await world.similar.embed_query(KEY, "kitten")
    assert query is not None
    result = await world.search._search_words(KEY, ["kitten"], NO_FILTER)
    compared = await world.similar.compare(KEY, query, NO_FILTER, result.ranked)
    assert compared is not None
    assert sorted(each.seq for each in compared.messages) == [1, 2, 3, 5]


async def test_cosines_are_of_the_stored_numbers(world: World) -> None:
    await world.make_vectors()
    query = await world.similar.embed_query(KEY, "kitten")
    assert query is not None
    compared = await world.similar.compare(KEY, query, NO_FILTER, ())
    assert compared is not None
    stored = {
        each.seq: struct.unpack("<4e", each.vector)
        for each in (await world.store.read_vectors(KEY, "m")).vectors
    }
    wanted = struct.unpack("<4e", query.vector)
    for each in compared.messages:
        expected = sum(a * b for a, b in zip(stored[each.seq], wanted, strict=True))
        assert each.cosine == pytest.approx(expected, abs=1e-3)
    assert compared.largest == max(each.cosine for each in compared.messages)
