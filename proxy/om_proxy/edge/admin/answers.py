"""The JSON values that the admin API answers with, and how they are built of memory's values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta, Struct

from om_proxy.apis.api import Request
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.lifecycle.decisions import Activate, Decision, Observe, Reflect, Swap
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.reasons import Reason, Status
from om_proxy.storage.base import ErasureState, ForgetResult, ThreadInfo
from om_proxy.turns.preview import Preview

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


def describe_preview(preview: Preview) -> ContextAnswer:
    turn = preview.turn
    verdict = turn.opened.reconciled.verdict
    return ContextAnswer(
        status=turn.status.value,
        reason=turn.reason.value if turn.reason else None,
        case=turn.opened.case,
        cut=verdict.cut_seq,
        decisions=[_describe_decision(decision) for decision in preview.decisions],
        tokens_received=turn.receipt["tokens-received"],
        tokens_sent=turn.receipt["tokens-sent"],
        parts=[
            PreviewPart(
                kind=part.kind,
                tokens=part.tokens,
                is_stable=part.is_stable,
                text=_replace_lone_surrogates(part.text),
            )
            for part in preview.parts
        ],
        messages=_list_messages(preview.request),
    )


def describe_unchanged(request: Request, reason: Reason) -> ContextAnswer:
    """Describe a request that goes upstream as it came."""
    return ContextAnswer(
        status=Status.OFF.value, reason=reason.value, messages=_list_messages(request)
    )


def _describe_decision(decision: Decision) -> DueWork:
    match decision:
        case Activate(count=count, why=why):
            return DueWork(kind="activate", count=count, why=why)
        case Swap():
            return DueWork(kind="swap")
        case Observe(tokens=tokens):
            return DueWork(kind="observe", tokens=tokens)
        case Reflect(entries=entries):
            return DueWork(kind="reflect", count=entries)


def _list_messages(request: Request) -> list[msgspec.Raw]:
    """Return all messages of a request, each with its JSON as it is written there."""
    return [msgspec.Raw(raw) for raw in (*request.instructions, *request.messages)]


def _replace_lone_surrogates(text: str | None) -> str | None:
    """Return the text as UTF-8 can hold it: JSON of a client may carry half a character."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def describe_line(info: ThreadInfo, secret: bytes) -> ThreadLine:
    return ThreadLine(
        **_describe_names(info.key, secret),
        title=_replace_lone_surrogates(info.title),
        created_at=info.created_at,
        turn_at=info.turn_at,
        messages=info.messages,
        generation=info.generation,
        failures=info.failures,
        parked=info.parked,
    )


def describe_status(memory: Memory, limits: Limits, secret: bytes) -> ThreadStatus:
    entries = memory.log.entries
    return ThreadStatus(
        **_describe_names(memory.key, secret),
        version=memory.version,
        title=_replace_lone_surrogates(memory.title),
        title_pinned=memory.title_pinned,
        scope=memory.scope,
        generation=memory.log.generation,
        messages=MessageWindow(
            count=memory.count,
            pending_tokens=memory.pending_tokens,
            threshold=limits.observe_from_tokens,
        ),
        observations=NoteWindow(
            count=len(entries),
            tokens=memory.log.tokens,
            threshold=limits.reflect_from_tokens,
            reflections=sum(entry.kind == "reflection" for entry in entries),
        ),
        chunks=[
            ReadyNotes(tokens=chunk.tokens, source_tokens=chunk.source_tokens)
            for chunk in memory.chunks
        ],
        settings=orjson.loads(memory.overrides) if memory.overrides else {},
        failures=memory.failures.count,
        parked=memory.failures.suspended,
    )


def describe_forgotten(
    key: Key, forgotten: ForgetResult, now: float, secret: bytes
) -> ForgetReceipt:
    return ForgetReceipt(
        at=now,
        label=label_thread(secret, key),
        forgotten=ForgottenRows(
            threads=forgotten.threads,
            messages=forgotten.messages,
            observations=forgotten.observations,
            generations=forgotten.generations,
            reflections=forgotten.reflections,
        ),
        bytes=ForgottenBytes(database=forgotten.database, log=forgotten.log),
    )


def _describe_names(key: Key, secret: bytes) -> dict[str, str]:
    return {
        "tenant": key.tenant,
        "resource": key.resource,
        "thread": key.thread,
        "label": label_thread(secret, key),
        "resource_label": label_thread(secret, resource_key(key)),
    }
