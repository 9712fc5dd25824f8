"""The routes that show a thread's notes, older generations of them, and where each entry comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.apis import ApiName
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.answers import HiddenJson, HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import MAX_NUMBER, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.thread_reader import ComparedGeneration, EntryView, NotesView, write_log
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.model import Beginning, Memory, Message, Observation, Pin
from om_proxy.storage.values.stored_rows import GenerationSummary
from om_proxy.wire.apis.json_text import replace_lone_surrogates


class NotesQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of a thread's notes."""

    generation: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None,
        Meta(description="An older generation; without it, the current one."),
    ] = None


class EntryQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of one entry."""

    chunk: Annotated[
        bool, Meta(description="The id is that of a chunk, not of an entry of the log.")
    ] = False
    messages: Annotated[
        bool, Meta(description="Add the messages that the entry covers, as they were sent.")
    ] = False


class CoveredRange(Struct, frozen=True, kw_only=True):
    """Messages of this thread, by number."""

    first: int
    last: int


class Entry(Struct, frozen=True, kw_only=True):
    """Notes of one stretch of messages."""

    id: int
    kind: Annotated[
        str,
        Meta(
            description=(
                "`observation` (of messages), `reflection` (of other notes), `note` (of a fork)."
            )
        ),
    ]
    text: HiddenText
    tokens: int
    source_tokens: Annotated[int, Meta(description="Tokens of what it was made from.")]
    at: UnixSeconds
    model: Annotated[str, Meta(description="The model that wrote it.")]
    condensed: Annotated[int, Meta(description="How often its words have been condensed.")]
    sources: Annotated[list[int], Meta(description="Of a reflection: ids of its entries.")]
    edited: Annotated[bool, Meta(description="A person changed its text.")]
    withdrawn: Annotated[
        bool,
        Meta(
            description="A person, or `retention.max_observations`, took its text away; its messages "
            "stay covered."
        ),
    ]
    about: Annotated[
        list[str], Meta(description="In a log that threads share: the labels of its threads.")
    ]


class Chunk(Entry, frozen=True, kw_only=True):
    """Notes that wait to become active."""

    activates: Annotated[bool, Meta(description="The next request makes it active.")]


class PendingReflection(Struct, frozen=True, kw_only=True):
    """A finished reflection that waits to replace its sources."""

    text: HiddenText
    tokens: int
    source_tokens: int
    sources: list[int]
    at: UnixSeconds
    model: str


class PinnedNote(Struct, frozen=True, kw_only=True):
    """A note that a person wrote by hand."""

    id: int
    text: HiddenText
    tokens: int
    at: UnixSeconds
    by: Annotated[
        str,
        Meta(description="Who wrote it, in the words of the audit's `who`."),
    ]


class Notes(Struct, frozen=True, kw_only=True):
    """The notes of a thread, in one generation."""

    version: int
    scope: str
    generation: int
    is_current: bool
    coverage: Annotated[
        int, Meta(description="The newest message, by number, that the current log covers.")
    ]
    pins: Annotated[list[PinnedNote], Meta(description="Written by hand; before the log.")]
    log: list[Entry]
    chunks: list[Chunk]
    reflection: PendingReflection | None
    task: Annotated[HiddenText, Meta(description="What the user wants at the moment.")]
    suggestion: HiddenText


class GenerationLine(Struct, frozen=True, kw_only=True):
    """One stored generation of a thread's notes."""

    number: int
    is_current: bool
    entries: int
    tokens: int
    reflections: int
    newest_at: UnixSeconds | None
    why: Annotated[
        str | None,
        Meta(
            description=(
                "Why it began: `reflection`, `undo`, `fork`, `edit`, `forgotten`, `limit` (its "
                "oldest entries lost lines: `retention.max_observations`), or `scope` (the "
                "thread joined the resource's log, or left it). `null`: the first one."
            )
        ),
    ]
    at: UnixSeconds | None


class GenerationList(Struct, frozen=True, kw_only=True):
    """The stored generations, the newest first."""

    version: int
    items: list[GenerationLine]
    cursor: str | None = None


class GenerationQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of one generation."""

    against: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None,
        Meta(description="Another generation, to compare with."),
    ] = None


class ComparedLine(Struct, frozen=True, kw_only=True):
    """A line of the notes of two generations."""

    kind: Annotated[
        str, Meta(description="`same`, `added` (in this generation), `removed` (in the other).")
    ]
    text: HiddenText


class GenerationDetail(Struct, frozen=True, kw_only=True):
    """The notes of one generation as a text, and how they differ from another's."""

    version: int
    number: int
    is_current: bool
    why: str | None
    at: UnixSeconds | None
    tokens: int
    text: HiddenText
    against: int | None
    against_text: HiddenText
    diff: Annotated[
        list[ComparedLine] | None,
        Meta(description="`null` without another generation, or beyond 5 000 lines."),
    ]


class SourceMessage(Struct, frozen=True, kw_only=True):
    """A message that an entry covers."""

    seq: int
    role: str
    api: Annotated[ApiName, Meta(description="The API that it came by, whose JSON `raw` is.")]
    at: UnixSeconds
    tokens: int
    raw: Annotated[HiddenJson, Meta(description="Its JSON as it was sent.")]


class EntryProvenance(Struct, frozen=True, kw_only=True):
    """An entry, and what it was made from."""

    entry: Entry
    is_chunk: bool
    covers: list[CoveredRange]
    sources: Annotated[
        list[Entry], Meta(description="Of a reflection: its notes, and those they were made from.")
    ]
    complete: Annotated[bool, Meta(description="All of these notes are still stored.")]
    messages: list[SourceMessage] | None
    has_all_messages: Annotated[
        bool, Meta(description="`messages` holds all that the entry covers; 1 000 at most.")
    ]


