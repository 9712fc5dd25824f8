"""An encrypted Redis keeps tenants apart: no row, and no key of one. What it cleans up is the
tenant's own, and all of it: a name that stays in a list of its tenant is not forgotten."""

from __future__ import annotations

import pytest
import redis
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.redis import listing
from om_proxy.storage.values.listing import ThreadSelection
from om_proxy.storage.values.records import AUDIT_KEPT_S, RECEIPTS_KEPT_S, AuditRecord
from tests.storage.event_contract import activation
from tests.storage.key_rotation_contract import OLD, OpenWith
from tests.storage.memory_builder import MemoryBuilder
from tests.storage.records_contract import RECEIPT
from tests.storage.redis.test_removal import list_values
from tests.storage.tenant_contract import NOW, TenantContract

KEYS = [Key(tenant, "resource", "t") for tenant in ("a", "b")]


def read_tenant(url: str, prefix: str, tenant: str) -> dict[bytes, list[bytes]]:
    """Return what stands under the keys that name a tenant."""
    with redis.Redis.from_url(url) as server:
        names = [
            *server.scan_iter(f"{prefix}:[^{{]*:{tenant}", count=1_000),
            *server.scan_iter(f"{prefix}:{{{tenant}/*", count=1_000),
        ]
        return {name: sorted(list_values(server, name)) for name in names}


class TestRedisTenants(TenantContract):
    @pytest.fixture
    async def store(self, open_with: OpenWith) -> Store:
        store: Store = await open_with(OLD)
        return store

    @pytest.mark.parametrize("needs_caller", [False, True])
    async def test_whose_keys_go_with_a_thread(
        self, store: Store, url: str, prefix: str, needs_caller: bool
    ) -> None:
        for key in KEYS:
            memory = replace(MemoryBuilder(key).chat(2).memory(), due_at=NOW)
            memory = replace(memory, needs_caller=needs_caller)
            await store.commit(Memory(key=key), memory, events=[activation("x")])
            assert await store.lease(key, "me", 60)
        theirs = read_tenant(url, prefix, "b")
        assert len(read_tenant(url, prefix, "a")) == len(theirs) >= 9
        await store.forget(KEYS[0])
        assert read_tenant(url, prefix, "a") == {}
        assert read_tenant(url, prefix, "b") == theirs

    async def test_whose_work_waits_for_a_caller(self, store: Store) -> None:
        """Work that comes to need a caller's credential is taken by nobody who has none."""
        for key in KEYS:
            before = replace(MemoryBuilder(key).chat(2).memory(), due_at=NOW)
            stored = await store.commit(Memory(key=key), before)
            if key.tenant == "a":
                await store.commit(stored, replace(stored, needs_caller=True))
        assert await store.claim(NOW, 9, "me", 60, callers=False) == (KEYS[1],)

    async def test_whose_records_are_pruned(self, store: Store, url: str, prefix: str) -> None:
        now = NOW + max(AUDIT_KEPT_S, RECEIPTS_KEPT_S) + 1
        for tenant, at in (("a", NOW), ("b", now)):
            await store.add_audit([AuditRecord(at, "who", tenant, "what")])
            await store.add_receipt(RECEIPT._replace(id=tenant, tenant=tenant, at=at))
        theirs = read_tenant(url, prefix, "b")
        assert len(read_tenant(url, prefix, "a")) == len(theirs) == 2
        await store.prune(now)
        assert read_tenant(url, prefix, "a") == {}
        assert read_tenant(url, prefix, "b") == theirs

    async def test_whose_threads_a_list_walks_over(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many threads another tenant has, no page comes back empty for them."""
        monkeypatch.setattr(listing, "MAX_WALKED_ROWS", 2)
        for key in [KEYS[0], *(KEYS[1]._replace(thread=str(number)) for number in range(3))]:
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
        page = await store.find_threads(ThreadSelection("a", order="recent"))
        assert [thread.key for thread in page.threads] == [KEYS[0]]

    async def test_whose_resources_are_listed(self, store: Store) -> None:
        for key in KEYS:
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
        for key in KEYS:
            found = await store.resources(key.tenant)
            assert [(one.tenant, one.resource) for one in found] == [key[:2]]
