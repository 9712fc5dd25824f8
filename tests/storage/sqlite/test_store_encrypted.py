"""An encrypted SQLite file keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.contract import Opener, StoreContract
from tests.support.long_forms import long_form

MASTER_KEY = bytes(range(32))


@long_form
class TestEncryptedSqlite(StoreContract):
    """The whole contract on an encrypted file."""

    has_index = False

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_store() -> Store:
            return await SqliteStore.open(tmp_path / "memory.db", masters=MasterKeys([MASTER_KEY]))

        return open_store
