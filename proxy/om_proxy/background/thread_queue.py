"""Orders the threads that wait for a slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from om_proxy.memory.model import Key

MAX_WAITING_THREADS = 1_000


class ThreadQueue:
    """Serves the tenant that holds the fewest slots; of equals, each in turn; within a tenant,
    first come, first served.

    A full queue drops the newest thread of the tenant with the most threads in it: a flood crowds
    out only itself.
    """

    def __init__(self, max_threads: int = MAX_WAITING_THREADS) -> None:
        self._max_threads = max_threads
        # no tenant without threads
        self._tenants: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()
        self._last_served = ""  # a tenant

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    @property
    def free_places(self) -> int:
        return self._max_threads - len(self)

    def join(self, key: Key) -> Key | None:
        """Put the thread behind its tenant's others; one that waits already keeps its place. Return
        the thread that was dropped for it."""
        self._tenants.setdefault(key.tenant, OrderedDict()).setdefault(key)
        if len(self) > self._max_threads:
            longest = max(reversed(self._tenants.values()), key=len)
            dropped = next(reversed(longest))
            self.leave(dropped)
            return dropped
        return None

    def leave(self, key: Key) -> None:
        if threads := self._tenants.get(key.tenant):
            threads.pop(key, None)
            if not threads:
                del self._tenants[key.tenant]

    def take_next(self, slots: Mapping[str, int]) -> Key | None:
        """Take the next thread out. `slots`: how many each tenant holds; a tenant without any may
        be missing."""
        if not self._tenants:
            return None
        self._last_served = tenant = min(
            self._tenants, key=lambda t: (slots.get(t, 0), t == self._last_served)
        )
        self._tenants.move_to_end(tenant)
        key = next(iter(self._tenants[tenant]))
        self.leave(key)
        return key

    def has_other_tenant(self, tenant: str) -> bool:
        """Whether any other tenant waits."""
        return len(self._tenants) > (tenant in self._tenants)
