"""The part of the background that turns use. A preview brings its own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.lifecycle.decisions import Decision
from om_proxy.memory.model import Key


class MemoryWork(Protocol):
    """See engine/background/scheduler.py for each method."""

    def last_seq_being_read(self, key: Key) -> int: ...

    def remaining_wait(self, key: Key, seconds: float) -> float: ...

    async def wait_for_work(
        self, key: Key, decision: Decision, context: MemoryContext, seconds: float
    ) -> bool: ...

    def wake(self, key: Key, context: MemoryContext | None = None) -> None: ...

    def run_detached(self, work: Coroutine[Any, Any, Any]) -> object: ...
