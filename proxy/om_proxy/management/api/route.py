"""One route of the admin API, as a row of its table, and its answer, which leaves a record in the
audit. This is the one place for both, so that no route can forget it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.management.api.admin_call import AnyCall
from om_proxy.management.api.answers import StreamedAnswer, can_show_text
from om_proxy.management.api.requests import Query, ThreadQuery
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.wire.server.capacity.work_queues import PAGE, WorkKind

ADMIN_ROOT = "/om/v1"
OPENAPI_PATH = "/openapi.json"

Method = Literal["GET", "POST", "PATCH", "DELETE"]


Answer: TypeAlias = Struct | StreamedAnswer
# it returns the route's answer, or raises an OmError
Handler = Callable[[AnyCall], Awaitable[Answer]]


# the count of a change that the store broke off: a part of it may be done
UNFINISHED = "unfinished"


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
    # a user's token opens it, though its path names nothing: it shows the query's `resource` alone
    is_for_one_resource: bool = False
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


async def answer_route(route: AdminRoute, call: AnyCall) -> Answer:
    """Return the route's answer. A change is recorded once it has succeeded; one that the store
    broke off too, since a part of it may be done. What only reads is recorded once an hour, if it
    sends text: HEAD sends none."""
    audit_log = call.services.audit_log
    who, key = call.visitor.who, _find_audited_key(call)
    if not route.changes_memory:
        answer = await route.handler(call)
        if route.shows_text and call.visitor.may_read_text and call.wants_body:
            read_key = answer.about if isinstance(answer, StreamedAnswer) and answer.about else key
            await audit_log.record_reading(who, route.name, read_key)
        return answer
    try:
        answer = await route.handler(call)
    except Conflict:  # nothing is changed
        raise
    except StorageError:
        await audit_log.record(who, route.name, key, {UNFINISHED: 1})
        raise
    counts = route.count_changes(answer) if route.count_changes else None
    await audit_log.record(who, route.name, key, counts)
    return answer


def _find_audited_key(call: AnyCall) -> Key:
    return call.key or Key(call.tenant or "", "", RESOURCE_THREAD)
