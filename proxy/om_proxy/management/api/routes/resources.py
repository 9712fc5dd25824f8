"""The routes about resources: whose threads they are, and the log that these may share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.common.errors import NotFound
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.answers import parse_cursor, write_cursor
from om_proxy.management.api.requests import (
    PageCursor,
    PageLimit,
    Query,
    ResourceQuery,
)
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.stats import LedgerFigures, describe_sums
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.values.listing import ResourceInfo, ThreadInfo
from om_proxy.storage.values.records import NAMELESS_RESOURCE, LedgerQuery, LedgerSum


class ResourceListQuery(Query, frozen=True):
    limit: PageLimit = 100
    cursor: PageCursor = None


class SharedLogStatus(Struct, frozen=True, kw_only=True):
    """The state of the log that threads of a resource share."""

    generation: Annotated[int, Meta(description="Grows when the notes are rewritten.")]
    tokens: Annotated[int, Meta(description="Tokens of its notes.")]
    failures: Annotated[int, Meta(description="Failures of its upkeep in a row.")]
    parked: Annotated[
        bool, Meta(description="Given up, until `POST …/revive` or `om-proxy doctor --revive`.")
    ]
    failure_cause: Annotated[
        str | None, Meta(description="Of the last failure; our words, never a server's.")
    ]


class ResourceLine(Struct, frozen=True, kw_only=True):
    """One resource."""

    tenant: str
    resource: str
    resource_label: Annotated[str, Meta(description="The resource's name in the log.")]
    threads: Annotated[int, Meta(description="Its threads, counted up to 1 000.")]
    has_more_threads: Annotated[bool, Meta(description="It has more threads than were counted.")]
    shared_log: Annotated[
        SharedLogStatus | None, Meta(description="`null`: its threads share no log.")
    ]
    ledger: Annotated[LedgerFigures, Meta(description="Of the last 400 days.")]


class ResourceList(Struct, frozen=True, kw_only=True):
    """A page of a list of resources, by name."""

    items: list[ResourceLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


def describe_resource(info: ResourceInfo, sums: Sequence[LedgerSum], secret: bytes) -> ResourceLine:
    key = Key(info.tenant, info.resource, RESOURCE_THREAD)
    return ResourceLine(
        tenant=info.tenant,
        resource=info.resource,
        resource_label=label_thread(secret, key),
        threads=info.threads,
        has_more_threads=info.has_more_threads,
        shared_log=None if info.shared_log is None else _describe_log(info.shared_log),
        ledger=describe_sums(sums),
    )


def _describe_log(log: ThreadInfo) -> SharedLogStatus:
    return SharedLogStatus(
        generation=log.generation,
        tokens=log.log_tokens,
        failures=log.failures,
        parked=log.parked,
        failure_cause=log.cause or None,
    )


async def list_resources(call: AdminCall[ResourceListQuery, None]) -> ResourceList:
    query = call.query
    tenant = call.named_tenant
    listed = ("resources", tenant)
    after = parse_cursor(query.cursor, listed, str)
    found = await call.services.store.resources(tenant, after, query.limit + 1)
    page = found[: query.limit]
    sums = (
        await _sum_resources(call.services.ledger_writer, tenant, after, len(page)) if page else {}
    )
    return ResourceList(
        items=[
            describe_resource(info, sums.get(info.resource, ()), call.services.secret)
            for info in page
        ],
        cursor=write_cursor(listed, page[-1].resource) if len(found) > query.limit else None,
    )


async def _sum_resources(
    ledger_writer: LedgerWriter, tenant: str, after: str | None, limit: int
) -> Mapping[str, Sequence[LedgerSum]]:
    """Return the sums of the first `limit` resources after the name `after`, by name, over all
    days."""
    cursor = (tenant, NAMELESS_RESOURCE if after is None else after)
    by_name: dict[str, list[LedgerSum]] = {}
    query = LedgerQuery(tenant, "resource", after=cursor, limit=limit)
    for found in await ledger_writer.sum_up(query):
        by_name.setdefault(str(found.group[1]), []).append(found)
    return by_name


async def show_resource(call: AdminCall[ResourceQuery, None]) -> ResourceLine:
    key = call.named_key
    found = await call.services.store.resource(key.tenant, key.resource)
    if found is None:
        raise NotFound("there is no memory of this resource")
    query = LedgerQuery(key.tenant, "resource", resource=key.resource)
    sums = await call.services.ledger_writer.sum_up(query)
    return describe_resource(found, sums, call.services.secret)


ROUTES = (
    AdminRoute(
        method="GET",
        path="/resources",
        summary="List a tenant's resources by name.",
        handler=list_resources,
        query=ResourceListQuery,
        answer=ResourceList,
    ),
    AdminRoute(
        method="GET",
        path="/resources/{resource}",
        summary="Show a resource: its number of threads, the log that they may share, and its ledger.",
        handler=show_resource,
        query=ResourceQuery,
        answer=ResourceLine,
    ),
)
