"""Find out when a thread was forgotten, also by another process: the store keeps an event of each
forgotten thread, written in the transaction that forgot it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from om_proxy.memory.events.parts import Forgotten
from om_proxy.memory.model import Key
from om_proxy.storage.base import Store

EVENTS_PER_PAGE = 1_000


class ForgottenThreads:
    """The newest forgetting of each thread, as far as the store's events reach back. A second look
    reads only what has been written since the first."""

    def __init__(self, store: Store, label: Callable[[Key], str]) -> None:
        """`label`: of a thread in the event that tells of its forgetting."""
        self._store = store
        self._label = label
        self._cursors: dict[str, int] = {}  # by tenant
        self._times: dict[str, dict[str, float]] = defaultdict(dict)  # by tenant and label

    async def find_time(self, key: Key) -> float | None:
        """Return when the thread was last forgotten, in unix seconds of the store; None: never, or
        too long ago."""
        await self._read_new_events(key.tenant)
        return self._times[key.tenant].get(self._label(key))

    async def _read_new_events(self, tenant: str) -> None:
        while True:
            cursor = self._cursors.get(tenant)
            page = await self._store.events(tenant, None, cursor, EVENTS_PER_PAGE)
            for event in page.events:
                if event.type == Forgotten.TYPE:
                    label = msgspec.json.decode(event.data, type=_Label).label
                    self._times[tenant][label] = event.at
            self._cursors[tenant] = page.cursor
            if len(page.events) < EVENTS_PER_PAGE:
                return


class _Label(msgspec.Struct):
    label: str
