"""The threads whose memory work fails, each with its cause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from om_proxy.doctor.causes import explain_cause
from om_proxy.storage.base import Store, ThreadInfo


@dataclass(frozen=True, slots=True)
class Troubled:
    """A thread in trouble, and whether it was given another try just now."""

    info: ThreadInfo
    is_revived: bool

    @property
    def line(self) -> str:
        info, key = self.info, self.info.key
        if not info.failures:
            return f"{key.resource} / {key.thread}: {explain_cause(info.cause)}; it is tried again when there are more notes"
        state = "parked" if info.parked else "in back-off"
        revived = ", revived" if self.is_revived else ""
        return f"{key.resource} / {key.thread}: {info.failures} failures in a row, {state}{revived}: {explain_cause(info.cause)}"


async def find_troubled(store: Store, *, revive: bool) -> list[Troubled]:
    """Every thread in trouble, the parked ones first; with `revive` they are due again with a clean
    slate."""
    found = []
    async for info in _all_threads(store):
        if info.failures or info.cause:
            is_revived = revive and bool(info.failures) and await store.park(info.key, False)
            found.append(Troubled(info, is_revived))
    return sorted(found, key=lambda troubled: (-troubled.info.parked, -troubled.info.failures))


async def _all_threads(store: Store) -> AsyncIterator[ThreadInfo]:
    cursor = None
    while page := await store.threads(None, cursor=cursor):
        for info in page:
            yield info
        cursor = page[-1].key
