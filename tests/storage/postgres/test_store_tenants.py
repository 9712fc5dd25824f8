"""PostgreSQL keeps tenants apart."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresStore
from tests.storage.contract import Opener
from tests.storage.search_contract import MISPLACED, index_same_names, misplace_scopes
from tests.storage.tenant_contract import TenantContract
from tests.storage.vector_contract import embed_some, list_vectors


class TestPostgresTenants(TenantContract):
    @pytest.fixture
    async def store(self, opener: Opener) -> AsyncIterator[Store]:
        store = await opener()
        yield store
        await store.close()

    async def test_a_misplaced_scope_shows_no_passage_of_another_tenant(
        self, store: PostgresStore
    ) -> None:
        """Whatever stands in the index, each passage that leaves it is of the tenant who asks."""
        key = await index_same_names(store)
        assert len((await store.find_passages(key, ["quorum"])).matches) == 1
        for tenant in MISPLACED:
            await embed_some(store, key._replace(tenant=tenant))
        assert len(await list_vectors(store, key)) == 2
        await misplace_scopes(store)
        found = await store.find_passages(key, ["quorum"])
        assert (found.matches, found.neighbours) == ((), ())
        assert await list_vectors(store, key) == []
