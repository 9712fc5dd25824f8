"""A key store in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.encryption.key_store import KeyStore
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.key_store import PostgresKeyStore, rewrite_keys
from tests.storage.key_store_contract import OLD, KeysOpener, KeyStoreContract, create_keys
from tests.support.postgres_server import ask_server


@pytest.fixture
async def opener(url: str, schema: str) -> AsyncIterator[KeysOpener]:
    async with AsyncExitStack() as stack:

        async def open_store() -> KeyStore:
            store = await PostgresKeyStore.open(url, schema, timeout_s=30.0)
            stack.push_async_callback(store.close)
            return store

        yield open_store


class TestPostgresKeyStore(KeyStoreContract):
    """The contract on a schema of its own."""

    @pytest.fixture
    def replace(self, url: str, schema: str) -> Callable[[str], Awaitable[None]]:
        async def replaced(id_: str) -> None:
            # as after a failover: the connections end, and others find another store
            ask_server(url, lambda c: c.execute(f'DROP SCHEMA "{schema}" CASCADE'))
            keys = await PostgresKeyStore.open(url, schema, timeout_s=30.0)
            await keys.create(id_)
            await keys.close()
            end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%'"""
            ask_server(url, lambda c: c.fetch(end, schema))

        return replaced


async def test_the_table_can_be_rewritten(opener: KeysOpener, url: str, schema: str) -> None:
    keys, masters = await create_keys(opener), MasterKeys([OLD])
    made = [masters.create_key().stored for _ in range(50)]
    await keys.insert(made)
    await keys.destroy([key.id for key in made[1:]])
    where = f"SELECT pg_relation_filenode('\"{schema}\".data_key')"
    before = ask_server(url, lambda c: c.fetchval(where))
    await rewrite_keys(url, schema)
    assert ask_server(url, lambda c: c.fetchval(where)) != before
    assert await keys.select([key.id for key in made]) == [made[0]]
    with pytest.raises(StorageError, match=r"storage\.keys_url"):
        await rewrite_keys(url, f"{schema}_none")
