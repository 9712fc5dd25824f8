"""Change notes for a person: edit and withdraw entries, edit and drop chunks, and take the newest
change back, each in every log that had it (docs/contributing/seeing.md#steering)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from om_proxy.common.errors import BadRequest, Conflict, Moved, NotFound, OmError
from om_proxy.engine.memory_cache.loading import UNKNOWN_THREAD_MESSAGE, is_forgotten
from om_proxy.engine.memory_cache.memories import Memories, retry_on_conflict
from om_proxy.engine.policy import PolicyInForce
from om_proxy.management.thread_admin import (
    LogPlace,
    change_notes,
    check_version,
    find_log_place,
    load_writable,
)
from om_proxy.memory.events.changes import Cause
from om_proxy.memory.events.parts import NotesChange
from om_proxy.memory.lifecycle import edits
from om_proxy.memory.lifecycle.edits import (
    UndoneChange,
    describe_undone_change,
    undo_newest_change,
)
from om_proxy.memory.lifecycle.withdrawal import as_own_entry, as_shared_entry, list_traces
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Generation,
    Key,
    Memory,
    Observation,
    index_entries,
    resource_key,
)
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.memory.recall.message_ids import describe_numbers
from om_proxy.observability.facts import NotesChanged
from om_proxy.storage.values.changes import NoteErasure
from om_proxy.storage.values.records import ForgetResult
from om_proxy.wire.apis.json_text import replace_halves

UNKNOWN_MESSAGES = {
    "entry": "there is no such entry, or it is no longer stored; the log has: {ids}",
    "chunk": (
        "there is no such chunk: it was dropped, or its messages were taken back; there are: {ids}"
    ),
}


THREADS_PER_PAGE = 200
MAX_NOTE_CHARS = 20_000


class ChangedEntry(NamedTuple):
    """A thread after a change of its notes, and the entry as it is now."""

    memory: Memory
    entry: Observation


class _EntryMissing(OmError):
    """The current log, or the chunks, have no such entry."""


@dataclass(frozen=True, slots=True, eq=False)
class NoteEditor:
    """Changes the notes of a thread, or of the log that it shares.

    Every method raises NotFound for what is not stored, and Moved for an entry or a chunk whose
    notes another entry holds now. `expected_version`: if the thread or its log has changed since,
    a method raises StaleVersion and changes nothing.
    """

    memories: Memories
    policies: PolicyInForce
    count_tokens: Callable[[str], int]
    clock: Callable[[], float]

    async def edit_entry(
        self, key: Key, id_: int, text: str, *, expected_version: int | None = None
    ) -> ChangedEntry:
        """Give an entry of the log another text. The entry gets a new id."""
        memory = await load_writable(self.memories, key, expected_version)
        text, tokens = await self._read_text(memory, text)
        edit = partial(edits.edit_entry, id_=id_, text=text, tokens=tokens, now=self.clock())
        return await self._change_entry(memory, id_, edit, "edited", expected_version)

    async def withdraw_entry(
        self, key: Key, id_: int, *, expected_version: int | None = None
    ) -> ChangedEntry:
        """Take an entry's text out of the log."""
        memory = await load_writable(self.memories, key, expected_version)
        withdraw = partial(edits.withdraw_entry, id_=id_, now=self.clock())
        return await self._change_entry(memory, id_, withdraw, "withdrawn", expected_version)

    async def forget_entry(
        self, key: Key, id_: int, *, expected_version: int | None = None
    ) -> tuple[ChangedEntry, ForgetResult]:
        """Take an entry's text out of the log and out of older generations, in one commit. Nobody
        can take that back."""
        memory = await load_writable(self.memories, key, expected_version)
        attempt = partial(self._forget_entry, id_, find_log_place(memory), expected_version)
        try:
            async with self.memories.lock(find_log_place(memory).key):
                log, erased = await retry_on_conflict(attempt)
        except _EntryMissing:
            raise await self._explain_missing_entry(key, id_) from None
        self._emit(key, "forgotten")
        entry = _find_changed(log, id_)
        return ChangedEntry(await self.memories.load_known(key), entry), erased

    async def edit_chunk(
        self, key: Key, id_: int, text: str, *, expected_version: int | None = None
    ) -> Memory:
        """Give a chunk another text, in place."""
        memory = await load_writable(self.memories, key, expected_version)
        text, tokens = await self._read_text(memory, text)
        edit = partial(edits.edit_chunk, id_=id_, text=text, tokens=tokens)
        return await self._change_chunk(memory, id_, edit, "chunk-edited", expected_version)

    async def drop_chunk(
        self, key: Key, id_: int, *, expected_version: int | None = None
    ) -> Memory:
        """Drop a chunk and the chunks after it: their messages are raw again."""
        memory = await load_writable(self.memories, key, expected_version)
        drop = partial(edits.drop_chunk, id_=id_)
        return await self._change_chunk(memory, id_, drop, "chunk-dropped", expected_version)

    async def undo(
        self, key: Key, *, expected_version: int | None = None
    ) -> tuple[Memory, UndoneChange]:
        """Take back the newest reflection, edit or withdrawal of the log."""
        memory = await load_writable(self.memories, key, expected_version)
        undone = await retry_on_conflict(
            partial(self._undo, find_log_place(memory), expected_version)
        )
        self._emit(key, "undone")
        return await self.memories.load_known(key), undone

    async def find_newest_change(
        self, key: Key, *, expected_version: int | None = None
    ) -> tuple[Memory, UndoneChange]:
        """Find what `undo` would take back, and change nothing."""
        memory = await load_writable(self.memories, key, expected_version)
        log, after = await self._plan_undo(find_log_place(memory), expected_version)
        return memory, describe_undone_change(log, after)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    async def _read_text(self, memory: Memory, text: str) -> tuple[str, int]:
        """Return the text to store, and its tokens."""
        config = self.policies.current.thread_settings(memory).memory.observation
        text = await read_written_text(text, redact=config.redact, how_to_remove="withdraw it")
        return text, await asyncio.to_thread(self.count_tokens, text)

    async def _change_entry(
        self,
        memory: Memory,
        id_: int,
        change: Callable[[Memory], Memory | None],
        what: NotesChange,
        expected_version: int | None,
    ) -> ChangedEntry:
        """Apply a change to the thread's log, or to the shared one."""
        place = find_log_place(memory)

        def check_and_change(log: Memory) -> Memory:
            place.check_version(log, expected_version)
            return _require_entry(change(log))

        try:
            log = await change_notes(self.memories, memory, place, check_and_change, what)
        except _EntryMissing:
            raise await self._explain_missing_entry(memory.key, id_) from None
        entry = _find_changed(log, id_)
        return ChangedEntry(await self.memories.load_known(memory.key), entry)

    async def _change_chunk(
        self,
        memory: Memory,
        id_: int,
        change: Callable[[Memory], Memory | None],
        what: NotesChange,
        expected_version: int | None,
    ) -> Memory:
        place = LogPlace(memory.key, memory.row_id, memory.version)

        def check_and_change(thread: Memory) -> Memory:
            check_version(thread, expected_version)
            return _require_entry(change(thread))

        try:
            await change_notes(self.memories, memory, place, check_and_change, what)
        except _EntryMissing:
            raise await self._explain_missing_chunk(memory.key, id_) from None
        return await self.memories.load_known(memory.key)

    async def _explain_missing_entry(self, key: Key, id_: int) -> OmError:
        memory = await self.memories.load_known(key)
        older = await self._load_older_generations(memory)
        holder = edits.find_holder(memory.log.entries, older, id_)
        return Moved(holder.id) if holder else _describe_missing("entry", memory.log.entries)

    async def _explain_missing_chunk(self, key: Key, id_: int) -> OmError:
        memory = await self.memories.load_known(key)
        older = await self._load_older_generations(memory)
        label = memory.thread_label
        holder = edits.find_chunk_holder(memory.log.entries, older, label, id_)
        return Moved(holder.id) if holder else _describe_missing("chunk", memory.chunks)

    async def _load_older_generations(self, memory: Memory) -> tuple[Generation, ...]:
        log_key = find_log_place(memory).key
        return await self.memories.store.generations(log_key, memory.log.generation)

    async def _load_log(self, place: LogPlace, expected_version: int | None) -> Memory:
        log = await self.memories.load(place.key)
        if is_forgotten(log, place.row_id):
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        place.check_version(log, expected_version)
        return log

    async def _undo(self, place: LogPlace, expected_version: int | None) -> UndoneChange:
        log, after = await self._plan_undo(place, expected_version)
        await self.memories.commit(log, after, cause=Cause(action="undone"))
        return describe_undone_change(log, after)

    async def _plan_undo(
        self, place: LogPlace, expected_version: int | None
    ) -> tuple[Memory, Memory]:
        """Return the log, and the log without its newest change."""
        log = await self._load_log(place, expected_version)
        older = await self.memories.store.generations(place.key, log.log.generation)
        after = undo_newest_change(log, older, self.clock())
        if after is None:
            raise BadRequest(
                "the log has no reflection or edit whose earlier notes are still stored",
                "om_nothing_to_undo",
            )
        return log, after

    async def _forget_entry(
        self, id_: int, place: LogPlace, expected_version: int | None
    ) -> tuple[Memory, ForgetResult]:
        """Try once to withdraw an entry and to erase the texts of all older entries that cover what
        it covers. Raise Conflict."""
        log = await self._load_log(place, expected_version)
        entry = edits.find_by_id(log.log.entries, id_)
        after = edits.withdraw_entry(log, id_, self.clock(), forget=True)
        if entry is None or after is None:
            raise _EntryMissing
        erasures = await list_erasures(self.memories, log, after, entry)
        cause = Cause(action="forgotten")
        return await self.memories.commit_erasing(log, after, erasures, cause=cause)

    def _emit(self, key: Key, change: NotesChange) -> None:
        self.memories.facts.emit(NotesChanged(key, change))


