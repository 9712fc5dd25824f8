"""An encrypted Redis keeps tenants apart: no row, and no key of one."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from tests.storage.conversion_contract import OLD, OpenWith
from tests.storage.tenant_contract import TenantContract


class TestRedisTenants(TenantContract):
    @pytest.fixture
    async def store(self, open_with: OpenWith) -> Store:
        store: Store = await open_with(OLD)
        return store
