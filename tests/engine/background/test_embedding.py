"""The background makes vectors while nobody talks, and loses none to a failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from om_proxy.agents.embedding import Embedded
from om_proxy.common.errors import ModelBusy
from om_proxy.engine.background import quiet_walk
from om_proxy.engine.background.embedding import (
    FIRST_PAUSE_S,
    FULL_WALK_S,
    MessageVectors,
    create_vector_filler,
    embed_all,
)
from om_proxy.engine.background.quiet_walk import QUIET_S, QuietWalker
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts
from om_proxy.settings.config import Settings
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import SECOND, add_said, index_all, store_thread
from tests.support.embedding_model import ScriptedModel
from tests.support.policies import build_policies

NOW = 1_000_000.0
OTHER_TENANT_THREAD = Key("other", "other", "old")


def set_model(name: str | None) -> Settings:
    retrieval = {"vector": True, "embedding_model": name} if name else True
    return Settings.model_validate({"memory": {"retrieval": retrieval}})


class World:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.model = ScriptedModel()
        self.settings = set_model("m")
        self.machine_now = 0.0
        self.vectors = MessageVectors(store, self.model, Facts())
        self.memories = Memories(store, build_policies(self.settings))

    def create_filler(self) -> QuietWalker:
        return create_vector_filler(
            self.memories,
            self.vectors,
            lambda: self.settings,
            machine_clock=lambda: self.machine_now,
        )

    async def add(self, key: Key, turn_at: float, *texts: str) -> None:
        await store_thread(
            self.store, add_said(MemoryBuilder(key), *(texts or ("cat", "dog"))), turn_at
        )
        await index_all(self.store, key)

    async def cost(self, key: Key) -> int:
        return (await self.store.load(key)).ledger.full_memory.cost

    async def count(self, key: Key, model: str = "m") -> int:
        return len((await self.store.read_vectors(key, model)).vectors)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = await SqliteStore.open(":memory:", clock=lambda: NOW)
    yield World(store)
    await store.close()


async def test_quiet_threads_get_vectors(world: World) -> None:
    """Of all tenants."""
    await world.add(KEY, 6.0)
    await world.add(SECOND, NOW)
    await world.add(OTHER_TENANT_THREAD, 5.0)
    filler = world.create_filler()
    assert await filler.run_once() == 4
    assert await filler.run_once() == 0
    assert (await world.count(KEY), await world.count(OTHER_TENANT_THREAD)) == (2, 2)


async def test_what_is_indexed_late_gets_its_vectors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old thread is found by the next walk over all."""
    monkeypatch.setattr(quiet_walk, "BATCH_THREADS", 1)
    await world.add(SECOND, NOW - 2 * QUIET_S)
    filler = world.create_filler()
    assert await filler.run_once() == 2
    await world.add(KEY, 5.0)
    assert await filler.run_once() == 0
    world.machine_now += FULL_WALK_S
    assert await filler.run_once() == 2


async def test_switched_off_nothing_is_asked() -> None:
    """Not the store, and no model."""
    for settings in (Settings(), set_model(None)):
        memories = Memories(None, build_policies(settings))  # type: ignore[arg-type] - the same
        filler = create_vector_filler(memories, None, lambda: settings)  # type: ignore[arg-type] # noqa: B023 - none is there, and it is called at once
        assert await filler.run_once() == 0


async def test_a_model_that_is_down_is_asked_less_and_less(world: World) -> None:
    """Nothing is lost: what lacks a vector gets it once the model is back."""
    await world.add(KEY, 5.0)

    def refuse(model: str, texts: Sequence[str]) -> Any:
        raise ModelBusy("down", 100.0 if len(world.model.calls) == 3 else None)

    world.model.answer = refuse
    filler = world.create_filler()
    asked_at = []
    for now in range(0, 400, 10):
        world.machine_now = now
        before = len(world.model.calls)
        assert await filler.run_once() == 0
        asked_at += [now] * (len(world.model.calls) - before)
    assert asked_at == [0, 30, 90, 210]
    world.model.answer = None
    world.machine_now = 1_000.0
    assert await filler.run_once() == 2
    await world.add(SECOND, 5.0)
    world.model.answer = refuse
    assert await filler.run_once() == 0
    world.model.answer = None
    world.machine_now += FIRST_PAUSE_S
    assert await filler.run_once() == 2