def _require_entry(changed: Memory | None) -> Memory:
    """Return the changed memory. Raise _EntryMissing if there was nothing to change."""
    if changed is None:
        raise _EntryMissing
    return changed


def _describe_missing(what: str, stored: Iterable[Observation]) -> NotFound:
    ids = describe_numbers(entry.id for entry in stored)
    return NotFound(UNKNOWN_MESSAGES[what].format(ids=ids))


def _find_changed(log: Memory, id_: int) -> Observation:
    """Return the entry that was changed: it has the newest id, or its own if nothing was to do."""
    return edits.find_by_id(log.log.entries, id_) or max(log.log.entries, key=lambda e: e.id)


async def list_erasures(
    memories: Memories, log: Memory, after: Memory, withdrawn: Observation
) -> list[NoteErasure]:
    """Return what to erase for an entry that is withdrawn from `log`, which is `after` then. Raise
    Conflict if a thread has joined or left the log meanwhile."""
    erasures = [await _list_log_traces(memories, log, after, withdrawn)]
    if log.key.thread != RESOURCE_THREAD:
        return erasures + await _list_shared_traces(memories, log.key, withdrawn)
    labels = {part.label for part in withdrawn.parts if not part.covers_nothing}
    async for key in _find_sharers(memories, log.key, labels):
        erasures += await _list_own_traces(memories, key, withdrawn)
    return erasures


