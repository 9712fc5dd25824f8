"""The routes that show a thread's notes, and where each entry comes from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import NotFound
from om_proxy.management.api.admin_call import AdminCall, AdminServices
from om_proxy.management.api.answers import HiddenJson, HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import MAX_NUMBER, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.generations import read_generation
from om_proxy.management.thread_admin import find_log_place
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.decisions import Activate, RequestState
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.model import Generation, Memory, Message, Observation, Pin, index_entries
from om_proxy.memory.recall.message_ids import describe_numbers
from om_proxy.storage.contract.memories import ThreadRows
from om_proxy.wire.apis.json_text import replace_lone_surrogates

MAX_SOURCE_MESSAGES = (
    1_000  # that one answer holds; an entry covers fewer unless it is a reflection
)


class NotesQuery(ThreadQuery, frozen=True, kw_only=True):
    generation: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None,
        Meta(description="An older generation; without it, the current one."),
    ] = None


class EntryQuery(ThreadQuery, frozen=True, kw_only=True):
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


def describe_notes(
    memory: Memory, generation: Generation, activating_ids: Collection[int]
) -> Notes:
    is_current = generation.number == memory.log.generation
    reflection = memory.log.reflection if is_current else None
    hints = active_hints(memory)
    return Notes(
        version=memory.revision,
        scope=memory.scope,
        generation=generation.number,
        is_current=is_current,
        coverage=memory.coverage,
        pins=[describe_pin(pin) for pin in memory.log.pins],
        log=[describe_entry(entry) for entry in generation.entries],
        chunks=[
            Chunk(**_entry_fields(chunk), activates=chunk.id in activating_ids)
            for chunk in (memory.chunks if is_current else ())
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
    memories = call.services.memories
    memory = await memories.load_known(call.named_key)
    current, asked = memory.log.generation, call.query.generation
    number = current if asked is None else asked
    generation = await read_generation(memories.store, memory, number)
    activating = _find_activating(call.services, memory) if number == current else ()
    return describe_notes(memory, generation, activating)


def _find_activating(services: AdminServices, memory: Memory) -> frozenset[int]:
    """Return the ids of the chunks that a request now would make active."""
    limits = services.policies.current.thread_settings(memory).limits
    now = services.clock()
    idle_s, has_provider_changed = decisions.prompt_cache_state(memory, memory.model, now)
    state = RequestState(
        last_observable_seq(memory), idle_s, has_provider_changed=has_provider_changed, now=now
    )
    decision = decisions.decide_before_forwarding(memory, limits, state, waited=True)
    count = decision.count if isinstance(decision, Activate) else 0
    return frozenset(chunk.id for chunk in memory.chunks[:count])


async def show_entry(call: AdminCall[EntryQuery, None]) -> EntryProvenance:
    memories, query = call.services.memories, call.query
    memory = await memories.load_known(call.named_key)
    entry, entries_by_id = await find_entry(
        memories.store, memory, call.named_entry_id, is_chunk=query.chunk
    )
    sources = list(_iterate_sources(entry, entries_by_id))
    covers = list_covered(memory, entry, is_chunk=query.chunk)
    messages: list[Message] = []
    for covered in covers if query.messages else ():
        room = MAX_SOURCE_MESSAGES + 1 - len(messages)
        messages += await memories.store.messages(memory.key, covered.first - 1, covered.last, room)
    return EntryProvenance(
        entry=describe_entry(entry),
        is_chunk=query.chunk,
        covers=covers,
        sources=[describe_entry(source) for source in sources if source is not None],
        complete=None not in sources,
        messages=[_describe_message(message) for message in messages[:MAX_SOURCE_MESSAGES]]
        if query.messages
        else None,
        has_all_messages=query.messages and len(messages) <= MAX_SOURCE_MESSAGES,
    )


async def find_entry(
    store: ThreadRows, memory: Memory, entry_id: int, *, is_chunk: bool
) -> tuple[Observation, dict[int, Observation]]:
    """Return an entry of any stored generation, or a chunk, and by their ids all among which it was
    found; ids are apart in a log that threads share. Raise NotFound."""
    generations = [Generation(memory.log.generation, memory.log.entries)]
    entries_by_id = index_entries([Generation(0, memory.chunks)] if is_chunk else generations)
    entry = entries_by_id.get(entry_id)
    if not is_chunk and (entry is None or entry.kind == "reflection"):
        older = await store.generations(find_log_place(memory).key, memory.log.generation)
        entries_by_id = index_entries((*older, *generations))
        entry = entries_by_id.get(entry_id)
    if entry is None:
        raise NotFound(
            "there is no such entry, or it is no longer stored; these are stored: "
            + describe_numbers(entries_by_id)
        )
    return entry, entries_by_id


def list_covered(memory: Memory, entry: Observation, *, is_chunk: bool) -> list[CoveredRange]:
    """Return the ranges of the thread's messages that an entry or a chunk covers."""
    label = None if is_chunk else memory.thread_label  # where the thread shares its log
    if not entry.parts:
        covers_any = entry.last > entry.after
        return [CoveredRange(first=entry.after + 1, last=entry.last)] if covers_any else []
    return [
        CoveredRange(first=part.after + 1, last=part.last)
        for part in entry.parts
        if part.label == label and not part.covers_nothing
    ]


def _iterate_sources(
    entry: Observation, entries_by_id: dict[int, Observation]
) -> Iterator[Observation | None]:
    """Yield the entries that a reflection was made from, and those that these were made from; None
    for one that is no longer stored."""
    for source_id in entry.sources:
        source = entries_by_id.get(source_id)
        yield source
        if source is not None:
            yield from _iterate_sources(source, entries_by_id)


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
)
