"""Keep the notes that people pin to a thread, or to the log of a resource
(docs/contributing/seeing.md#pins)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from om_proxy.common.errors import BadRequest, NotFound
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.management.note_editor import read_written_text
from om_proxy.management.thread_admin import (
    change_notes,
    check_version,
    find_log_place,
    require_writable,
)
from om_proxy.memory.events.parts import NotesChange
from om_proxy.memory.lifecycle import pins
from om_proxy.memory.lifecycle.pins import MAX_PINNED_TOKENS, MAX_PINS
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.memory.recall.message_ids import describe_numbers

NO_SHARED_LOG_MESSAGE = "threads of this resource share no log: pin the note to a thread"
UNKNOWN_PIN_MESSAGE = "there is no such pin; there are: {ids}"


@dataclass(frozen=True, slots=True, eq=False)
class PinBoard:
    """Changes pins. A key names a thread, or the shared log of a resource; the pins of a thread
    that shares its log are those of the log. A change returns what `load` does then.

    Every method raises NotFound for what is not stored. `expected_version`: if the thread or its
    log has changed since, a method raises StaleVersion and changes nothing.
    """

    memories: Memories
    policies: PolicyInForce
    count_tokens: Callable[[str], int]
    clock: Callable[[], float]

    async def load(self, key: Key) -> Memory:
        """Return the thread that shows the pins, or the shared log of a resource."""
        if key.thread != RESOURCE_THREAD:
            return await self.memories.load_known(key)
        shared_log = await self.memories.load(key)
        if not shared_log.version:
            raise NotFound(NO_SHARED_LOG_MESSAGE)
        return shared_log

    async def add(
        self, key: Key, text: str, by: str, *, expected_version: int | None = None
    ) -> Memory:
        """Pin a note after the others. `by`: who wrote it."""
        text, tokens = await self._read_text(key, text)

        def change(log: Memory) -> Memory:
            _require_room(log, tokens)
            return pins.add_pin(log, text, tokens, self.clock(), by)

        return await self._change(key, change, "pinned", expected_version)

    async def edit(
        self, key: Key, id_: int, text: str, by: str, *, expected_version: int | None = None
    ) -> Memory:
        """Give a pin another text. The same words change nothing and emit no event."""
        text, tokens = await self._read_text(key, text)

        def change(log: Memory) -> Memory:
            _require_room(log, tokens, instead_of=id_)
            changed = pins.change_pin(log, id_, text, tokens, self.clock(), by)
            return _require_pin(log, changed)

        return await self._change(key, change, "pin-edited", expected_version)

    async def remove(self, key: Key, id_: int, *, expected_version: int | None = None) -> Memory:
        def change(log: Memory) -> Memory:
            return _require_pin(log, pins.remove_pin(log, id_, self.clock()))

        return await self._change(key, change, "unpinned", expected_version)

    async def _read_text(self, key: Key, text: str) -> tuple[str, int]:
        """Return the text to store, and its tokens."""
        settings = self.policies.current.base_settings(await self.load(key))
        text = await read_written_text(
            text,
            redact=settings.memory.observation.redact,
            how_to_remove="delete the pin",
        )
        return text, await asyncio.to_thread(self.count_tokens, text)

    async def _change(
        self,
        key: Key,
        change: Callable[[Memory], Memory],
        what: NotesChange,
        expected_version: int | None,
    ) -> Memory:
        memory = await self.load(key)
        require_writable(self.memories, key)
        check_version(memory, expected_version)
        place = find_log_place(memory)

        def check_and_change(log: Memory) -> Memory:
            place.check_version(log, expected_version)
            return change(log)

        await change_notes(self.memories, memory, place, check_and_change, what)
        return await self.load(key)


def _require_room(log: Memory, tokens: int, instead_of: int | None = None) -> None:
    if not pins.has_room(log.log, tokens, instead_of):
        raise BadRequest(
            f"a log has at most {MAX_PINS} pins of {MAX_PINNED_TOKENS} tokens together: "
            "shorten or remove one",
            "om_too_many_pins",
            "text",
        )


def _require_pin(log: Memory, changed: Memory | None) -> Memory:
    """Return the changed memory. Raise NotFound if the log has no such pin."""
    if changed is None:
        ids = describe_numbers(pin.id for pin in log.log.pins)
        raise NotFound(UNKNOWN_PIN_MESSAGE.format(ids=ids))
    return changed
