"""Change a thread's memory for a person: set its title and thresholds, forget the thread
(docs/contributing/behaviour.md#steering). Other changes of a thread or its log begin here too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from om_proxy.common.errors import (
    BadRequest,
    ConfigError,
    Conflict,
    NotFound,
    StaleVersion,
    StorageError,
)
from om_proxy.engine.memory_cache.loading import UNKNOWN_THREAD_MESSAGE
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.memory.events.changes import Cause
from om_proxy.memory.events.parts import NotesChange
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.memory.value_bounds import MAX_TITLE_CHARS
from om_proxy.observability import facts
from om_proxy.settings.config import merge_thread_overrides
from om_proxy.storage.values.records import ForgetResult


def check_version(memory: Memory, expected: int | None) -> None:
    """Raise StaleVersion if the memory, or the log that it shares, is not of the expected version;
    None expects none."""
    if expected is not None and memory.revision != expected:
        raise StaleVersion


def require_writable(memories: Memories, key: Key) -> None:
    """Raise StorageError while the store cannot be written: a person's change waits for nothing."""
    if memories.is_degraded(key):
        raise StorageError("the store cannot be written at the moment; nothing was changed")


async def load_writable(
    memories: Memories, key: Key, expected_version: int | None = None
) -> Memory:
    """Load a memory that a person changes. Raise NotFound, StorageError or StaleVersion."""
    memory = await memories.load_known(key)
    require_writable(memories, key)
    check_version(memory, expected_version)
    return memory


class LogPlace(NamedTuple):
    """The row of a log, as it was when its thread was read."""

    key: Key
    row_id: int
    version: int

    def check_version(self, log: Memory, expected: int | None) -> None:
        """Raise StaleVersion if the log has changed since. `expected`: the version that the person
        named, which `check_version` has compared already; None expects none."""
        if expected is not None and log.version != self.version:
            raise StaleVersion


def find_log_place(memory: Memory) -> LogPlace:
    """Find the memory that holds the log of a thread: its own, or that of its resource."""
    ref = memory.shared_log_ref
    if ref is None:
        return LogPlace(memory.key, memory.row_id, memory.version)
    return LogPlace(resource_key(memory.key), ref.row_id, ref.version)


async def change_notes(
    memories: Memories,
    memory: Memory,
    place: LogPlace,
    change: Callable[[Memory], Memory],
    what: NotesChange,
) -> Memory:
    """Commit a change at a place: of the thread `memory`, or of its log. Return what is changed.
    The same words again change nothing, and emit no fact."""
    is_new = False

    def change_and_compare(before: Memory) -> Memory:
        nonlocal is_new
        changed = change(before)
        is_new = changed != before
        return changed

    changed = await memories.update(
        place.key,
        change_and_compare,
        row_id=place.row_id,
        cause=Cause(action=what),
        must_exist=True,
    )
    if is_new:
        memories.facts.emit(facts.NotesChanged(memory.key, what))
    return changed


class ThreadAdmin:
    """Changes threads' memories. Every method raises NotFound for a thread without a memory.

    `expected_version`: if the thread has changed since this version, a method raises StaleVersion
    and changes nothing.
    """

    def __init__(self, memories: Memories, policies: PolicyInForce) -> None:
        self._memories = memories
        self._policies = policies

    async def set_title(
        self, key: Key, title: str | None, *, expected_version: int | None = None
    ) -> Memory:
        """Pin this title, so that no model changes it. None lets the observer choose titles
        again."""
        if title is not None and not 0 < len(title.strip()) <= MAX_TITLE_CHARS:
            raise BadRequest(
                f"a title has 1 to {MAX_TITLE_CHARS} characters", "om_bad_title", "title"
            )
        row_id = (await load_writable(self._memories, key)).row_id

        def change(memory: Memory) -> Memory:
            check_version(memory, expected_version)
            new_title = memory.title if title is None else " ".join(title.split())
            return replace(memory, title=new_title, title_pinned=title is not None)

        return await self._memories.update(key, change, row_id=row_id, must_exist=True)

    async def set_thresholds(
        self, key: Key, changes: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Memory:
        """Add these thresholds to those of the thread. A None value removes a threshold."""
        current = await load_writable(self._memories, key)
        base = self._policies.current.base_settings(current)

        def change(memory: Memory) -> Memory:
            check_version(memory, expected_version)
            overrides = merge_thread_overrides(base, changes, memory.overrides)
            return replace(memory, overrides=overrides)

        try:
            return await self._memories.update(
                key,
                change,
                row_id=current.row_id,
                cause=Cause(action="settings"),
                must_exist=True,
            )
        except ConfigError as exc:
            raise BadRequest(str(exc), "om_bad_setting") from exc

    async def forget(self, key: Key, *, expected_version: int | None = None) -> ForgetResult:
        """Remove the thread and everything stored about it, and return what was removed. A turn
        under way does not bring it back."""
        version = None
        if expected_version is not None:
            # a person names the version of the thread with its log, a store that of the thread
            memory = await self._memories.load_known(key)
            check_version(memory, expected_version)
            version = memory.version
        try:
            forgotten = await self._memories.forget(key, version) if key.thread else ForgetResult()
        except Conflict as exc:
            raise StaleVersion from exc
        if not forgotten.threads:
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        self._emit_forgotten(key, forgotten)
        return forgotten

    async def forget_all(self, tenant: str, resource: str | None = None) -> ForgetResult:
        """Remove everything stored of a resource, or of a tenant (None). Raise NotFound if nothing
        is. Call it again after an error: it goes on with what is left."""
        forgotten = await self._memories.forget_all(tenant, resource)
        if not any(forgotten.counts.values()):
            raise NotFound("there is no memory of it")
        self._emit_forgotten(Key(tenant, resource or "", RESOURCE_THREAD), forgotten)
        return forgotten

    def _emit_forgotten(self, key: Key, forgotten: ForgetResult) -> None:
        self._memories.facts.emit(facts.Forgotten(key, forgotten.messages, forgotten.log))
