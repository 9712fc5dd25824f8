"""What is committed to a preview's store is read from it, and never reaches the store behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, Unwritable
from om_proxy.memory.model import EMPTY_CHAIN, Memory, Message, extend_chain
from om_proxy.storage.preview_store import PreviewStore
from om_proxy.storage.spooling.spooled_turns import MAX_SPOOLED_BYTES
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, item
from tests.storage.records_contract import RECEIPT


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


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.forget(KEY),
        lambda store: store.forget_batch("a"),
        lambda store: store.drop_generations(KEY, 1, [0]),
        lambda store: store.add_audit([]),
        lambda store: store.add_receipt(RECEIPT),
        lambda store: store.set_due(KEY, 1.0),
        lambda store: store.lease(KEY, "me", 1.0),
        lambda store: store.mark_delivered({KEY: 1}),
        lambda store: store.move_tenant("a", "b", lambda raw: None),
    ],
)
async def test_other_writes_are_refused(
    base_store: SqliteStore, write: Callable[[PreviewStore], Awaitable[object]]
) -> None:
    with pytest.raises(Unwritable):
        await write(PreviewStore(base_store))
