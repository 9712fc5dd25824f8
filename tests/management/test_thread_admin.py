"""What people change of a thread's memory is compared with what they have seen, in the moment of
the change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import NotFound, StaleVersion
from om_proxy.management.thread_admin import ThreadAdmin
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.observability.facts import Fact, Forgotten
from om_proxy.storage.values.records import ForgetResult
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.performing import Parts, open_parts


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    async with open_parts() as parts:
        yield parts


def make_admin(parts: Parts) -> ThreadAdmin:
    return ThreadAdmin(parts.memories, parts.policies)


async def add_thread(parts: Parts, key: Key = KEY) -> Memory:
    return await parts.memories.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())


async def test_a_turn_between_comparing_and_forgetting(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of another process that is stored at the last moment keeps its thread."""
    memory = await add_thread(parts)
    admin, forget = make_admin(parts), parts.store.forget

    async def commit_first(*arguments: Any) -> ForgetResult:
        await parts.store.commit(memory, replace(memory, turns=9))
        return await forget(*arguments)

    monkeypatch.setattr(parts.store, "forget", commit_first)
    with pytest.raises(StaleVersion):
        await admin.forget(KEY, expected_version=memory.version)
    assert (await parts.memories.load(KEY)).turns == 9


async def test_forgetting_of_the_version_that_was_seen(parts: Parts) -> None:
    memory = await add_thread(parts)
    assert (await make_admin(parts).forget(KEY, expected_version=memory.version)).messages == 2
    with pytest.raises(NotFound):
        await make_admin(parts).forget(KEY, expected_version=memory.version)


@pytest.mark.parametrize("resource", [KEY.resource, None])
async def test_forgetting_of_everything(parts: Parts, resource: str | None) -> None:
    """The counts are those of all its threads, one fact tells of it, and an event of each."""
    seen: list[Fact] = []
    parts.memories.facts.subscribe(seen.append)
    keys = [KEY._replace(thread=name) for name in "ab"]
    strangers = [Key("stranger", KEY.resource, "a"), Key(KEY.tenant, "other", "a")]
    for key in (*keys, *strangers):
        await add_thread(parts, key)
    dropped: list[Key] = []
    parts.memories.traces.on_forget.append(dropped.append)
    admin = make_admin(parts)
    forgotten = await admin.forget_all(KEY.tenant, resource)
    gone = [*keys, *([] if resource else strangers[1:])]
    assert (forgotten.threads, forgotten.messages) == (len(gone), 2 * len(gone))
    assert set(dropped) == set(gone)
    left = [key for key in (*keys, *strangers) if (await parts.memories.load(key)).version]
    assert left == [key for key in strangers if key not in gone]
    scope = Key(KEY.tenant, resource or "", RESOURCE_THREAD)
    assert [fact for fact in seen if isinstance(fact, Forgotten)] == [
        Forgotten(scope, 2 * len(gone), "gone")
    ]
    told = (await parts.store.events(KEY.tenant, None, None, 9)).events
    assert {event.type for event in told} == {"data-om-forgotten"}
    labels = sorted(json.loads(event.data)["label"] for event in told)
    assert labels == sorted(map(parts.memories.label, gone))
    with pytest.raises(NotFound):
        await admin.forget_all(KEY.tenant, resource)
