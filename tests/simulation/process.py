"""One proxy of the simulation, and its parts as the world watches them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from om_proxy.agents.models import TokenCounter
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.common.errors import ModelError, StorageError
from om_proxy.edge import exchange as edge
from om_proxy.edge.chat import TurnRoute
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.turn_closing import TurnClosing
from om_proxy.engine.background.due_work import Work
from om_proxy.engine.background.performers.work_guard import CycleReport, WorkGuard
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.background.thread_run import ThreadRun
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.deferred import DeferredTurns
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import CommittedTurn, PreparedTurn
from om_proxy.management.note_editor import NoteEditor
from om_proxy.management.pin_board import PinBoard
from om_proxy.management.work_requests import WorkRequests
from om_proxy.memory.model import Key
from om_proxy.observability.facts import ExtraFailed, Facts
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.upstream import Upstream
from tests.agents.scripted_llm import know_nothing
from tests.simulation.actor import EXCHANGE
from tests.simulation.minds import Surprise
from tests.simulation.promises import Violation
from tests.simulation.store import SimulatedStore
from tests.simulation.talk import Exchange
from tests.support.policies import build_policies

if TYPE_CHECKING:
    from tests.simulation.world import World

SECRET = b"simulation".ljust(32)

# the simulated store fails on purpose
STORE_FAULTS = ("StorageError", "Conflict", "TimeoutError")

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """One proxy: everything of proxy/om_proxy/app/app.py between the edge and the models. A crash
    drops it where it stands."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.connections: dict[Exchange, None] = {}
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.store = SimulatedStore(world.disk, world.pause)
        catalogue, rng = TokenCounter(), world.rng
        policies = build_policies(world.settings)
        facts = Facts()
        facts.subscribe(self._check_extra, ExtraFailed)
        memories = self.memories = Memories(
            self.store,
            policies,
            world.plan.cache_bytes,
            clock=world.clock,
            label=partial(label_thread, SECRET),
            facts=facts,
        )
        guard = WatchedGuard(memories, policies, clock=world.clock, jitter=rng.random)
        guard.world = world
        worker = WatchedWorker(
            memories,
            Observer(world.minds, abilities=know_nothing, tokens=catalogue.tokens, rng=rng),
            Reflector(world.minds, abilities=know_nothing, tokens=catalogue.tokens, rng=rng),
            catalogue.tokens,
            guard,
            clock=world.clock,
        )
        worker.world = world
        self.background = WatchedBackground(
            memories, worker, policies, concurrency=4, clock=world.clock
        )
        self.background.world = world
        steering = (memories, policies, catalogue.tokens, world.clock)
        self.editor, self.pins = NoteEditor(*steering), PinBoard(*steering)
        self.work = WorkRequests(memories, self.background, world.clock)
        deferred = DeferredTurns()
        engine = WatchedEngine(
            memories,
            self.background,
            BlockRenderer(),
            catalogue,
            SECRET,
            clock=world.clock,
            deferred=deferred,
        )
        engine.world = world
        self.site = EdgeConfig.from_settings(world.settings, policies.current)
        upstream = Upstream(transport=world.actor)
        budget = MemoryBudget(lambda: world.settings.limits.memory)
        self.chat = TurnRoute(
            engine, self.background, upstream, SECRET, budget, facts, InlineEvents(memories)
        )
        closing = WatchedClosing(engine, self.background, budget, facts)
        closing.world = world
        self.chat._closing = closing
        self._seen, self._idle = world.steps, 0
        self.spawn(self.background.look_for_due(self._interval))
        self.spawn(deferred.retry_forever())

    def _interval(self) -> float:
        """Longer by night: most of virtual time is a client's pause of hours, in which every look
        costs what a turn costs."""
        self._seen, quiet = self.world.steps, self._seen == self.world.steps
        self._idle = min(self._idle + 1, 3) if quiet else 0
        return self.world.settings.background.observer_interval * 2**self._idle

    def _check_extra(self, fact: ExtraFailed) -> None:
        if fact.error not in STORE_FAULTS:
            self.world.broke(Violation(f"{fact.extra} failed: {fact.error} at {fact.at}"))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.world.loop.create_task(work, context=self.context)

    def crash(self) -> None:
        if self.dead or self.world.calm:
            return
        self.world.told(f"crash of {self.number}")
        self.world.crashes += 1
        self.dead = self.store.dead = True
        for task in list(self.tasks):
            task.cancel()
        for exchange in self.connections:
            self.world.end(exchange)
            exchange.handled, exchange.closings = True, 0
        self.world.restart(self)


# ── the parts, watched: what they would pass over in silence is a violation here ──────────────────


class WatchedWorker(MemoryWorker):
    world: World

    async def perform(
        self,
        key: Key,
        decision: Work,
        context: MemoryContext,
        run: ThreadRun | None = None,
    ) -> bool:
        perform = partial(super().perform, key, decision, context)
        self.world.calls_under_way += 1
        self.world.call_begins.set()
        try:
            if self.world.calm or self.world.rng.random() >= 0.1:
                return await perform(run)
            self.world.told(
                f"{type(decision).__name__} twice"
            )  # as when a lease has run out: both are answered
            done = await asyncio.gather(perform(run), perform())
            return done[0]
        finally:
            self.world.calls_under_way -= 1
            self.world.call_begins.clear()


class WatchedGuard(WorkGuard):
    world: World

    async def record_failure(self, exc: ModelError, cycle: CycleReport) -> None:
        if (
            type(exc) is ModelError
            and str(exc) not in ("broken", Surprise.__name__)
            and "credential" not in str(exc)
        ):
            self.world.broke(Violation(f"a memory model's failure that was ours: {exc}"))
        await super().record_failure(exc, cycle)


class WatchedBackground(Background):
    world: World

    async def _run(self, *args: Any) -> None:
        try:
            await super()._run(*args)
        except StorageError:
            raise
        except Exception as exc:
            self.world.broke(exc)
            raise


class WatchedEngine(Engine):
    world: World

    async def close_turn(self, *args: Any, **more: Any) -> CommittedTurn:
        committed: CommittedTurn = await self._watched(super().close_turn(*args, **more))
        return committed

    async def store_unanswered(self, turn: PreparedTurn, ended_at: float | None = None) -> None:
        await self._watched(super().store_unanswered(turn, ended_at))

    async def open_turn(self, *args: Any, **more: Any) -> PreparedTurn:
        turn: PreparedTurn = await self._watched(super().open_turn(*args, **more))
        verdict = turn.opened.reconciled.verdict
        self.world.told(f"case {verdict.case} cut {verdict.cut_seq} {turn.status} {turn.reason}")
        if verdict.cut_seq is not None:
            self.world.talks[turn.opened.key].forked = self.world.loop.time()
        self.world.cases[verdict.case] = self.world.cases.get(verdict.case, 0) + 1
        return turn

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except StorageError:
            raise
        except Exception as exc:
            self.world.broke(exc)
            raise


class WatchedClosing(TurnClosing):
    world: World

    async def _close_or_defer(
        self,
        exchange: edge.Exchange,
        reply: Reply | None,
        commit: Callable[[], Awaitable[None]] | None,
    ) -> None:
        number = next(int(v) for n, v in exchange.scope["headers"] if n == EXCHANGE.encode())
        ours = self.world.exchanges[number]
        ours.closings += 1
        try:
            await super()._close_or_defer(exchange, reply, commit)
        finally:
            ours.closings -= 1
