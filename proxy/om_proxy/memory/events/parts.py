"""The parts that events are made of: type and fields as the reference implementation names them
(docs/contributing/seeing.md#events).

The names in JSON are in camel case. A field with a default is left out while it has that default.
`TEXT_FIELDS` names the fields with words of a conversation.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Literal, NamedTuple, get_args

from msgspec import Struct

from om_proxy.memory.model import Scope

OperationType = Literal["observation", "reflection"]
TriggeredBy = Literal["threshold", "ttl", "provider_change"]
# of a thread's notes, or of those of the log that it shares, by a person
NotesChange = Literal[
    "edited",
    "withdrawn",
    "forgotten",
    "chunk-edited",
    "chunk-dropped",
    "undone",
    "pinned",
    "pin-edited",
    "unpinned",
    "activated",
    "parked",
    "revived",
]
EditAction = Literal[NotesChange, "settings"]


def format_time(at: float) -> str:
    """Return unix seconds as an ISO time in UTC, with milliseconds."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class MarkerConfig(Struct, frozen=True, rename="camel"):
    """The thresholds that were in force."""

    message_tokens: int
    observation_tokens: int
    scope: Scope


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of an event. Each class has its own type."""

    TYPE: ClassVar[str]
    TEXT_FIELDS: ClassVar[tuple[str, ...]] = ()

    record_id: str  # `<label of the thread>.g<generation of its log>`
    thread_id: str  # empty: the shared log of a resource


class CyclePart(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of one cycle: one call of a memory model, or one activation."""

    cycle_id: str
    operation_type: OperationType


class CycleFailure(CyclePart, frozen=True, kw_only=True, rename="camel"):
    """The end of a cycle without notes."""

    failed_at: str
    duration_ms: int
    tokens_attempted: int
    error: str  # our code, never a model's words


class ObservationStart(CyclePart, frozen=True, kw_only=True, rename="camel"):
    """A request or a person begins to wait for notes."""

    TYPE = "data-om-observation-start"

    started_at: str
    tokens_to_observe: int
    thread_ids: tuple[str, ...]
    config: MarkerConfig


class ObservationEnd(CyclePart, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The notes that were waited for are stored."""

    TYPE = "data-om-observation-end"
    TEXT_FIELDS = ("observations", "currentTask", "suggestedResponse")

    completed_at: str
    duration_ms: int
    tokens_observed: int
    observation_tokens: int
    observations: str
    current_task: str | None = None
    suggested_response: str | None = None


class ObservationFailed(CycleFailure, frozen=True, kw_only=True, rename="camel"):
    """The notes that were waited for were not made."""

    TYPE = "data-om-observation-failed"


class BufferingStart(CyclePart, frozen=True, kw_only=True, rename="camel"):
    """Notes begin to be made in the background."""

    TYPE = "data-om-buffering-start"

    started_at: str
    tokens_to_buffer: int
    thread_ids: tuple[str, ...]
    config: MarkerConfig


class BufferingEnd(CyclePart, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Notes made in the background are stored, and not active yet."""

    TYPE = "data-om-buffering-end"
    TEXT_FIELDS = ("observations", "currentTask", "suggestedResponse")

    completed_at: str
    duration_ms: int
    tokens_buffered: int
    buffered_tokens: int
    observations: str
    current_task: str | None = None
    suggested_response: str | None = None


class BufferingFailed(CycleFailure, frozen=True, kw_only=True, rename="camel"):
    """Notes were not made in the background."""

    TYPE = "data-om-buffering-failed"


class Activation(CyclePart, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A chunk became part of the log, or a reflection took the place of its sources."""

    TYPE = "data-om-activation"
    TEXT_FIELDS = ("observations",)

    activated_at: str
    chunks_activated: int
    tokens_activated: int
    observation_tokens: int
    messages_activated: int
    generation_count: int
    observations: str
    config: MarkerConfig
    triggered_by: TriggeredBy | None = None
    last_activity_at: str | None = None
    ttl_expired_ms: int | None = None
    previous_model: str | None = None
    current_model: str | None = None


class ThreadUpdate(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The thread has another title."""

    TYPE = "data-om-thread-update"
    TEXT_FIELDS = ("oldTitle", "newTitle")

    cycle_id: str
    new_title: str | None
    old_title: str | None = None
    timestamp: str


class Edited(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A person changed the memory."""

    TYPE = "data-om-edited"

    cycle_id: str
    action: EditAction
    edited_at: str
    generation_count: int
    observation_tokens: int  # of the log, after the change
    # of entries and chunks that are gone, and of those that took their place; the same id in both:
    # changed in place
    removed_ids: tuple[int, ...] = ()
    added_ids: tuple[int, ...] = ()


class Forgotten(Struct, frozen=True, kw_only=True, rename="camel"):
    """A thread was forgotten. Its label is all that is left of its name."""

    TYPE: ClassVar[str] = "data-om-forgotten"
    TEXT_FIELDS: ClassVar[tuple[str, ...]] = ()

    label: str
    forgotten_at: str


StoredPart = (
    ObservationStart
    | ObservationEnd
    | ObservationFailed
    | BufferingStart
    | BufferingEnd
    | BufferingFailed
    | Activation
    | ThreadUpdate
    | Edited
    | Forgotten
)
EVENT_TYPES: tuple[str, ...] = tuple(part.TYPE for part in get_args(StoredPart))


class Event(NamedTuple):
    """One thing that happened to a memory, as it is stored."""

    at: float  # unix seconds
    part: StoredPart
