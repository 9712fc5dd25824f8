"""Make vectors of indexed messages while their threads are quiet
(docs/contributing/recall.md#vectors).

Each model has walks of its own. A model that fails is asked less and less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from om_proxy.common.errors import ModelBusy, ModelError, OmError
from om_proxy.engine.background.quiet_walk import QuietWalk, QuietWalker, WalkLease, finish_work
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.message_vectors import MessageVectors, choose_embedding
from om_proxy.memory.ledger import EMPTY_ACCOUNT, NO_MEMORY_COSTS, Account
from om_proxy.memory.lifecycle.transitions import add_memory_costs
from om_proxy.memory.model import Key, Memory
from om_proxy.settings.config import Settings
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace

logger = structlog.get_logger("vectors")

EMBEDDING_KEY = Key("", "", "embedding")  # what is leased
LEASE_S = 200.0  # a call may take 60 s; of a process that is killed meanwhile
FULL_WALK_S = 600.0
MAX_BATCH_PAUSE_S = 1.0
FIRST_PAUSE_S = 30.0  # after a failure of the model; twice as long after each further one
MAX_PAUSE_S = 3_600.0


@dataclass(frozen=True, slots=True)
class EmbeddingWork:
    """The making of one model's vectors, as a `QuietWork`."""

    memories: Memories
    vectors: MessageVectors
    model: str
    full_walk_interval_s: float = FULL_WALK_S
    max_pause_s: float = MAX_BATCH_PAUSE_S

    async def find_threads(
        self, active_before: float, after: ThreadPlace | None, limit: int
    ) -> ThreadPage:
        return await self.vectors.store.unembedded_threads(self.model, active_before, after, limit)

    def is_wanted(self, settings: Settings, info: ThreadInfo) -> bool:
        choice = choose_embedding(settings, info.model, info.key.resource)
        return choice is not None and choice.model == self.model

    async def do_batch(self, key: Key) -> int | None:
        """Do the batch. What it cost is stored with the thread."""
        paid = EMPTY_ACCOUNT

        def charge(_: Key, account: Account) -> None:
            nonlocal paid
            paid = paid.add(account)

        try:
            return await self.vectors.embed_batch(key, self.model, charge=charge) or None
        finally:
            if paid.calls:
                await self._add_to_thread(key, paid)

    async def _add_to_thread(self, key: Key, account: Account) -> None:
        def add(memory: Memory) -> Memory:
            if not memory.version:  # it was forgotten meanwhile
                return memory
            return add_memory_costs(memory, NO_MEMORY_COSTS.add(account, memory.history))

        await self.memories.update(key, add)


async def embed_all(memories: Memories, vectors: MessageVectors, settings: Settings) -> int:
    """Make all vectors that are lacking, now. Return their number. Raise OmError; what was made
    stays."""
    count = 0
    for model in settings.embedding_models:
        _, made = await finish_work(EmbeddingWork(memories, vectors, model), settings)
        count += made
    return count


class ModelWalk:
    """The walks for one model, with pauses after its failures."""

    def __init__(self, walk: QuietWalk, machine_clock: Callable[[], float]) -> None:
        """`machine_clock`: seconds that only grow."""
        self._walk = walk
        self._machine_clock = machine_clock
        self._failures = 0  # in a row
        self._retry_at = 0.0  # by that clock

    async def run_once(self, lease: WalkLease) -> int:
        """Return the number of vectors; 0 if the model failed."""
        if self._machine_clock() < self._retry_at:
            return 0
        try:
            made = await self._walk.run_once(lease)
        except ModelError as exc:
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
            if isinstance(exc, ModelBusy):
                pause = max(pause, exc.retry_after_s or 0.0)
            self._failures = min(self._failures + 1, 10)
            self._retry_at = self._machine_clock() + pause
            _report_failure(exc, retry_s=round(pause))
            return 0
        self._failures = 0
        return made


def create_vector_filler(
    memories: Memories,
    vectors: MessageVectors,
    settings: Callable[[], Settings],
    is_external: Callable[[], bool] = lambda: False,
    machine_clock: Callable[[], float] = loop_time,
) -> QuietWalker:
    """Create the task of one process that makes vectors. `settings`: returns those in force.
    `machine_clock`: seconds that only grow."""

    def create_walks(settings: Settings) -> list[ModelWalk]:
        works = [EmbeddingWork(memories, vectors, model) for model in settings.embedding_models]
        return [
            ModelWalk(QuietWalk(memories.store, work, machine_clock), machine_clock)
            for work in works
        ]

    return QuietWalker(
        memories.store, EMBEDDING_KEY, LEASE_S, settings, create_walks, _report_failure, is_external
    )


def _report_failure(error: OmError, **fields: float) -> None:
    logger.warning("vectors.failed", error=type(error).__name__, work="background", **fields)