async def _list_log_traces(
    memories: Memories, log: Memory, after: Memory, withdrawn: Observation
) -> NoteErasure:
    """Return what to erase of the log's older generations. The log as it is becomes one."""
    current = Generation(log.log.generation, log.log.entries)
    older = await memories.store.generations(log.key, current.number)
    entries_by_id = index_entries((*reversed(older), current))
    traces = list_traces(withdrawn, after.log.entries, entries_by_id.values())
    return NoteErasure(log.key, log.version, traces)


async def _find_sharers(memories: Memories, log_key: Key, labels: set[str]) -> AsyncIterator[Key]:
    """Yield the threads that have these labels in the parts of a shared log."""
    missing = set(labels)
    cursor: Key | None = None
    while missing and (
        page := await memories.store.threads(
            log_key.tenant, log_key.resource, cursor, THREADS_PER_PAGE
        )
    ):
        for info in page:
            if (label := memories.label(info.key)) in missing:
                missing.remove(label)
                yield info.key
        cursor = page[-1].key


async def _list_own_traces(
    memories: Memories, key: Key, withdrawn: Observation
) -> list[NoteErasure]:
    """Return what to erase of the log that a thread had before it shared one."""
    memory = await memories.load(key)
    if memory.shared_log_ref is None:
        raise Conflict("a thread has left the shared log; load it again")
    next_own_generation = memory.shared_log_ref.own.next_generation
    own = index_entries(await memories.store.generations(key, next_own_generation))
    traces = list_traces(as_own_entry(withdrawn, memory.thread_label), (), own.values())
    return [NoteErasure(key, memory.version, traces)] if traces else []


async def _list_shared_traces(
    memories: Memories, key: Key, withdrawn: Observation
) -> list[NoteErasure]:
    """Return what to erase of the log that a thread shared before it had its own. Prompts of that
    log's threads may still tell of the thread, also if the log had no entry about it."""
    if not await memories.store.version(resource_key(key)):
        return []
    shared_log = await memories.load(resource_key(key))
    generations = await memories.store.generations(shared_log.key, shared_log.log.generation)
    older = index_entries(generations).values()
    shared_entry = as_shared_entry(withdrawn, memories.label(key))
    traces = list_traces(shared_entry, shared_log.log.entries, older)
    return [NoteErasure(shared_log.key, shared_log.version, traces)]


async def read_written_text(text: str, *, redact: bool, how_to_remove: str) -> str:
    """Return the text as it is stored: without blank ends, without lone surrogates, and, if
    `redact`, without secrets. It is escaped where it is rendered. Raise BadRequest if it is empty
    or too long. `how_to_remove`: what the error tells a person who wants the note gone."""
    if not 0 < len(text.strip()) <= MAX_NOTE_CHARS:
        raise BadRequest(
            f"a note has 1 to {MAX_NOTE_CHARS} characters; to take it out, {how_to_remove}",
            "om_bad_text",
            "text",
        )
    whole = replace_halves(text.strip())
    if not redact:
        return whole
    redacted = await asyncio.to_thread(
        redact_secrets, whole
    )  # what stands for a secret may be longer
    if len(redacted) > MAX_NOTE_CHARS:
        raise BadRequest(
            f"without its secrets, the note has more than {MAX_NOTE_CHARS} characters; shorten it",
            "om_bad_text",
            "text",
        )
    return redacted
