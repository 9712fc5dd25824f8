"""The route that exports what is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.errors import OmError
from om_proxy.management.api.answers import StreamedAnswer
from om_proxy.management.api.requests import AdminCall, Query, normalize_stored_name
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.services import AdminServices
from om_proxy.management.memory_export import Record
from om_proxy.memory.model import Key
from om_proxy.wire.server.capacity.work_queues import EXPORT

EXPORT_TYPE = "application/x-ndjson"
MIN_PIECE_BYTES = 32 * 2**10  # of one piece of the answer, but the last


class ExportQuery(Query, frozen=True):
    """The query of an export."""

    thread: Annotated[
        str | None,
        Meta(description="Only this thread; without `resource`, the thread is its own."),
    ] = None
    resource: Annotated[
        str | None, Meta(description="Only this resource: its threads and their shared log.")
    ] = None


class ExportRecord(Struct, frozen=True, kw_only=True):
    """One line of an export; docs/contributing/seeing.md lists the fields of each kind."""

    om: Annotated[
        Literal[
            "export", "thread", "message", "observation", "generation", "reflection", "pin", "end"
        ],
        Meta(description="The kind of record. Without `end` as the last one, a part is missing."),
    ]


async def export_memory(services: AdminServices, call: AdminCall) -> StreamedAnswer:
    query = call.query
    assert isinstance(query, ExportQuery)
    exporter = services.exporter
    key = _find_scope(call.named_tenant, query)
    records = (
        exporter.export_thread(key)
        if key.thread
        else exporter.export_all(key.tenant, key.resource or None)
    )
    first = await anext(records)  # what is wrong is said before the answer begins
    return StreamedAnswer(EXPORT_TYPE.encode(), _join_lines(first, records), EXPORT, about=key)


def _find_scope(tenant: str, query: ExportQuery) -> Key:
    """Return the key of the thread, of the resource's shared log, or one without names."""
    thread = normalize_stored_name(query.thread or "")
    return Key(tenant, normalize_stored_name(query.resource or "") or thread, thread)


async def _join_lines(first: Record, records: AsyncIterator[Record]) -> AsyncGenerator[bytes, None]:
    """Yield the lines, many at a time. Before an error, yield what was read."""
    piece = bytearray(_encode_line(first))
    try:
        async for record in records:
            piece += _encode_line(record)
            if len(piece) >= MIN_PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    except OmError:
        yield bytes(piece)
        raise
    yield bytes(piece)


def _encode_line(record: Record) -> bytes:
    return msgspec.json.encode(record) + b"\n"


ROUTES = (
    AdminRoute(
        method="GET",
        path="/export",
        summary=(
            "Export everything stored of a thread, a resource or a tenant, one JSON record a line. "
            "It holds no secret of the store."
        ),
        handler=export_memory,
        query=ExportQuery,
        answer=ExportRecord,
        is_text=True,
        streams=EXPORT_TYPE,
    ),
)
