"""The routes about the generations of a thread's notes that are stored, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.common.errors import NotFound
from om_proxy.common.off_loop import run_off_loop
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.answers import HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import MAX_NUMBER, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.thread_admin import find_log_place
from om_proxy.memory.model import Beginning, Generation, Memory
from om_proxy.memory.recall.message_ids import describe_numbers
from om_proxy.storage.contract.memories import ThreadRows
from om_proxy.storage.values.stored_rows import GenerationSummary, summarize_generation

MAX_COMPARED_LINES = 5_000  # of both texts together
MANY_LINES = 200  # comparing more than these would hold the event loop up for a millisecond


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


async def list_generations(call: AdminCall[ThreadQuery, None]) -> GenerationList:
    memories = call.services.memories
    memory = await memories.load_known(call.named_key)
    beginnings = await memories.store.beginnings(find_log_place(memory).key)
    return GenerationList(
        version=memory.revision,
        items=[
            _describe_line(memory, summary, beginnings.get(summary.number))
            for summary in await _summarize_generations(memories.store, memory)
        ],
    )


def _describe_line(
    memory: Memory, generation: GenerationSummary, began: Beginning | None
) -> GenerationLine:
    return GenerationLine(
        **generation._asdict(),
        is_current=generation.number == memory.log.generation,
        why=began.why if began else None,
        at=began.at if began else None,
    )


async def show_generation(call: AdminCall[GenerationQuery, None]) -> GenerationDetail:
    memories, number, against = call.services.memories, call.named_entry_id, call.query.against
    memory = await memories.load_known(call.named_key)
    generation = await read_generation(memories.store, memory, number)
    other = None if against is None else await read_generation(memories.store, memory, against)
    began = (await memories.store.beginnings(find_log_place(memory).key)).get(number)
    return GenerationDetail(
        version=memory.revision,
        number=number,
        is_current=number == memory.log.generation,
        why=began.why if began else None,
        at=began.at if began else None,
        tokens=sum(entry.tokens for entry in generation.entries),
        text=repair_text(_write_log(generation)) or "",
        against=against,
        against_text=(repair_text(_write_log(other)) or "") if other else None,
        diff=await _compare(other, generation) if other else None,
    )


async def read_generation(store: ThreadRows, memory: Memory, number: int) -> Generation:
    """Return one generation of the log. Raise NotFound, which says those that are stored."""
    current = Generation(memory.log.generation, memory.log.entries)
    if number == current.number:
        return current
    if number < current.number:
        log_key = find_log_place(memory).key
        found = await store.generations(log_key, number + 1, limit=1)
        if found and found[0].number == number:
            return found[0]
    kept = await _summarize_generations(store, memory)
    numbers = describe_numbers(summary.number for summary in kept)
    raise NotFound(f"this generation is not stored; these are: {numbers}")


async def _summarize_generations(
    store: ThreadRows, memory: Memory
) -> tuple[GenerationSummary, ...]:
    current = Generation(memory.log.generation, memory.log.entries)
    older = await store.generation_summaries(find_log_place(memory).key, current.number)
    return (summarize_generation(current), *older)


def _write_log(generation: Generation) -> str:
    """Return the notes of a generation as one text."""
    return "\n\n".join(entry.text for entry in generation.entries if not entry.is_withdrawn)


async def _compare(before: Generation, after: Generation) -> list[ComparedLine] | None:
    """Return how the notes differ; None: they are too long to be compared."""
    texts = _write_log(before), _write_log(after)
    if not can_be_compared(*texts):
        return None
    line_count = sum(text.count("\n") for text in texts)
    return await run_off_loop(line_count, lambda: compare_lines(*texts), MANY_LINES)


def can_be_compared(before: str, after: str) -> bool:
    """Return whether the texts are short enough to be compared."""
    return before.count("\n") + after.count("\n") + 2 <= MAX_COMPARED_LINES


def compare_lines(before: str, after: str) -> list[ComparedLine]:
    """Return the lines of both texts in order. Where they differ, those of `before` come first."""
    return [
        ComparedLine(kind=kind, text=repair_text(line) or "")
        for kind, lines in _iterate_runs(before.split("\n"), after.split("\n"))
        for line in lines
    ]


def _iterate_runs(before: list[str], after: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield runs of lines, each with its kind."""
    for kind, start, end, new_start, new_end in SequenceMatcher(None, before, after).get_opcodes():
        if kind == "equal":
            yield "same", before[start:end]
        else:
            yield "removed", before[start:end]
            yield "added", after[new_start:new_end]


ROUTES = (
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
