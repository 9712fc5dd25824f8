"""Build the admin API's answers from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from om_proxy.apis.api import Request
from om_proxy.apis.lone_surrogates import replace_lone_surrogates
from om_proxy.edge.admin.answers import (
    Chunk,
    ContextAnswer,
    CoveredRange,
    DueWork,
    Entry,
    EntryProvenance,
    ForgetReceipt,
    ForgottenBytes,
    ForgottenRows,
    GenerationLine,
    GenerationList,
    MessageWindow,
    Notes,
    NoteWindow,
    PendingReflection,
    PreviewPart,
    ReadyNotes,
    SourceMessage,
    ThreadLine,
    ThreadStatus,
)
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.lifecycle.decisions import Activate, Decision, Observe, Reflect, Swap
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import (
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    resource_key,
)
from om_proxy.reasons import Reason, Status
from om_proxy.storage.base import ForgetResult, ThreadInfo
from om_proxy.thread_reader import EntryView, NotesView
from om_proxy.turns.preview import Preview


def describe_notes(view: NotesView) -> Notes:
    memory = view.memory
    reflection = memory.log.reflection if view.is_current else None
    hints = active_hints(memory)
    return Notes(
        version=memory.version,
        scope=memory.scope,
        generation=view.generation.number,
        is_current=view.is_current,
        coverage=memory.coverage,
        log=[_describe_entry(entry) for entry in view.generation.entries],
        chunks=[
            Chunk(**_entry_fields(chunk), activates=chunk.id in view.activating_ids)
            for chunk in (memory.chunks if view.is_current else ())
        ],
        reflection=PendingReflection(
            text=_replace_lone_surrogates(reflection.text) or "",
            tokens=reflection.tokens,
            source_tokens=reflection.source_tokens,
            sources=list(reflection.sources),
            at=reflection.at,
            model=reflection.model,
        )
        if reflection
        else None,
        task=_replace_lone_surrogates(hints.task),
        suggestion=_replace_lone_surrogates(hints.suggestion),
    )


def describe_generations(memory: Memory, generations: Sequence[Generation]) -> GenerationList:
    return GenerationList(
        version=memory.version,
        items=[
            GenerationLine(
                number=generation.number,
                is_current=generation.number == memory.log.generation,
                entries=len(generation.entries),
                tokens=sum(entry.tokens for entry in generation.entries),
                reflections=sum(entry.kind == "reflection" for entry in generation.entries),
                newest_at=max((entry.at for entry in generation.entries), default=None),
            )
            for generation in generations
        ],
    )


def describe_entry_view(view: EntryView, *, with_messages: bool) -> EntryProvenance:
    return EntryProvenance(
        entry=_describe_entry(view.entry),
        is_chunk=view.is_chunk,
        covers=[
            CoveredRange(first=covered.after + 1, last=covered.last) for covered in view.ranges
        ],
        sources=[_describe_entry(source) for source in view.sources],
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
        at=message.at,
        tokens=message.tokens,
        raw=msgspec.Raw(replace_lone_surrogates(raw) or raw),
    )


def _describe_entry(entry: Observation) -> Entry:
    return Entry(**_entry_fields(entry))


def _entry_fields(entry: Observation) -> dict[str, Any]:
    return {
        "id": entry.id,
        "kind": entry.kind,
        "text": _replace_lone_surrogates(entry.text) or "",
        "tokens": entry.tokens,
        "source_tokens": entry.source_tokens,
        "at": entry.at,
        "model": entry.model,
        "condensed": entry.depth,
        "sources": list(entry.sources),
        "about": [part.label for part in entry.parts],
    }


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
