"""The JSON values that the admin API answers with."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from om_proxy.storage.base import ErasureState

UnixSeconds = Annotated[float, Meta(description="Unix seconds.")]


class ThreadNames(Struct, frozen=True, kw_only=True):
    """The names of a thread, and the labels by which the log names it."""

    tenant: str
    resource: str
    thread: str
    label: Annotated[str, Meta(description="The thread's name in the log.")]
    resource_label: Annotated[
        str, Meta(description="The name in the log of the log that the resource's threads share.")
    ]


class ThreadLine(ThreadNames, frozen=True, kw_only=True):
    """One thread in a list."""

    title: str | None
    created_at: UnixSeconds
    turn_at: UnixSeconds | None
    messages: Annotated[int, Meta(description="Messages of the conversation as it stands.")]
    generation: Annotated[int, Meta(description="Grows when the notes are rewritten.")]
    failures: Annotated[int, Meta(description="Failures of the observer in a row.")]
    parked: Annotated[bool, Meta(description="Given up, until `om-proxy doctor --revive`.")]


class ThreadList(Struct, frozen=True, kw_only=True):
    """A page of a list of threads."""

    items: list[ThreadLine]
    threads: Annotated[
        list[ThreadLine], Meta(description="The same as `items`; goes with the next release.")
    ]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


class MessageWindow(Struct, frozen=True, kw_only=True):
    """The messages, and how near the next observation is."""

    count: int
    pending_tokens: Annotated[int, Meta(description="Tokens that no active note covers.")]
    threshold: Annotated[int, Meta(description="Tokens at which notes take their place.")]


class NoteWindow(Struct, frozen=True, kw_only=True):
    """The active notes, and how near the next reflection is."""

    count: int
    tokens: int
    threshold: Annotated[int, Meta(description="Tokens at which notes are condensed.")]
    reflections: Annotated[int, Meta(description="Notes that are condensed ones.")]


class ReadyNotes(Struct, frozen=True, kw_only=True):
    """Notes that are made and wait to take the place of their messages."""

    tokens: int
    source_tokens: Annotated[int, Meta(description="Tokens of their messages.")]


class ThreadStatus(ThreadNames, frozen=True, kw_only=True):
    """The state of a thread's memory."""

    version: Annotated[int, Meta(description="Also the ETag: send it as If-Match.")]
    title: str | None
    title_pinned: bool
    scope: Annotated[str, Meta(description="`thread` or `resource`.")]
    generation: int
    messages: MessageWindow
    observations: NoteWindow
    chunks: list[ReadyNotes]
    settings: Annotated[
        dict[str, Any], Meta(description="The thread's own thresholds, as they were set.")
    ]
    failures: int
    parked: bool


class ForgottenRows(Struct, frozen=True, kw_only=True):
    """How much was removed with a thread."""

    threads: int
    messages: int
    observations: int
    generations: int
    reflections: int


class ForgottenBytes(Struct, frozen=True, kw_only=True):
    """Whether the removed bytes have left the files."""

    database: ErasureState
    log: ErasureState
    backups: str = "not_covered"


class ForgetReceipt(Struct, frozen=True, kw_only=True):
    """What was removed. Only the label names the thread."""

    at: UnixSeconds
    scope: str = "thread"
    label: str
    forgotten: ForgottenRows
    bytes: ForgottenBytes


class PreviewPart(Struct, frozen=True, kw_only=True):
    """A part of the prompt, in order."""

    kind: Annotated[
        str,
        Meta(
            description=(
                "`instructions` (the client's own), `notes` (how to read them), `observations`, "
                "`others` (other conversations), `hints` (current task, suggestion), `hint` (how "
                "to go on), `tail` (messages)."
            )
        ),
    ]
    tokens: int
    is_stable: Annotated[
        bool, Meta(description="Stays the same until the next activation, for the prompt cache.")
    ]
    text: Annotated[str | None, Meta(description="What memory adds; `null` for the client's.")]


class DueWork(Struct, frozen=True, kw_only=True):
    """Work that is due before the request goes upstream."""

    kind: Annotated[
        str,
        Meta(
            description=(
                "`activate`: ready notes take their messages' place. `swap`: a ready reflection "
                "takes its notes' place. `observe`, `reflect`: the request would wait for a model."
            )
        ),
    ]
    count: Annotated[
        int | None, Meta(description="Notes that become active, or notes that are condensed.")
    ] = None
    tokens: Annotated[int | None, Meta(description="Tokens of the messages to observe.")] = None
    why: Annotated[
        str | None, Meta(description="Of `activate`: `threshold`, `idle` or `provider`.")
    ] = None


class ContextAnswer(Struct, frozen=True, kw_only=True):
    """What would go upstream. Nothing was stored, and no model was called."""

    status: Annotated[str, Meta(description="As in `x-om-status`.")]
    reason: Annotated[str | None, Meta(description="As in `x-om-reason`.")]
    case: Annotated[
        str | None, Meta(description="How the request compares with what is stored.")
    ] = None
    cut: Annotated[
        int | None,
        Meta(description="Of a fork: the newest message that stays, by number."),
    ] = None
    decisions: list[DueWork] = []
    tokens_received: int | None = None
    tokens_sent: int | None = None
    parts: list[PreviewPart] = []
    messages: Annotated[
        list[Any],
        Meta(
            description=(
                "Exactly the messages that would go upstream; half characters, which no UTF-8 "
                "text can hold, are U+FFFD here."
            )
        ),
    ]


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
    text: str
    tokens: int
    source_tokens: Annotated[int, Meta(description="Tokens of what it was made from.")]
    at: UnixSeconds
    model: Annotated[str, Meta(description="The model that wrote it.")]
    condensed: Annotated[int, Meta(description="How often its words have been condensed.")]
    sources: Annotated[list[int], Meta(description="Of a reflection: ids of its entries.")]
    about: Annotated[
        list[str], Meta(description="In a log that threads share: the labels of its threads.")
    ]


class Chunk(Entry, frozen=True, kw_only=True):
    """Notes that wait to become active."""

    activates: Annotated[bool, Meta(description="The next request makes it active.")]


class PendingReflection(Struct, frozen=True, kw_only=True):
    """A finished reflection that waits to replace its sources."""

    text: str
    tokens: int
    source_tokens: int
    sources: list[int]
    at: UnixSeconds
    model: str


class Notes(Struct, frozen=True, kw_only=True):
    """The notes of a thread, in one generation."""

    version: int
    scope: str
    generation: int
    is_current: bool
    coverage: Annotated[
        int, Meta(description="The newest message, by number, that the current log covers.")
    ]
    log: list[Entry]
    chunks: list[Chunk]
    reflection: PendingReflection | None
    task: Annotated[str | None, Meta(description="What the user wants at the moment.")]
    suggestion: str | None


class GenerationLine(Struct, frozen=True, kw_only=True):
    """One stored generation of a thread's notes."""

    number: int
    is_current: bool
    entries: int
    tokens: int
    reflections: int
    newest_at: UnixSeconds | None


class GenerationList(Struct, frozen=True, kw_only=True):
    """The stored generations, the newest first."""

    version: int
    items: list[GenerationLine]
    cursor: str | None = None


class SourceMessage(Struct, frozen=True, kw_only=True):
    """A message that an entry covers."""

    seq: int
    role: str
    at: UnixSeconds
    tokens: int
    raw: Annotated[msgspec.Raw, Meta(description="Its JSON as it was sent.")]


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
