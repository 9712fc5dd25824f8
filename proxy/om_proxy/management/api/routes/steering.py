"""The routes by which people steer a thread's notes, and pin notes of their own."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.requests import NoChange, NoteText, ResourceQuery, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.notes import Entry, PinnedNote, describe_entry, describe_pin
from om_proxy.management.api.routes.threads import ThreadStatus, describe_thread
from om_proxy.management.note_editor import ChangedEntry
from om_proxy.memory.model import Memory
from om_proxy.storage.values.records import ForgetResult


class WithdrawalQuery(ThreadQuery, frozen=True, kw_only=True):
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


async def undo(call: AdminCall[ThreadQuery, NoChange]) -> UndoneStatus:
    memory, undone = await call.services.note_editor.undo(
        call.named_key, expected_version=call.expected_version
    )
    return UndoneStatus(
        **asdict(await describe_thread(call.services, memory)),
        undone=UndoneNotes(kind=undone.kind, gone=undone.gone, restored=list(undone.restored)),
    )


async def edit_entry(call: AdminCall[ThreadQuery, NoteText]) -> EntryChange:
    changed = await call.services.note_editor.edit_entry(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        expected_version=call.expected_version,
    )
    return describe_change(changed)


async def withdraw_entry(call: AdminCall[WithdrawalQuery, None]) -> EntryChange:
    query = call.query
    editor, key, id_ = call.services.note_editor, call.named_key, call.named_entry_id
    if query.forget:
        return describe_change(
            *await editor.forget_entry(key, id_, expected_version=call.expected_version)
        )
    changed = await editor.withdraw_entry(key, id_, expected_version=call.expected_version)
    return describe_change(changed)


async def edit_chunk(call: AdminCall[ThreadQuery, NoteText]) -> ChunkChange:
    memory = await call.services.note_editor.edit_chunk(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        expected_version=call.expected_version,
    )
    return describe_chunks(memory)


async def drop_chunk(call: AdminCall[ThreadQuery, None]) -> ChunkChange:
    memory = await call.services.note_editor.drop_chunk(
        call.named_key, call.named_entry_id, expected_version=call.expected_version
    )
    return describe_chunks(memory)


class PinList(Struct, frozen=True, kw_only=True):
    """The pins of a thread, or of the log that it shares, in the order in which they are."""

    version: int
    items: list[PinnedNote]
    cursor: str | None = None


def describe_pins(memory: Memory) -> PinList:
    """`memory`: the thread, or the shared log of a resource."""
    return PinList(version=memory.revision, items=[describe_pin(pin) for pin in memory.log.pins])


async def list_pins(call: AdminCall[Any, None]) -> PinList:
    return describe_pins(await call.services.pin_board.load(call.named_key))


async def add_pin(call: AdminCall[Any, NoteText]) -> PinList:
    memory = await call.services.pin_board.add(
        call.named_key,
        call.body.text,
        call.visitor.who,
        expected_version=call.expected_version,
    )
    return describe_pins(memory)


async def edit_pin(call: AdminCall[Any, NoteText]) -> PinList:
    memory = await call.services.pin_board.edit(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        call.visitor.who,
        expected_version=call.expected_version,
    )
    return describe_pins(memory)


async def remove_pin(call: AdminCall[Any, None]) -> PinList:
    memory = await call.services.pin_board.remove(
        call.named_key, call.named_entry_id, expected_version=call.expected_version
    )
    return describe_pins(memory)


async def list_resource_pins(call: AdminCall[ResourceQuery, None]) -> PinList:
    return await list_pins(call)


async def add_resource_pin(call: AdminCall[ResourceQuery, NoteText]) -> PinList:
    return await add_pin(call)


async def edit_resource_pin(call: AdminCall[ResourceQuery, NoteText]) -> PinList:
    return await edit_pin(call)


async def remove_resource_pin(call: AdminCall[ResourceQuery, None]) -> PinList:
    return await remove_pin(call)


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
PIN_ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads/{thread}/pins",
        summary="List the notes that people pinned to a thread, or to the log that it shares.",
        handler=list_pins,
        answer=PinList,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/pins",
        summary=(
            "Pin a note: it stands before all other notes, is never condensed, and stays when the "
            "conversation goes back. At most 50, and 4 000 tokens together."
        ),
        handler=add_pin,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/pins/{id}",
        summary="Give a pinned note other words.",
        handler=edit_pin,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}/pins/{id}",
        summary="Take a pinned note away.",
        handler=remove_pin,
        answer=PinList,
    ),
    AdminRoute(
        method="GET",
        path="/resources/{resource}/pins",
        summary="List the notes that people pinned to the log that threads of a resource share.",
        handler=list_resource_pins,
        query=ResourceQuery,
        answer=PinList,
    ),
    AdminRoute(
        method="POST",
        path="/resources/{resource}/pins",
        summary="Pin a note to the log that threads of a resource share.",
        handler=add_resource_pin,
        query=ResourceQuery,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="PATCH",
        path="/resources/{resource}/pins/{id}",
        summary="Give a note pinned to a resource other words.",
        handler=edit_resource_pin,
        query=ResourceQuery,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="DELETE",
        path="/resources/{resource}/pins/{id}",
        summary="Take a note pinned to a resource away.",
        handler=remove_resource_pin,
        query=ResourceQuery,
        answer=PinList,
    ),
)
