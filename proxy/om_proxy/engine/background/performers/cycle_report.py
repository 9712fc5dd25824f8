"""Tell of one call of a memory model: that it begins, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.memory.events.changes import Cause
from om_proxy.memory.events.cycles import Cycle, make_failed, make_start
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Memory

OUTDATED_CODE = "om_outdated"  # the memory changed meanwhile, and the notes no longer fit
STOPPED_CODE = "om_stopped"  # the process ends; the work is due again at the next start


class CycleReport:
    """The events of one thread's part in a call. Every start gets one end or one failure, unless
    the process is killed or the thread is forgotten."""

    def __init__(
        self,
        memories: Memories,
        memory: Memory,
        decision: Decision,
        clock: Callable[[], float],
        cycle_id: str = "",
    ) -> None:
        """`cycle_id`: of a call that reads several threads."""
        self._memories = memories
        self._memory = memory
        self._operation: OperationType = (
            "reflection" if isinstance(decision, Reflect) else "observation"
        )
        self._is_awaited = isinstance(decision, Observe | Reflect) and decision.wait
        self._clock = clock
        self._cycle_id = cycle_id or create_cycle_id()
        self._cycle: Cycle | None = None  # None: not begun, or ended

    @property
    def cause(self) -> Cause:
        """The cause of the change that stores the notes. The change tells the end itself."""
        return Cause(cycle=self._cycle)

    async def start(self, tokens: int, thread_names: Sequence[str] = ()) -> None:
        """Tell that the model is asked now. `thread_names`: of a call that reads several
        threads."""
        own_name = self._memory.key.thread
        names = tuple(thread_names) or ((own_name,) if own_name else ())
        self._cycle = Cycle(
            self._cycle_id, self._operation, self._is_awaited, self._clock(), tokens, names
        )
        subject = self._memories.events.describe_subject(self._memory)
        start = make_start(self._cycle, self._memory, subject)
        await self._memories.events.add(self._memory.key, start)

    async def finish(self, *, is_stored: bool) -> None:
        """End the cycle. Notes that are not stored no longer fit their memory."""
        if is_stored:
            self._cycle = None
        await self.fail(OUTDATED_CODE)

    async def fail(self, code: str) -> None:
        """Tell that the cycle has failed, unless it has ended. `code`: one of our own."""
        cycle, self._cycle = self._cycle, None
        if cycle is None:
            return
        subject = self._memories.events.describe_subject(self._memory)
        failed = make_failed(cycle, code, self._memory, subject, self._clock())
        await self._memories.events.add(self._memory.key, failed)
