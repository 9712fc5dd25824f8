"""Whose credential has been verified, and who shares the slots of one tenant because it is not."""

from __future__ import annotations

from om_proxy.common.errors import StorageError
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.engine.policy import Policy
from om_proxy.management.api.access import KnownTenants
from om_proxy.memory.model import Memory
from om_proxy.settings.config import parse
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.listing import ThreadInfo
from om_proxy.wire.server.capacity.work_queues import UNKNOWN_KEYS
from tests.storage.memory_builder import KEY, MemoryBuilder

UPSTREAM = 'upstream: [{name: m, base_url: "http://127.0.0.1:9/v1"}]\n'


def make_config(more: str = "") -> EdgeConfig:
    settings = parse(UPSTREAM + more)
    return EdgeConfig.from_settings(settings, Policy(settings))


class Away:
    async def threads(self, *_: object, **__: object) -> tuple[ThreadInfo, ...]:
        raise StorageError("gone")


async def test_a_key_is_known_once_something_is_stored() -> None:
    """It stays known. All unknown keys have one share together."""
    store = await SqliteStore.open(":memory:")
    tenants, config = KnownTenants(store), make_config()
    assert not await tenants.is_known(KEY.tenant, config)
    shares = [await tenants.find_share(name, config, is_admin=False) for name in ("a", KEY.tenant)]
    assert shares == [UNKNOWN_KEYS] * 2
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    assert await tenants.find_share(KEY.tenant, config, is_admin=False) == KEY.tenant
    await store.close()
    assert await tenants.is_known(KEY.tenant, config)


async def test_others_are_known_without_a_thread() -> None:
    """Nothing is asked of the store."""
    tenants = KnownTenants(Away())  # type: ignore[arg-type] # what it needs of a store
    assert await tenants.is_known(LOCAL_TENANT, make_config())
    assert await tenants.is_known("ada", make_config("auth: {keys: [{key: sk-1, tenant: ada}]}"))
    assert await tenants.find_share("ada", make_config(), is_admin=True) is None
    # the work itself tells that the store is away
    assert await tenants.find_share("ada", make_config(), is_admin=False) == UNKNOWN_KEYS
