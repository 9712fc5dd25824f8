"""The table of the admin API's routes. The router, the checks of queries and bodies, the OpenAPI
document, its page in docs/reference and the test of permissions are all made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from om_proxy.edge.admin.answers import (
    ContextAnswer,
    EntryProvenance,
    ForgetReceipt,
    GenerationList,
    Notes,
    ThreadList,
    ThreadStatus,
)
from om_proxy.edge.admin.handlers import AdminHandlers
from om_proxy.edge.admin.requests import (
    AdminCall,
    ChatRequest,
    EntryQuery,
    NoChange,
    NotesQuery,
    Query,
    TextQuery,
    ThreadListQuery,
    ThreadQuery,
    TitleChange,
)

ADMIN_ROOT = "/om/v1"
OPENAPI_PATH = "/openapi.json"

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Handler = Callable[[AdminHandlers, AdminCall], Awaitable[Struct]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """One method of one path below `/om/v1`."""

    method: Method
    path: str  # `{thread}` stands for a percent-encoded name
    summary: str
    handler: Handler
    answer: type[Struct]
    query: type[Query] = ThreadQuery
    body: Any = None  # the type of the JSON body; None: no body is read
    codes: tuple[str, ...] = ()  # of errors that this route alone has
    is_change: bool | None = None  # None: every method but GET changes something

    @property
    def changes_memory(self) -> bool:
        return self.method != "GET" if self.is_change is None else self.is_change

    @property
    def names_thread(self) -> bool:
        return "{thread}" in self.path


ADMIN_ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads",
        summary="List threads in the order of their names.",
        handler=AdminHandlers.list_threads,
        query=ThreadListQuery,
        answer=ThreadList,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}",
        summary="Show the state of a thread's memory: its windows, settings and failures.",
        handler=AdminHandlers.show_thread,
        answer=ThreadStatus,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/context",
        summary=(
            "Preview what goes upstream for a client that sends one new message and nothing else. "
            "Nothing is stored, and no model is called."
        ),
        handler=AdminHandlers.preview_text,
        query=TextQuery,
        answer=ContextAnswer,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/context",
        summary=(
            "Preview what goes upstream for a chat request, and why. The headers X-OM-History, "
            "X-OM-Scope and X-OM-Timezone count as they do there. Nothing is stored, and no model "
            "is called."
        ),
        handler=AdminHandlers.preview_request,
        body=ChatRequest,
        answer=ContextAnswer,
        is_change=False,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/observations",
        summary=(
            "Show a thread's notes: the active log, the chunks that wait to become active, and the "
            "reflection that waits to replace notes."
        ),
        handler=AdminHandlers.show_notes,
        query=NotesQuery,
        answer=Notes,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/observations/{id}",
        summary=(
            "Show where an entry comes from: the messages it covers and, of a reflection, the notes "
            "it was made from."
        ),
        handler=AdminHandlers.show_entry,
        query=EntryQuery,
        answer=EntryProvenance,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/generations",
        summary="List the generations of a thread's notes that are stored, the newest first.",
        handler=AdminHandlers.list_generations,
        answer=GenerationList,
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}",
        summary="Pin a thread's title, or leave titles to the observer again.",
        handler=AdminHandlers.set_title,
        body=TitleChange,
        answer=ThreadStatus,
        codes=("om_bad_title",),
    ),
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}",
        summary="Forget a thread: its messages and all notes about it, also in a shared log.",
        handler=AdminHandlers.forget_thread,
        answer=ForgetReceipt,
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/settings",
        summary=(
            "Set the thread's own thresholds, as they stand under `memory` in the configuration; "
            "`null` removes one. `block_timeout` is at most 2 minutes, or the configuration's."
        ),
        handler=AdminHandlers.set_thresholds,
        body=dict[str, Any],
        answer=ThreadStatus,
        codes=("om_bad_setting",),
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/undo",
        summary="Replace the newest reflection by the notes that it was made from.",
        handler=AdminHandlers.undo,
        body=NoChange,
        answer=ThreadStatus,
        codes=("om_nothing_to_undo",),
    ),
)
