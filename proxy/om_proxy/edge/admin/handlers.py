"""Answer each route of the admin API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from om_proxy.apis.api import Request, Unreadable
from om_proxy.apis.registry import CHAT
from om_proxy.edge.admin.answers import (
    ContextAnswer,
    EntryProvenance,
    ForgetReceipt,
    GenerationList,
    Notes,
    ThreadList,
    ThreadStatus,
)
from om_proxy.edge.admin.descriptions import (
    describe_entry_view,
    describe_forgotten,
    describe_generations,
    describe_line,
    describe_notes,
    describe_preview,
    describe_status,
    describe_unchanged,
)
from om_proxy.edge.admin.requests import (
    AdminCall,
    EntryQuery,
    NotesQuery,
    TextQuery,
    ThreadListQuery,
    TitleChange,
    parse_cursor,
    read_caller,
    write_cursor,
)
from om_proxy.edge.exchange import require_resource
from om_proxy.errors import BadRequest
from om_proxy.identity.callers import Caller
from om_proxy.identity.naming import normalize_name
from om_proxy.memory.model import Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.reasons import Reason
from om_proxy.thread_admin import ThreadAdmin
from om_proxy.thread_reader import ThreadReader
from om_proxy.turns.preview import ContextPreviewer
from om_proxy.turns.turn import TakenForSideRequest


def normalize_stored_name(name: str) -> str:
    """Return the normalized name. An invalid name is looked up unchanged, and is not found."""
    return normalize_name(name) or name


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    """One method for each route. It returns the route's answer, or raises an OmError."""

    thread_admin: ThreadAdmin
    thread_reader: ThreadReader
    previewer: ContextPreviewer
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

    async def show_notes(self, call: AdminCall) -> Notes:
        query = call.query
        assert isinstance(query, NotesQuery)
        view = await self.thread_reader.read_notes(call.thread_key, query.generation)
        return describe_notes(view)

    async def list_generations(self, call: AdminCall) -> GenerationList:
        memory, generations = await self.thread_reader.list_generations(call.thread_key)
        return describe_generations(memory, generations)

    async def show_entry(self, call: AdminCall) -> EntryProvenance:
        query = call.query
        assert isinstance(query, EntryQuery)
        assert call.entry_id is not None  # the route's path names an entry
        view = await self.thread_reader.read_entry(
            call.thread_key, call.entry_id, is_chunk=query.chunk, with_messages=query.messages
        )
        return describe_entry_view(view, with_messages=query.messages)

    async def preview_request(self, call: AdminCall) -> ContextAnswer:
        """Preview a whole chat request."""
        try:
            request = CHAT.parse_request(call.body)
        except Unreadable as exc:
            raise BadRequest("the body is not a chat request that can be read") from exc
        return await self._preview(call, request, read_caller(call))

    async def preview_text(self, call: AdminCall) -> ContextAnswer:
        """Preview the request of a client that sends nothing but its newest message."""
        query = call.query
        assert isinstance(query, TextQuery)
        memory = await self.thread_admin.load_memory(call.thread_key)
        messages = [{"role": "user", "content": query.text}]
        body = orjson.dumps({"model": memory.model, "messages": messages})
        caller = replace(read_caller(call), history="new")
        return await self._preview(call, CHAT.parse_request(body), caller)

    async def _preview(self, call: AdminCall, request: Request, caller: Caller) -> ContextAnswer:
        config = call.config
        if config.is_side_request(request):
            return describe_unchanged(request, Reason.SIDE_REQUEST)
        if not request.messages:
            return describe_unchanged(request, Reason.NO_MESSAGES)
        upstream = config.require_upstream(request.model)
        context = config.policy.context_of_request(
            request.model, call.thread_key.resource, upstream, ()
        )
        if not context.effective.memory.enabled:
            return describe_unchanged(request, Reason.DISABLED)
        require_resource(caller, context)
        hints = Hints(history=caller.history)
        try:
            found = await self.previewer.preview(caller, request, context, hints)
        except TakenForSideRequest:
            return describe_unchanged(request, Reason.SIDE_REQUEST)
        return describe_preview(found)

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
