"""Answer each route of the admin API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from om_proxy.edge.admin.answers import (
    ForgetReceipt,
    ThreadList,
    ThreadStatus,
    describe_forgotten,
    describe_line,
    describe_status,
)
from om_proxy.edge.admin.requests import (
    AdminCall,
    ThreadListQuery,
    TitleChange,
    parse_cursor,
    write_cursor,
)
from om_proxy.identity.naming import normalize_name
from om_proxy.memory.model import Memory
from om_proxy.thread_admin import ThreadAdmin


def normalize_stored_name(name: str) -> str:
    """Return the normalized name. An invalid name is looked up unchanged, and is not found."""
    return normalize_name(name) or name


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    """One method for each route. It returns the route's answer, or raises an OmError."""

    thread_admin: ThreadAdmin
    secret: bytes
    clock: Callable[[], float]

    async def list_threads(self, call: AdminCall) -> ThreadList:
        query = call.query
        assert isinstance(query, ThreadListQuery)
        resource = None if query.resource is None else normalize_stored_name(query.resource)
        threads = await self.thread_admin.list_threads(
            call.tenant, resource, parse_cursor(query.cursor, call.tenant), query.limit
        )
        lines = [describe_line(info, self.secret) for info in threads]
        is_full = len(threads) == query.limit
        return ThreadList(
            items=lines, threads=lines, cursor=write_cursor(threads[-1].key) if is_full else None
        )

    async def show_thread(self, call: AdminCall) -> ThreadStatus:
        return self._describe(await self.thread_admin.load_memory(call.thread_key))

    async def set_title(self, call: AdminCall) -> ThreadStatus:
        assert isinstance(call.body, TitleChange)
        return self._describe(
            await self.thread_admin.set_title(
                call.thread_key, call.body.title, expected_version=call.expected_version
            )
        )

    async def set_thresholds(self, call: AdminCall) -> ThreadStatus:
        changes: dict[str, Any] = call.body
        return self._describe(
            await self.thread_admin.set_thresholds(
                call.thread_key, changes, expected_version=call.expected_version
            )
        )

    async def undo(self, call: AdminCall) -> ThreadStatus:
        return self._describe(
            await self.thread_admin.undo_reflection(
                call.thread_key, expected_version=call.expected_version
            )
        )

    async def forget_thread(self, call: AdminCall) -> ForgetReceipt:
        key = call.thread_key
        forgotten = await self.thread_admin.forget(key, expected_version=call.expected_version)
        return describe_forgotten(key, forgotten, self.clock(), self.secret)

    def _describe(self, memory: Memory) -> ThreadStatus:
        limits = self.thread_admin.effective_settings(memory).limits
        return describe_status(memory, limits, self.secret)
