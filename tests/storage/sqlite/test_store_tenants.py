"""SQLite keeps tenants apart."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.tenant_contract import TenantContract


class TestSqliteTenants(TenantContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        store = await SqliteStore.open(":memory:")
        yield store
        await store.close()
