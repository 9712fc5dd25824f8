"""A PgBouncer in transaction mode in front of PostgreSQL changes nothing of the contract."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import EACH_KIND, keep_part
from tests.support.postgres_server import find_pooler_url


@keep_part(*EACH_KIND)
class TestPostgresBehindPooler(StoreContract):
    """The contract where each transaction may have another connection, and no statement is
    prepared: with OM_TEST_LONG=all the whole, else a part."""

    thinned = 4

    @pytest.fixture
    def opener(self, empty_schema: str) -> Opener:
        url = find_pooler_url()

        async def open_store() -> Store:
            options = PostgresOptions(empty_schema, 5, prepared=False, timeout_s=30.0)
            return await PostgresStore.open(url, options)

        return open_store
