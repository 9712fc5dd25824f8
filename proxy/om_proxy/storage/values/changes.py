"""Describe changes to a store and their outcome, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message, Observation
from om_proxy.storage.values.records import ForgetResult


class Change(NamedTuple):
    """Two states of one thread: the arguments of `Store.commit`."""

    before: Memory
    after: Memory
    interrupted: Sequence[Message] = ()
    events: Sequence[Event] = ()
    began_at: float | None = None

    @property
    def needs_write(self) -> bool:
        """Whether the thread, or shared log, has to be written at all."""
        return self.after != self.before or not self.before.version


class WrittenRow(NamedTuple):
    """The columns that a store sets itself in the row of a thread or shared log."""

    row_id: int
    version: int

    def add_to(self, memory: Memory) -> Memory:
        """Return the memory as it is stored now."""
        return replace(memory, version=self.version, row_id=self.row_id)


def create_conflict(memory: Memory) -> Conflict:
    return Conflict(
        f"thread {memory.key.thread}: version {memory.version} is no longer the stored one; load it again"
    )


class ResourceWakeup(NamedTuple):
    """The condition that makes the shared log of a resource due at `now`: its threads hold at least
    `tokens` unobserved tokens. If the log is due later already, only threads that are not in
    back-off count."""

    now: float
    tokens: int


class NoteErasure(NamedTuple):
    """Entries of older generations without the texts and hints that must go."""

    key: Key  # of the thread or shared log
    version: int  # that is stored
    blanks: Sequence[Observation]


class ForgetBatch(NamedTuple):
    """A part of a resource or tenant that was removed."""

    result: ForgetResult
    threads: tuple[Key, ...]  # that were removed
    is_last: bool  # nothing of the resource or tenant is left


class MoveResult(NamedTuple):
    """The number of rows that moved to another tenant."""

    threads: int = 0
    messages: int = 0
    name_conflicts: int = 0  # threads and shared logs that both tenants have; then nothing moved
