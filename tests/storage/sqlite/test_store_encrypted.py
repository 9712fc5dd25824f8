"""An encrypted SQLite file keeps the contract."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.contract import Opener, StoreContract

MASTER = bytes(range(32))
THINNED = 1 if os.environ.get("OM_TEST_ENCRYPTED") == "all" else 6


class TestEncryptedSqlite(StoreContract):
    """The whole contract on an encrypted file, in a suite with few examples of its machines."""

    thinned = THINNED

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def opened() -> Store:
            return await SqliteStore.open(tmp_path / "memory.db", masters=MasterKeys([MASTER]))

        return opened
