"""What every key store promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.encryption.key_store import KeyStore
from om_proxy.storage.encryption.master_keys import MasterKeys

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
# opens the same key store, as another process does
KeysOpener = Callable[[], Awaitable[KeyStore]]


async def create_keys(opener: KeysOpener, id_: str = "0123456789abcdef") -> KeyStore:
    keys = await opener()
    keys.expect(await keys.create(id_))
    return keys


class KeyStoreContract:
    """A test of a backend has the fixtures `opener` and `replace`: let another key store, with the
    id that is given, take the place of this one."""

    async def test_nothing_is_made_by_asking(self, opener: KeysOpener) -> None:
        keys = await opener()
        assert await keys.identify() is None
        assert await keys.identify() is None

    async def test_the_first_id_stays(self, opener: KeysOpener) -> None:
        one, other = await opener(), await opener()
        assert await one.create("first") == "first"
        assert await other.create("second") == "first"
        assert await other.identify() == "first"

    async def test_one_of_many_makes_it(self, opener: KeysOpener) -> None:
        """Processes that start together, and have all found none, agree on one."""
        stores = [await opener() for _ in range(6)]
        for keys in stores:
            assert await keys.identify() is None
        made = await asyncio.gather(*(keys.create(f"{n}") for n, keys in enumerate(stores)))
        assert len(set(made)) == 1

    async def test_keys_are_kept_until_they_are_destroyed(self, opener: KeysOpener) -> None:
        keys, masters = await create_keys(opener), MasterKeys([OLD])
        assert not await keys.has_keys()
        made = [masters.create_key().stored for _ in range(3)]
        await keys.insert(made)
        # a key that is there stays as it is
        await keys.insert([made[0]._replace(wrapped=b"another")])
        other = await create_keys(opener)
        assert await other.has_keys()
        ids = [key.id for key in made]
        assert sorted(await other.select([*ids, b"unknown"])) == sorted(made)
        await keys.destroy([ids[0], b"unknown"])
        assert sorted(await other.select(ids)) == sorted(made[1:])
        await other.ping()

    async def test_old_keys_that_no_row_named_are_told(self, opener: KeysOpener) -> None:
        keys, masters = await create_keys(opener), MasterKeys([OLD])
        made = [masters.create_key().stored for _ in range(4)]
        await keys.insert(made)
        ids = sorted(key.id for key in made)
        assert await keys.select_unused(b"", 3_600.0, 10) == []
        assert await keys.select_unused(b"", 0.0, 10) == ids
        assert await keys.select_unused(ids[0], 0.0, 2) == ids[1:3]
        await keys.mark_used(ids[:2])
        assert await keys.select_unused(b"", 0.0, 10) == ids[2:]

    async def test_a_new_master_key_wraps_the_same_keys(self, opener: KeysOpener) -> None:
        keys, old, both = await create_keys(opener), MasterKeys([OLD]), MasterKeys([NEW, OLD])
        made = [old.create_key() for _ in range(3)]
        await keys.insert([key.stored for key in made])
        assert await keys.has_older(both.newest_id)
        batch = await keys.rewrap_batch(b"", both)
        assert (batch.keys, batch.last_id) == (3, max(key.stored.id for key in made))
        assert (await keys.rewrap_batch(batch.last_id, both)).last_id is None
        assert not await keys.has_older(both.newest_id)
        for key in made:
            [stored] = await keys.select([key.stored.id])
            sealed = key.key.seal(b"message", 1, b"raw", b"a word")
            assert MasterKeys([NEW]).unwrap(stored).open(b"message", 1, b"raw", sealed) == b"a word"

    async def test_another_key_store_in_its_place_is_refused(
        self, opener: KeysOpener, replace: Callable[[str], Awaitable[None]]
    ) -> None:
        keys = await create_keys(opener)
        made = MasterKeys([OLD]).create_key().stored
        await keys.insert([made])
        await replace("fedcba9876543210")
        for asking in (keys.insert([made]), keys.select([made.id]), keys.ping()):
            with pytest.raises(StorageError):
                await asking
        fresh = await opener()
        fresh.expect("fedcba9876543210")
        assert not await fresh.has_keys()
