"""An encrypted Redis keeps the contract."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import keep_part
from tests.storage.encrypted_part import PART

MASTER_KEY = bytes(range(32))


@keep_part(*PART)
class TestEncryptedRedis(StoreContract):
    """The contract on an encrypted Redis: with OM_TEST_LONG=all the whole, else a part."""

    has_index = False

    @pytest.fixture
    def opener(self, url: str, prefix: str) -> Opener:
        async def open_store() -> Store:
            options = RedisOptions(prefix=prefix, connections=5, timeout_s=30.0)
            return await RedisStore.open(url, options, masters=MasterKeys([MASTER_KEY]))

        return open_store
