"""PostgreSQL keeps the contract, and what only PostgreSQL promises."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener, StoreContract
from tests.support.postgres_server import find_pooler_url


class TestPostgres(StoreContract):
    """The whole contract on a schema of its own."""


class TestPostgresBehindPooler(StoreContract):
    """The whole contract through a PgBouncer in transaction mode, which may give each transaction
    another connection and knows no prepared statements."""

    @pytest.fixture
    def opener(self, schema: str) -> Opener:
        url = find_pooler_url()

        async def opened() -> Store:
            options = PostgresOptions(schema, 5, prepared=False, timeout_s=30.0)
            return await PostgresStore.open(url, options)

        return opened
