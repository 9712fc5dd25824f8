"""The route about the audit: who changed memories, and who read their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.management.api.answers import UnixSeconds, parse_cursor, write_cursor
from om_proxy.management.api.requests import AdminCall, PageCursor, PageLimit, Query
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.services import AdminServices


class AuditQuery(Query, frozen=True):
    """The query of the audit."""

    limit: PageLimit = 100
    cursor: PageCursor = None


class AuditLine(Struct, frozen=True, kw_only=True):
    """One change, or the first reading of a thread's text in an hour."""

    id: Annotated[int, Meta(description="Grows with each record.")]
    at: UnixSeconds
    who: Annotated[
        str,
        Meta(
            description="`admin`, `cli`, `local`, `retention`, or a keyed digest of the caller's credential."
        ),
    ]
    tenant: str
    what: Annotated[str, Meta(description="The operationId of the route.")]
    label: Annotated[
        str, Meta(description="Of the thread, or the resource_label; empty for a tenant.")
    ]
    counts: Annotated[Mapping[str, int], Meta(description="How much was changed, if it counts.")]


class AuditPage(Struct, frozen=True, kw_only=True):
    """A page of the audit, the newest first."""

    items: list[AuditLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


async def list_audit(services: AdminServices, call: AdminCall) -> AuditPage:
    query = call.query
    assert isinstance(query, AuditQuery)
    listed = ("audit", call.tenant)
    before = parse_cursor(query.cursor, listed, int)
    found = await services.audit_log.list_records(call.tenant, before, query.limit + 1)
    page = found[: query.limit]
    return AuditPage(
        items=[AuditLine(**record._asdict()) for record in page],
        cursor=write_cursor(listed, page[-1].id) if len(found) > query.limit else None,
    )


ROUTES = (
    AdminRoute(
        method="GET",
        path="/audit",
        summary=(
            "List who changed memories, and who read their text, of the last 90 days; the newest "
            "first. No record holds a name of a thread, a text or a key."
        ),
        handler=list_audit,
        query=AuditQuery,
        answer=AuditPage,
    ),
)