def describe_pin(pin: Pin) -> PinnedNote:
    return PinnedNote(
        id=pin.id, text=repair_text(pin.text) or "", tokens=pin.tokens, at=pin.at, by=pin.by
    )


def describe_notes(view: NotesView) -> Notes:
    memory = view.memory
    reflection = memory.log.reflection if view.is_current else None
    hints = active_hints(memory)
    return Notes(
        version=memory.revision,
        scope=memory.scope,
        generation=view.generation.number,
        is_current=view.is_current,
        coverage=memory.coverage,
        pins=[describe_pin(pin) for pin in memory.log.pins],
        log=[describe_entry(entry) for entry in view.generation.entries],
        chunks=[
            Chunk(**_entry_fields(chunk), activates=chunk.id in view.activating_ids)
            for chunk in (memory.chunks if view.is_current else ())
        ],
        reflection=PendingReflection(
            text=repair_text(reflection.text) or "",
            tokens=reflection.tokens,
            source_tokens=reflection.source_tokens,
            sources=list(reflection.sources),
            at=reflection.at,
            model=reflection.model,
        )
        if reflection
        else None,
        task=repair_text(hints.task),
        suggestion=repair_text(hints.suggestion),
    )


def describe_generations(
    memory: Memory, generations: Sequence[GenerationSummary], beginnings: Mapping[int, Beginning]
) -> GenerationList:
    return GenerationList(
        version=memory.revision,
        items=[
            GenerationLine(
                number=generation.number,
                is_current=generation.number == memory.log.generation,
                entries=generation.entries,
                tokens=generation.tokens,
                reflections=generation.reflections,
                newest_at=generation.newest_at,
                why=began.why if began else None,
                at=began.at if began else None,
            )
            for generation in generations
            for began in [beginnings.get(generation.number)]
        ],
    )


def describe_generation(compared: ComparedGeneration) -> GenerationDetail:
    generation, other = compared.generation, compared.against
    began = compared.began
    return GenerationDetail(
        version=compared.memory.revision,
        number=generation.number,
        is_current=compared.is_current,
        why=began.why if began else None,
        at=began.at if began else None,
        tokens=sum(entry.tokens for entry in generation.entries),
        text=repair_text(write_log(generation)) or "",
        against=other.number if other else None,
        against_text=(repair_text(write_log(other)) or "") if other else None,
        diff=None
        if compared.diff is None
        else [
            ComparedLine(kind=line.kind, text=repair_text(line.text) or "")
            for line in compared.diff
        ],
    )


def describe_entry_view(view: EntryView, *, with_messages: bool) -> EntryProvenance:
    return EntryProvenance(
        entry=describe_entry(view.entry),
        is_chunk=view.is_chunk,
        covers=[
            CoveredRange(first=covered.after + 1, last=covered.last) for covered in view.ranges
        ],
        sources=[describe_entry(source) for source in view.sources],
        complete=view.is_complete,
        messages=[_describe_message(message) for message in view.messages]
        if with_messages
        else None,
        has_all_messages=view.has_all_messages,
    )


def _describe_message(message: Message) -> SourceMessage:
    raw = message.item.raw
    return SourceMessage(
        seq=message.seq,
        role=message.item.role,
        api=message.item.api,
        at=message.at,
        tokens=message.tokens,
        raw=msgspec.Raw(replace_lone_surrogates(raw) or raw),
    )


def describe_entry(entry: Observation) -> Entry:
    return Entry(**_entry_fields(entry))


def _entry_fields(entry: Observation) -> dict[str, Any]:
    return {
        "id": entry.id,
        "kind": entry.kind,
        "text": repair_text(entry.text) or "",
        "tokens": entry.tokens,
        "source_tokens": entry.source_tokens,
        "at": entry.at,
        "model": entry.model,
        "condensed": entry.depth,
        "sources": list(entry.sources),
        "edited": entry.replaces is not None and not entry.is_withdrawn,
        "withdrawn": entry.is_withdrawn,
        "about": [part.label for part in entry.parts],
    }


async def show_notes(call: AdminCall[NotesQuery, None]) -> Notes:
    query = call.query
    view = await call.services.thread_reader.read_notes(call.named_key, query.generation)
    return describe_notes(view)


async def show_entry(call: AdminCall[EntryQuery, None]) -> EntryProvenance:
    query = call.query
    view = await call.services.thread_reader.read_entry(
        call.named_key, call.named_entry_id, is_chunk=query.chunk, with_messages=query.messages
    )
    return describe_entry_view(view, with_messages=query.messages)


async def list_generations(call: AdminCall[ThreadQuery, None]) -> GenerationList:
    kept = await call.services.thread_reader.list_generations(call.named_key)
    return describe_generations(kept.memory, kept.generations, kept.beginnings)


async def show_generation(call: AdminCall[GenerationQuery, None]) -> GenerationDetail:
    query = call.query
    return describe_generation(
        await call.services.thread_reader.read_generation(
            call.named_key, call.named_entry_id, query.against
        )
    )


ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads/{thread}/observations",
        summary=(
            "Show a thread's notes: the active log, the chunks that wait to become active, and the "
            "reflection that waits to replace notes."
        ),
        handler=show_notes,
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
        handler=show_entry,
        query=EntryQuery,
        answer=EntryProvenance,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/generations",
        summary="List the generations of a thread's notes that are stored, the newest first.",
        handler=list_generations,
        answer=GenerationList,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/generations/{id}",
        summary=(
            "Show one generation of a thread's notes as a text and, with `against`, line by line how "
            "it differs from another."
        ),
        handler=show_generation,
        query=GenerationQuery,
        answer=GenerationDetail,
    ),
)
