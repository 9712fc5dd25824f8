"""PostgreSQL keeps the contract."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener, StoreContract


class TestPostgres(StoreContract):
    """The whole contract on a schema that is empty before each test."""

    @pytest.fixture
    def opener(self, url: str, empty_schema: str) -> Opener:
        async def open_store() -> Store:
            options = PostgresOptions(empty_schema, 5, timeout_s=30.0)
            return await PostgresStore.open(url, options)

        return open_store
