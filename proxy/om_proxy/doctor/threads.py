"""Find the threads whose memory work fails, each with its cause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from om_proxy.doctor.causes import explain_cause
from om_proxy.storage.base import Store
from om_proxy.storage.listing import ThreadInfo


@dataclass(frozen=True, slots=True)
class FailingThread:
    """A thread whose memory work fails. `is_revived`: this command has just revived it."""

    info: ThreadInfo
    is_revived: bool

    @property
    def line(self) -> str:
        info, key = self.info, self.info.key
        if not info.failures:
            return f"{key.resource} / {key.thread}: {explain_cause(info.cause)}; it is tried again once there are more notes"
        state = "parked" if info.parked else "in back-off"
        revived = ", revived" if self.is_revived else ""
        return f"{key.resource} / {key.thread}: {info.failures} failures in a row, {state}{revived}: {explain_cause(info.cause)}"


async def find_failing_threads(
    store: Store, *, revive: bool, tenant: str | None = None, resource: str | None = None
) -> list[FailingThread]:
    """Find the threads, the parked ones first. With `revive`, clear their failures, so that their
    work is due again."""
    failing = []
    async for info in _read_threads(store, tenant, resource):
        if info.failures or info.cause:
            is_revived = revive and bool(info.failures) and await store.park(info.key, False)
            failing.append(FailingThread(info, is_revived))
    return sorted(failing, key=lambda thread: (-thread.info.parked, -thread.info.failures))


async def _read_threads(
    store: Store, tenant: str | None, resource: str | None
) -> AsyncIterator[ThreadInfo]:
    cursor = None
    while page := await store.threads(tenant, resource, cursor):
        for info in page:
            yield info
        cursor = page[-1].key
