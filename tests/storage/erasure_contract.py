"""What every store with tables promises about forgotten words: none is left in any of their cells. The
tables are read from the schema, so a table that comes later is looked at too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from om_proxy.memory.model import Key
from om_proxy.storage.base import Store
from om_proxy.storage.values.records import ForgetScope
from tests.storage.canary_threads import (
    CANARY_WORD,
    PLACES_OF_TENANT,
    PLAIN_COLUMNS,
    TENANT,
    Cells,
    fill,
    find_number,
    find_places,
    find_text_places,
    forget,
    is_derived,
)
from tests.storage.contract import Opener

ReadCells = Callable[[], Awaitable[Cells]]
FIRST_ID = 7_000_000


class ErasureContract:
    """Mixed into the tests of a backend, which has the fixtures `opener`, `read_cells`: every cell by
    its table and column, and `raise_ids`: let the next id of a thread be FIRST_ID or more."""

    @pytest.fixture
    async def store_of_high_ids(
        self, opener: Opener, raise_ids: Callable[[int], Awaitable[None]]
    ) -> AsyncIterator[Store]:
        store = await opener()
        await raise_ids(FIRST_ID)
        yield store
        await store.close()

    @pytest.mark.parametrize("scope", ["thread", "resource", "tenant"])
    async def test_nothing_of_what_was_forgotten_is_in_any_cell(
        self, store_of_high_ids: Store, read_cells: ReadCells, scope: ForgetScope
    ) -> None:
        # the name of a resource stays as long as one of its threads
        resource = "ours" if scope == "thread" else f"{CANARY_WORD} resource"
        key = Key(TENANT, resource, f"{CANARY_WORD} thread")
        # a name goes with its thread; the other thread stays only if this one alone is forgotten
        await fill(store_of_high_ids, key, key._replace(thread="stays"))
        before = await read_cells()
        ids = {value for value in before["thread.id"] if value >= FIRST_ID}
        assert len(ids) == 3
        stays = set() if scope != "thread" else set(await _stored_ids(store_of_high_ids, key))
        await forget(store_of_high_ids, scope, key)
        after = await read_cells()
        assert find_places(after, CANARY_WORD) == set()
        assert {id_: find_number(after, id_) for id_ in ids - stays} == {
            id_: set() for id_ in ids - stays
        }
        if scope == "tenant":
            assert find_places(after, TENANT) <= PLACES_OF_TENANT

    async def test_every_column_of_text_is_tried(
        self, store_of_high_ids: Store, read_cells: ReadCells
    ) -> None:
        """A column that comes later is filled with a canary, or said to hold no word from outside."""
        key = Key(TENANT, f"{CANARY_WORD} resource", f"{CANARY_WORD} thread")
        await fill(store_of_high_ids, key, key._replace(thread="stays"))
        cells = {place: v for place, v in (await read_cells()).items() if not is_derived(place)}
        filled = find_places(cells, CANARY_WORD)
        assert find_text_places(cells) - filled - PLAIN_COLUMNS == set()
        assert not filled & PLAIN_COLUMNS


async def _stored_ids(store: Store, key: Key) -> list[int]:
    """Return the ids of the rows that stay if the thread alone is forgotten."""
    keys = (key._replace(thread="stays"), key._replace(thread=""))
    return [(await store.load(stays)).row_id for stays in keys]
