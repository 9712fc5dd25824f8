"""PostgreSQL keeps tenants apart."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from om_proxy.storage.base import Store
from tests.storage.contract import Opener
from tests.storage.tenant_contract import TenantContract


class TestPostgresTenants(TenantContract):
    @pytest.fixture
    async def store(self, opener: Opener) -> AsyncIterator[Store]:
        store = await opener()
        yield store
        await store.close()
