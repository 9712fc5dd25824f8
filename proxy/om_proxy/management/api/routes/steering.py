"""The routes by which people steer a thread's notes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from om_proxy.management.api.requests import AdminCall, NoChange, NoteText, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.notes import Entry, describe_entry
from om_proxy.management.api.routes.threads import ThreadStatus, describe_thread
from om_proxy.management.api.services import AdminServices
from om_proxy.management.steering.note_editor import ChangedEntry
from om_proxy.memory.model import Memory
from om_proxy.storage.values.records import ForgetResult


class WithdrawalQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of the withdrawal of an entry."""

    forget: Annotated[
        bool,
        Meta(description="Erase its text in older generations too. Nobody can take that back."),
    ] = False


class ErasedNotes(Struct, frozen=True, kw_only=True):
    """The notes that `forget` erased in older generations."""

    observations: Annotated[int, Meta(description="Older entries that lost their text.")]
    database: Annotated[str, Meta(description="`gone`, or `pending` while a reader holds bytes.")]
    log: Annotated[str, Meta(description="The same of the write-ahead log.")]


class UndoneNotes(Struct, frozen=True, kw_only=True):
    """A change that was taken back."""

    kind: Annotated[str, Meta(description="`reflection`, `edit` or `withdrawal`.")]
    gone: Annotated[int, Meta(description="The id of the entry that the change had made.")]
    restored: Annotated[
        list[int], Meta(description="The ids of the entries that stand again in its place.")
    ]


class UndoneStatus(ThreadStatus, frozen=True, kw_only=True):
    """The state of a thread's memory after a change was taken back."""

    undone: UndoneNotes


class EntryChange(Struct, frozen=True, kw_only=True):
    """A changed entry of the log. It has a new id."""

    version: int
    generation: int
    entry: Entry
    erased: ErasedNotes | None = None


class ChunkChange(Struct, frozen=True, kw_only=True):
    """The chunks of a thread after a change."""

    version: int
    chunks: list[Entry]


def describe_change(changed: ChangedEntry, erased: ForgetResult | None = None) -> EntryChange:
    return EntryChange(
        version=changed.memory.revision,
        generation=changed.memory.log.generation,
        entry=describe_entry(changed.entry),
        erased=ErasedNotes(
            observations=erased.observations, database=erased.database, log=erased.log
        )
        if erased
        else None,
    )


def describe_chunks(memory: Memory) -> ChunkChange:
    return ChunkChange(
        version=memory.revision, chunks=[describe_entry(chunk) for chunk in memory.chunks]
    )


async def undo(services: AdminServices, call: AdminCall) -> UndoneStatus:
    memory, undone = await services.note_editor.undo(
        call.named_key, expected_version=call.expected_version
    )
    return UndoneStatus(
        **asdict(await describe_thread(services, memory)),
        undone=UndoneNotes(kind=undone.kind, gone=undone.gone, restored=list(undone.restored)),
    )


async def edit_entry(services: AdminServices, call: AdminCall) -> EntryChange:
    assert isinstance(call.body, NoteText)
    changed = await services.note_editor.edit_entry(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        expected_version=call.expected_version,
    )
    return describe_change(changed)


async def withdraw_entry(services: AdminServices, call: AdminCall) -> EntryChange:
    query = call.query
    assert isinstance(query, WithdrawalQuery)
    editor, key, id_ = services.note_editor, call.named_key, call.named_entry_id
    if query.forget:
        return describe_change(
            *await editor.forget_entry(key, id_, expected_version=call.expected_version)
        )
    changed = await editor.withdraw_entry(key, id_, expected_version=call.expected_version)
    return describe_change(changed)


async def edit_chunk(services: AdminServices, call: AdminCall) -> ChunkChange:
    assert isinstance(call.body, NoteText)
    memory = await services.note_editor.edit_chunk(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        expected_version=call.expected_version,
    )
    return describe_chunks(memory)


async def drop_chunk(services: AdminServices, call: AdminCall) -> ChunkChange:
    memory = await services.note_editor.drop_chunk(
        call.named_key, call.named_entry_id, expected_version=call.expected_version
    )
    return describe_chunks(memory)


ROUTES = (
    AdminRoute(
        method="POST",
        path="/threads/{thread}/undo",
        summary=(
            "Take back the newest reflection, edit or withdrawal: the notes before it stand again."
        ),
        handler=undo,
        body=NoChange,
        answer=UndoneStatus,
        codes=("om_nothing_to_undo",),
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/observations/{id}",
        summary=(
            "Give an entry of the log other words. It gets a new id in a new generation, and covers "
            "the same messages."
        ),
        handler=edit_entry,
        body=NoteText,
        answer=EntryChange,
        codes=("om_bad_text", "om_moved"),
    ),
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}/observations/{id}",
        summary=(
            "Withdraw an entry: its words leave the log. Its messages stay covered, so the model "
            "sees neither."
        ),
        handler=withdraw_entry,
        query=WithdrawalQuery,
        answer=EntryChange,
        codes=("om_moved",),
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/chunks/{id}",
        summary="Give a chunk other words, in place.",
        handler=edit_chunk,
        body=NoteText,
        answer=ChunkChange,
        codes=("om_bad_text", "om_moved"),
    ),
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}/chunks/{id}",
        summary="Drop a chunk and those behind it: their messages are raw again.",
        handler=drop_chunk,
        answer=ChunkChange,
        codes=("om_moved",),
    ),
)
