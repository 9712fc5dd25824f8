"""What is committed to a preview's store is read from it, and never reaches the store behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, Unwritable
from om_proxy.memory.model import EMPTY_CHAIN, Memory, Message, extend_chain
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import list_methods
from om_proxy.storage.spooling.merging_store import PreviewStore, list_refused_methods
from om_proxy.storage.spooling.spooled_turns import MAX_SPOOLED_BYTES
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, item


@pytest.fixture
async def base_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(str(tmp_path / "om.db"))
    yield store
    await store.close()


async def test_a_commit_stays_in_the_preview(base_store: SqliteStore) -> None:
    known = await base_store.commit(Memory(key=KEY), Memory(key=KEY, title="Crates"))
    preview = PreviewStore(base_store)
    changed = await preview.commit(known, replace(known, title="Docks"))
    assert (await preview.load(KEY)).title == "Docks"
    assert await preview.version(KEY) == changed.version
    assert (await base_store.load(KEY)).title == "Crates"
    assert await base_store.version(KEY) == known.version
    assert (await PreviewStore(base_store).load(KEY)).title == "Crates"


async def test_an_old_state_is_refused(base_store: SqliteStore) -> None:
    known = await base_store.commit(Memory(key=KEY), Memory(key=KEY, title="Crates"))
    preview = PreviewStore(base_store)
    await preview.commit(known, replace(known, title="Docks"))
    with pytest.raises(Conflict):
        await preview.commit(known, replace(known, title="Piers"))


async def test_a_commit_of_any_size_is_kept(base_store: SqliteStore) -> None:
    """A spool would drop it, and log a turn as lost."""
    before = Memory(key=KEY)
    large = item("x" * (MAX_SPOOLED_BYTES + 1))
    message = Message(1, large, extend_chain(EMPTY_CHAIN, large.fp), 1, 0.0)
    preview = PreviewStore(base_store)
    await preview.commit(before, replace(before, tail=(message,), next_seq=2))
    assert len((await preview.load(KEY)).tail) == 1


@pytest.mark.parametrize("name", sorted(list_refused_methods()))
async def test_other_methods_are_refused(base_store: SqliteStore, name: str) -> None:
    with pytest.raises(Unwritable):
        await getattr(PreviewStore(base_store), name)(KEY)


def test_what_is_not_refused() -> None:
    """It reads, or commits to the preview alone. A new method of the store is refused."""
    assert {*list_methods(Store)} - list_refused_methods() == {
        *("load", "version", "refresh", "refresh_shared", "commit", "commit_shared", "close"),
        *("outline", "messages", "stored_messages", "messages_by_seq", "observations"),
        *("generations", "generation_summaries", "generation_entries", "beginnings"),
        *("other_thread_tails", "delivered_reply", "events", "forgotten_at", "resource_backlog"),
        *("threads", "find_threads", "idle_threads", "resources", "resource"),
    }
