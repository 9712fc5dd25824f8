"""The part of the Store protocol that lists threads and resources."""

from __future__ import annotations

from typing import Protocol

from om_proxy.memory.model import Key
from om_proxy.storage.values.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)


class ThreadLists(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        """Return threads in key order, beginning after `cursor`, without shared logs.
        `tenant=None`: the threads of all tenants (the operator's view)."""

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        """Return a page of the threads that a person looks for, without shared logs, beginning
        after the place `after`. The time does not grow with the number of threads. `recent` order:
        the latest `active_at` first. A prefix is compared by code points, as it is written. No title
        of an encrypted thread begins with anything.
        """

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        """Return threads of all tenants with `active_at < before`, the longest idle first, without
        shared logs, beginning after the place `after`. The time does not grow with the number of
        threads."""

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        """Return the tenant's resources by name, beginning after the resource `after`."""

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        """Return one resource; None if nothing of it is stored."""