async def test_a_thread_is_charged_for_its_vectors(world: World) -> None:
    """Also for calls that came to nothing."""
    world.settings = set_model("text-embedding-3-small")
    world.model.tokens = 1_000_000  # 2 cents
    await world.add(KEY, 6.0, "cat", "violin")
    await world.add(SECOND, 5.0, "dog")
    assert await world.create_filler().run_once() == 3
    assert (await world.cost(KEY), await world.cost(SECOND)) == (20_000, 20_000)
    assert (await world.store.load(KEY)).ledger.full_memory.calls == 1

    gone = KEY._replace(thread="gone")
    await world.add(gone, 7.0)

    def refuse(model: str, texts: Sequence[str]) -> Any:
        raise ModelBusy("down", None)

    world.model.answer = refuse
    assert await world.create_filler().run_once() == 0
    assert await world.cost(gone) == 0  # a refused call costs nothing
    world.model.answer = lambda model, texts: [[1.0]] * (len(texts) + 1)
    assert await world.create_filler().run_once() == 0
    assert (
        await world.cost(gone) == 40_000
    )  # the batch, and the text that asks whether the model answers at all


async def test_a_thread_that_went_meanwhile_is_not_made_anew(world: World) -> None:
    """Nobody is charged for its vectors."""
    world.settings = set_model("text-embedding-3-small")
    await world.add(KEY, 6.0)
    embed_texts = world.model.embed_texts

    async def forget_first(model: str, texts: Sequence[str]) -> Embedded:
        await world.store.forget(KEY)
        return await embed_texts(model, texts)

    world.model.embed_texts = forget_first  # type: ignore[method-assign] # a store that is used meanwhile
    assert await world.create_filler().run_once() == 0
    assert len(world.model.calls) == 1
    assert await world.store.version(KEY) == 0


async def test_another_model_in_the_middle_ends_the_walk(world: World) -> None:
    """What it made is of the old model, and made anew by the new one."""
    await world.add(KEY, 5.0, "cat")
    await world.add(SECOND, 6.0, "dog")

    def change(model: str, texts: Sequence[str]) -> Any:
        world.settings = set_model("new")
        return [[1.0]] * len(texts)

    world.model.answer = change
    filler = world.create_filler()
    assert await filler.run_once() == 1
    assert (await world.count(KEY, "m"), await world.count(KEY, "new")) == (1, 0)
    world.model.answer = None
    assert await filler.run_once() == 2
    assert (await world.count(KEY, "m"), await world.count(KEY, "new")) == (0, 2)


async def test_a_killed_process_loses_nothing(world: World) -> None:
    """Passages without vectors are found by the next process, and no vector is made twice."""
    await world.add(KEY, 5.0, *(f"cat {number}" for number in range(70)))
    assert await world.vectors.embed_batch(KEY, "m", 30) == 30  # and killed
    assert await world.create_filler().run_once() == 40
    assert sum(len(texts) for _, texts in world.model.calls) == 70


async def test_resources_may_have_other_models(world: World) -> None:
    await world.add(KEY, 5.0)
    await world.add(OTHER_TENANT_THREAD, 6.0)
    world.settings = Settings.model_validate(
        {
            "memory": {"retrieval": {"vector": True, "embedding_model": "m"}},
            "resources": {"oth*": {"retrieval": {"embedding_model": "n", "vector": True}}},
        }
    )
    assert await world.create_filler().run_once() == 4
    assert (await world.count(KEY), await world.count(OTHER_TENANT_THREAD, "n")) == (2, 2)


async def test_all_vectors_are_made_at_once(world: World) -> None:
    await world.add(KEY, NOW)
    await world.add(OTHER_TENANT_THREAD, 6.0)
    assert await embed_all(world.memories, world.vectors, world.settings) == 4
    assert await embed_all(world.memories, world.vectors, world.settings) == 0
