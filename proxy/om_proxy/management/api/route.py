"""One route of the admin API, as a row of its table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from om_proxy.management.api.answers import StreamedAnswer, can_show_text
from om_proxy.management.api.requests import AdminCall, Query, ThreadQuery
from om_proxy.management.api.services import AdminServices
from om_proxy.wire.server.capacity.work_kinds import PAGE, WorkKind

ADMIN_ROOT = "/om/v1"
OPENAPI_PATH = "/openapi.json"

Method = Literal["GET", "POST", "PATCH", "DELETE"]


Answer: TypeAlias = Struct | StreamedAnswer
# it returns the route's answer, or raises an OmError
Handler = Callable[[AdminServices, AdminCall], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """One method of one path below `/om/v1`."""

    method: Method
    path: str  # `{thread}` stands for a percent-encoded name
    summary: str
    handler: Handler
    answer: type[Struct]
    streams: str | None = None  # the content type of an answer that comes piece by piece
    query: type[Query] = ThreadQuery
    body: Any = None  # the type of the JSON body; None: no body is read
    codes: tuple[str, ...] = ()  # of errors that this route alone has
    work: WorkKind = PAGE  # whose slot it takes
    may_go_on: bool = False  # its work may end after the answer, which is then 202
    is_text: bool = False  # it answers nothing but text: not for who may read none
    # it shows text in a field that its handler empties, without the mark HOLDS_TEXT
    has_unmarked_text: bool = False
    is_change: bool | None = None  # None: every method but GET changes something
    # of a change: the counts for the audit
    count_changes: Callable[[Any], Mapping[str, int]] | None = None

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document, and the name in the audit."""
        return self.handler.__name__

    @property
    def shows_text(self) -> bool:
        """Whether it shows words of a conversation or a note, where the caller may read them."""
        return self.is_text or self.has_unmarked_text or can_show_text(self.answer)

    @property
    def changes_memory(self) -> bool:
        return self.method != "GET" if self.is_change is None else self.is_change

    @property
    def names_thread(self) -> bool:
        return "{thread}" in self.path
