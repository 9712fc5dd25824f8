"""Tell tenants whose credential has been verified from those that anybody can make up."""

from __future__ import annotations

from dataclasses import dataclass, field

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import NotFound, StorageError
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.storage.base import Store
from om_proxy.wire.server.capacity.work_kinds import UNKNOWN_KEYS, Share

MAX_CACHED_TENANTS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class KnownTenants:
    """A key of `auth.keys` is known, and a program of this machine. Any other key is known once a
    model server has accepted it, so that a thread is stored."""

    store: Store
    _known: BoundedCache[str, bool] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_CACHED_TENANTS)
    )

    async def is_known(self, tenant: str, config: EdgeConfig) -> bool:
        """Return whether the tenant is known. A tenant that has been known stays so in this
        process. Raise StorageError."""
        if config.identity.keys or tenant == LOCAL_TENANT or self._known.get(tenant):
            return True
        if not await self.store.threads(tenant, limit=1):
            return False
        self._known.put(tenant, True)
        return True

    async def require_known(self, tenant: str, config: EdgeConfig) -> None:
        """Raise NotFound for an unknown tenant."""
        if not await self.is_known(tenant, config):
            raise NotFound(
                "no model server has accepted this key here yet: send one chat request of a "
                "thread with it first, or ask with the admin token"
            )

    async def find_share(self, tenant: str | None, config: EdgeConfig, *, is_admin: bool) -> Share:
        """Return whose slots a request takes (wire/server/capacity/work_queues.py)."""
        if is_admin or tenant is None:
            return None
        try:
            is_known = await self.is_known(tenant, config)
        except StorageError:  # the work itself says so
            is_known = False
        return tenant if is_known else UNKNOWN_KEYS
