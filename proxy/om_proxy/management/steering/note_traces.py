"""Find what one forgetting erases: the texts that older notes keep of an entry, in every log that
had it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from om_proxy.common.errors import Conflict
from om_proxy.engine.memory_cache.memories import Memories
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
from om_proxy.storage.values.changes import NoteErasure

THREADS_PER_PAGE = 200


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
