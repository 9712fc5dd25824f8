"""The routes that export what is stored, and import: an export of any store, or the messages of a
conversation that was held elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from io import BytesIO
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from om_proxy.common.errors import BadRequest, OmError, UsageError
from om_proxy.common.off_loop import MANY_BYTES, run_off_loop
from om_proxy.edge.exchange import require_resource
from om_proxy.engine.turns.committing import accept_any
from om_proxy.management.api.admin_call import AdminCall, AnyCall
from om_proxy.management.api.answers import StreamedAnswer
from om_proxy.management.api.requests import (
    ClientRequest,
    ExportLines,
    Query,
    RequestQuery,
    normalize_stored_name,
)
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.context import read_caller, read_request
from om_proxy.management.memory_export import Record
from om_proxy.management.moving.importing import ImportOptions, import_memory
from om_proxy.management.thread_admin import check_version
from om_proxy.memory.model import Key, Memory
from om_proxy.wire.apis.message_times import list_unit_times, take_times
from om_proxy.wire.server.capacity.work_queues import EXPORT, IMPORT

EXPORT_TYPE = "application/x-ndjson"
MIN_PIECE_BYTES = 32 * 2**10  # of one piece of the answer, but the last


class ExportQuery(Query, frozen=True):
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


async def export_memory(call: AdminCall[ExportQuery, None]) -> StreamedAnswer:
    query = call.query
    exporter = call.services.exporter
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


class ImportQuery(Query, frozen=True):
    existing: Annotated[
        Literal["refuse", "keep"],
        Meta(
            description=(
                "A thread that is stored in another state: `refuse` the whole import, or `keep` it "
                "as it is and import the others."
            )
        ),
    ] = "refuse"
    dry_run: Annotated[bool, Meta(description="Say what would be imported, and write nothing.")] = (
        False
    )


class ImportAnswer(Struct, frozen=True, kw_only=True):
    """The counts of an import or, in a dry run, of what it would import."""

    threads: int
    messages: int
    present_threads: Annotated[int, Meta(description="Stored in the same state already.")]
    kept_threads: Annotated[int, Meta(description="Stored in another state, and left as they are.")]
    is_rekeyed: Annotated[
        bool,
        Meta(description="Fingerprints and labels were computed anew: the secret was another one."),
    ]
    unknown_fields: Annotated[
        list[str], Meta(description="Fields that this release does not know, and left out.")
    ]
    is_dry_run: bool


class ImportedMessageCounts(Struct, frozen=True, kw_only=True):
    """The counts of the messages that were sent, by outcome."""

    created: Annotated[int, Meta(description="Messages that were stored.")]
    same: Annotated[int, Meta(description="Messages that the thread had already.")]
    version: int


def count_import(answer: ImportAnswer) -> dict[str, int]:
    return {"threads": answer.threads, "messages": answer.messages}


def count_messages(answer: ImportedMessageCounts) -> dict[str, int]:
    return {"created": answer.created, "same": answer.same}


async def import_export(call: AdminCall[ImportQuery, bytes]) -> ImportAnswer:
    """Import an export. Its threads become the caller's, or those of the tenant that the admin
    names; without one, they stay whose they are. The secret of the export is never taken over."""
    query = call.query
    await _require_known_tenant(call)
    options = ImportOptions(
        into_tenant=call.tenant,
        adopts_secret=False,
        keeps_stored=query.existing == "keep",
        is_dry_run=query.dry_run,
        find_settings=call.config.policy.base_settings,
    )
    try:
        result = await import_memory(call.services.store, partial(BytesIO, call.body), options)
    except UsageError as exc:
        raise BadRequest(str(exc)) from exc
    return ImportAnswer(**asdict(result), is_dry_run=query.dry_run)


async def import_messages(call: AdminCall[RequestQuery, bytes]) -> ImportedMessageCounts:
    """Import the messages of a client's request: a whole history, from its first message on, or one
    message that says when it was said."""
    await _require_known_tenant(call)
    query = call.query
    take = partial(take_times, call.body, query.api)
    body, element_times = await run_off_loop(len(call.body), take, MANY_BYTES)
    request = await read_request(replace(call, body=body))
    if not request.messages:
        raise BadRequest("there are no messages besides instructions", param="messages")
    api = request.api.name
    upstream = call.config.require_upstream(request.model, api)
    context = call.config.policy.context_of_request(
        request.model, call.named_key.resource, upstream, (), api=api
    )
    if not context.effective.memory.enabled:
        raise BadRequest("memory is off for these requests (memory.enabled)")
    caller = read_caller(call)
    require_resource(caller, context)
    check: Callable[[Memory], None] = accept_any
    if call.expected_version is not None:
        memory = await call.services.memories.load_known(call.named_key)
        check_version(memory, call.expected_version)
        # a thread that moves to another scope has another version before its messages come
        if memory.scope == (caller.scope or context.effective.memory.scope):
            check = partial(check_version, expected=call.expected_version)
    importer, times = call.services.message_importer, list_unit_times(request, element_times)
    imported = None
    if len(times) == 1 and times[0] is not None:
        imported = await importer.append(caller, request, context, check, times)
    if imported is None:
        imported = await importer.store(caller, request, context, check, times)
    return ImportedMessageCounts(**imported._asdict())


async def _require_known_tenant(call: AnyCall) -> None:
    """Raise NotFound for a credential that no model server has verified: else anybody who reaches
    the server could fill its store."""
    if call.tenant is not None and not call.visitor.is_admin:
        await call.services.known_tenants.require_known(call.tenant, call.config)


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
        is_for_one_resource=True,
    ),
    AdminRoute(
        method="POST",
        path="/import",
        summary=(
            "Import an export, of this store or another, of at most `limits.body` bytes. Its threads "
            "become the caller's own, or the named tenant's. Nothing is written of one that is "
            "refused; one that was interrupted goes on when it is sent again."
        ),
        handler=import_export,
        work=IMPORT,
        query=ImportQuery,
        body=ExportLines,
        answer=ImportAnswer,
        count_changes=count_import,
        codes=("om_conflict",),
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/messages",
        summary=(
            "Import a conversation that was held elsewhere: the messages of a request, from "
            "the first on. Those that the thread has already stay; nothing is taken back. Each may "
            "have `created_at`, unix seconds or ISO 8601 with a zone; one message alone that has it "
            "is added to those of the thread, once. Notes are made in the background. The headers "
            "X-OM-Scope and X-OM-Timezone count as in such a request."
        ),
        handler=import_messages,
        work=IMPORT,
        query=RequestQuery,
        body=ClientRequest,
        answer=ImportedMessageCounts,
        count_changes=count_messages,
    ),
)
