"""A PostgreSQL schema is encrypted, and its master key changed, while it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.conversion_contract import ConversionContract, OpenWith


@pytest.fixture
async def open_with(url: str, schema: str) -> AsyncIterator[OpenWith]:
    async with AsyncExitStack() as stack:

        async def open_store(*keys: bytes, begins_encryption: bool = False) -> PostgresStore:
            store = await PostgresStore.open(
                url,
                PostgresOptions(prefix=schema, connections=3, timeout_s=30.0),
                masters=MasterKeys(keys) if keys else None,
                begins_encryption=begins_encryption,
            )
            stack.push_async_callback(store.close)
            return store

        yield open_store


class TestPostgresConversion(ConversionContract):
    """The contract on a schema of its own."""
