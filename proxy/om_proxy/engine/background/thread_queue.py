"""Order the threads that wait for a slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from om_proxy.memory.model import Key

MAX_WAITING_THREADS = 1_000


class ThreadQueue:
    """A queue that serves the tenant with the fewest slots. Tenants with equally many slots take
    turns. Within a tenant, the first thread to come is served first.

    A full queue drops the newest thread of the tenant with the most threads in it: a flood crowds
    out only itself.
    """

    def __init__(self, max_threads: int = MAX_WAITING_THREADS) -> None:
        self._max_threads = max_threads
        # every tenant in it has threads
        self._tenants: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()
        self._last_served = ""  # a tenant

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    @property
    def free_places(self) -> int:
        return self._max_threads - len(self)

    def join(self, key: Key) -> Key | None:
        """Put the thread after its tenant's others; a thread that waits already keeps its place.
        Return the thread that was dropped for it."""
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
            self._tenants,
            key=lambda candidate: (slots.get(candidate, 0), candidate == self._last_served),
        )
        self._tenants.move_to_end(tenant)
        key = next(iter(self._tenants[tenant]))
        self.leave(key)
        return key

    def has_other_tenant(self, tenant: str) -> bool:
        """Return whether any other tenant waits."""
        return len(self._tenants) > (tenant in self._tenants)
