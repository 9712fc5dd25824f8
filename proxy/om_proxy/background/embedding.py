"""Make vectors of indexed messages while nobody is talking in their threads
(docs/spec/recall.md#vectors).

One process does so at a time. It walks over the threads, the latest active first. Every
FULL_WALK_S it walks over all; in between, only back to where the walk before began. What lacks a
vector is found by looking, so a process that is killed or a model that fails loses nothing.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from om_proxy.background.thread_run import loop_time
from om_proxy.errors import ModelBusy, ModelError, OmError
from om_proxy.memory.model import Key
from om_proxy.message_vectors import MessageVectors, choose_embedding
from om_proxy.settings import Settings
from om_proxy.storage.base import Store
from om_proxy.storage.listing import ThreadInfo, ThreadPlace

logger = structlog.get_logger("vectors")

EMBEDDING_KEY = Key("", "", "embedding")  # what is leased
LEASE_S = 200.0  # a call may take 60 s; of a process that is killed meanwhile
QUIET_S = 60.0  # a thread whose newest turn is younger is left to later
FULL_WALK_S = 600.0
BATCH_THREADS = 100
FIRST_PAUSE_S = 30.0  # after a failure of the model; twice as long after each further one
MAX_PAUSE_S = 3_600.0


def is_embedded(settings: Settings, info: ThreadInfo, model: str) -> bool:
    """Return whether the messages of this thread have vectors of this model."""
    choice = choose_embedding(settings, info.model, info.key.resource)
    return choice is not None and choice.model == model


async def embed_all(store: Store, vectors: MessageVectors, settings: Settings) -> int:
    """Make all vectors that are lacking, now. Return their number. Raise OmError; what was made
    stays."""
    count = 0
    for model in settings.embedding_models:
        place: ThreadPlace | None = None
        while True:
            page = await store.unembedded_threads(model, math.inf, place, BATCH_THREADS)
            for info in page.threads:
                if is_embedded(settings, info, model):
                    while made := await vectors.embed_batch(info.key, model):
                        count += made
            place = page.end
            if place is None:
                break
    return count


@dataclass(slots=True)
class _Progress:
    """What is known of one model's vectors."""

    failures: int = 0  # in a row
    retry_at: float = 0.0  # of the event loop's clock
    full_walk_at: float = 0.0  # of the event loop's clock
    # unix seconds: threads without a turn since then were looked at by an earlier walk
    walked_to: float = 0.0


class VectorFiller:
    """The task of one process that makes vectors."""

    def __init__(
        self,
        store: Store,
        vectors: MessageVectors,
        settings: Callable[[], Settings],
        is_external: Callable[[], bool] = lambda: False,
    ) -> None:
        """`settings`: returns those in force."""
        self._store = store
        self._vectors = vectors
        self._settings = settings
        self._is_external = is_external
        self._holder = uuid.uuid4().hex
        self._walked_settings: Settings | None = None
        self._progress: dict[str, _Progress] = {}

    async def run_forever(self, find_interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(find_interval_s())
            if self._is_external():
                continue
            try:
                await self.run_once()
            except OmError as exc:  # the next walk goes on
                logger.warning("vectors.failed", error=type(exc).__name__, work="background")

    async def run_once(self) -> int:
        """Make the vectors of quiet threads, unless another process does. Return their number.
        Raise OmError if the store fails; what was made by then stays."""
        settings = self._settings()
        if not settings.embedding_models:
            self._walked_settings = None
            return 0
        if not await self._store.lease(EMBEDDING_KEY, self._holder, LEASE_S):
            self._walked_settings = None  # what the other process leaves is not known here
            return 0
        if settings is not self._walked_settings:
            self._walked_settings, self._progress = settings, {}
        try:
            return sum([await self._work_on(model) for model in settings.embedding_models])
        finally:
            with suppress(OmError):  # it ends by itself
                await self._store.release(EMBEDDING_KEY, self._holder)

    async def _work_on(self, model: str) -> int:
        progress = self._progress.setdefault(model, _Progress())
        if loop_time() < progress.retry_at:
            return 0
        try:
            made = await self._walk(model, progress)
        except ModelError as exc:
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**progress.failures)
            if isinstance(exc, ModelBusy):
                pause = max(pause, exc.retry_after_s or 0.0)
            progress.failures = min(progress.failures + 1, 10)
            progress.retry_at = loop_time() + pause
            logger.warning(
                "vectors.failed", error=type(exc).__name__, work="background", retry_s=round(pause)
            )
            return 0
        progress.failures = 0
        return made

    async def _walk(self, model: str, progress: _Progress) -> int:
        now = loop_time()
        is_full = now >= progress.full_walk_at
        walked_to = 0.0 if is_full else progress.walked_to
        quiet_since = await self._store.clock() - QUIET_S
        place: ThreadPlace | None = None
        count = 0
        while True:
            page = await self._store.unembedded_threads(model, quiet_since, place, BATCH_THREADS)
            for info in page.threads:
                made = await self._embed_thread(info, model)
                if made is None:
                    return count  # other settings, or another process goes on
                count += made
            place = page.end
            if place is None or place.active_at < walked_to:
                progress.walked_to = quiet_since
                if is_full:
                    progress.full_walk_at = now + FULL_WALK_S
                return count

    async def _embed_thread(self, info: ThreadInfo, model: str) -> int | None:
        """Make all vectors of a thread, with a pause after each batch. Return their number; None if
        this process is to go no further."""
        count = 0
        while True:
            settings = self._settings()
            if settings is not self._walked_settings:
                return None
            if not is_embedded(settings, info, model):
                return count
            began_at = loop_time()
            made = await self._vectors.embed_batch(info.key, model)
            count += made
            if not made:
                return count
            # as long as the work took: turns have the processor and the store
            await asyncio.sleep(min(loop_time() - began_at, 1.0))
            if not await self._store.lease(EMBEDDING_KEY, self._holder, LEASE_S):
                return None
