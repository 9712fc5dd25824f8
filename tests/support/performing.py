"""Put the performers together from small real parts: an SQLite store, models that answer by script,
and a clock that tests set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from msgspec.structs import replace

from om_proxy.agents.model_access.llm import LLM, Answer, Prompt, Target
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.common.errors import ModelError
from om_proxy.engine.background.performers.work_guard import WorkGuard
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext, PolicyInForce
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.fact_lines import FactLines
from om_proxy.observability.facts import Facts
from om_proxy.settings.config import Settings, parse
from om_proxy.storage.base import Store
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.agents.scripted_llm import bullets, know_nothing, texts, words
from tests.e2e.running import Clock
from tests.memory.building import KEY, chat, chunk
from tests.support.policies import build_policies

NOTES = bullets(
    "the dock takes no van above 2.85 m", extra="\n<current-task>plan the vans</current-task>"
)
SMALL = """
memory:
  model: openai/memory-model
  api_base: "http://127.0.0.1:1/v1"
  observation: {message_tokens: 1000, buffer_tokens: 200, block_timeout: 5s}
  reflection: {observation_tokens: 2000}
"""
INHERITED = SMALL.replace(
    'model: openai/memory-model\n  api_base: "http://127.0.0.1:1/v1"', "model: inherit"
)


@dataclass
class HeldAnswer:
    """An answer that comes when `go` is set. `asked` is set when a call waits for it."""

    text: str = NOTES
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: bool = False


Step = str | Answer | ModelError | HeldAnswer


@dataclass
class ScriptedModels:
    """Answer with the steps in order, then with `NOTES`. `most`: the most calls that were under way
    at once."""

    steps: list[Step] = field(default_factory=list)
    asked: list[tuple[Target, Prompt]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        self.asked.append((target, prompt))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            text = await self._next()
            return (
                text
                if isinstance(text, Answer)
                else Answer(text, target.model, Usage(100, 0, 0, 10), finish="stop")
            )
        finally:
            self.under_way -= 1

    async def _next(self) -> str | Answer:
        step: Step = self.steps.pop(0) if self.steps else NOTES
        if isinstance(step, ModelError):
            raise step
        if isinstance(step, str | Answer):
            return step
        step.asked.set()
        try:
            await step.go.wait()
        except asyncio.CancelledError:
            step.given_up = True
            raise
        return step.text


async def skip_sleep(_: float) -> None:
    """Replace asyncio.sleep between two tries."""


class StoreOpener(Protocol):
    """Opens the store: SqliteStore, or another in its place."""

    async def open(self, path: Path | str) -> Store: ...


@dataclass
class Parts:
    settings: Settings
    store: Store
    models: ScriptedModels
    clock: Clock
    memories: Memories
    policies: PolicyInForce
    guard: WorkGuard
    worker: MemoryWorker
    background: Background

    def context(self, model: str = "actor", inherited: Target | None = None) -> MemoryContext:
        return MemoryContext(self.settings.effective(model, KEY.resource), inherited)

    async def store_tail(self, tail: Sequence[Message], key: Key = KEY) -> Memory:
        """Commit a thread with this tail."""
        return await self.memories.update(
            key, lambda m: replace(m, tail=tuple(tail), next_seq=tail[-1].seq + 1, model="actor")
        )

    async def memory(self, key: Key = KEY) -> Memory:
        """Load the memory as it stands in the store."""
        return await self.store.load(key)


@asynccontextmanager
async def open_parts(
    *steps: Step,
    settings: str = SMALL,
    path: Path | str = ":memory:",
    within: float = 300.0,
    concurrency: int = 8,
    llm: LLM | None = None,
    opener: StoreOpener = SqliteStore,
    is_external: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> AsyncIterator[Parts]:
    """Open everything between the edge and the models, until the block ends."""
    configured, models, clock = parse(settings), ScriptedModels(list(steps)), clock or Clock()
    store = await opener.open(path)
    policies = build_policies(configured, model_timeout_s=within)
    memories = Memories(
        store,
        policies,
        clock=clock,
        spool=store if isinstance(store, SpoolingStore) else None,
        facts=Facts(FactLines(str)),
    )
    asked: LLM = llm or models
    guard = WorkGuard(memories, policies, clock=clock, jitter=lambda: 0.0)
    worker = MemoryWorker(
        memories,
        Observer(asked, abilities=know_nothing, tokens=words, sleep=skip_sleep, rng=Random(1)),
        Reflector(asked, abilities=know_nothing, tokens=words, sleep=skip_sleep, rng=Random(1)),
        words,
        guard,
        clock=clock,
    )
    background = Background(
        memories,
        worker,
        policies,
        concurrency=concurrency,
        clock=clock,
        is_external=is_external,
    )
    try:
        yield Parts(configured, store, models, clock, memories, policies, guard, worker, background)
    finally:
        await background.close(grace=1.0)
        await store.close()


def read_shown_prompt(parts: Parts, call: int = -1) -> str:
    return texts(parts.models.asked[call][1])


async def store_logged_thread(parts: Parts, *sizes: int) -> Memory:
    """Store a thread with a log of entries of these sizes, each covering two messages, and a tail of
    two messages."""
    memory = await parts.store_tail(chat(len(sizes) + 1, 50))
    for number, size in enumerate(sizes, 1):
        made = replace(
            chunk(memory, 2 * number, size, f"* 🔴 (10:0{number}) fact {number} " + "word " * size),
            task="t",
        )
        memory = transitions.add_chunk(memory, made)
    ids = [c.id for c in memory.chunks]
    return await parts.memories.update(KEY, lambda _: transitions.activate_chunks(memory, ids, 5.0))
