"""An encrypted PostgreSQL schema keeps the contract."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import keep_part
from tests.storage.encrypted_part import PART

MASTER_KEY = bytes(range(32))


@keep_part(*PART)
class TestEncryptedPostgres(StoreContract):
    """The contract on an encrypted schema: with OM_TEST_LONG=all the whole, else a part."""

    has_index = False

    @pytest.fixture
    def opener(self, url: str, empty_schema: str) -> Opener:
        async def open_store() -> Store:
            options = PostgresOptions(prefix=empty_schema, connections=5, timeout_s=30.0)
            return await PostgresStore.open(url, options, masters=MasterKeys([MASTER_KEY]))

        return open_store
