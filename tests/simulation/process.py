"""One proxy of the simulation, and its parts as the world watches them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.background import Background
from om_proxy.catalogue import Catalogue
from om_proxy.deferred import DeferredTurns
from om_proxy.edge import exchange as edge
from om_proxy.edge.budget import MemoryBudget
from om_proxy.edge.chat import ChatRoute
from om_proxy.edge.site import Site
from om_proxy.engine import Engine
from om_proxy.errors import ModelError, StorageError
from om_proxy.memories import Memories
from om_proxy.memory import identity, lifecycle
from om_proxy.memory.gathering import Gather, Settle
from om_proxy.memory.lifecycle import Decision
from om_proxy.memory.model import Key, Memory
from om_proxy.observing import Call, Observing, Progress
from om_proxy.prompt import Prompts
from om_proxy.storage.base import Stir
from om_proxy.turn import Turn
from om_proxy.upstream import Upstream
from om_proxy.wire.reply import Reply
from tests.simulation.actor import EXCHANGE
from tests.simulation.minds import Surprise
from tests.simulation.oracle import Violation
from tests.simulation.store import SimulatedStore
from tests.simulation.talk import Exchange

if TYPE_CHECKING:
    from tests.simulation.world import World

SECRET = b"simulation".ljust(32)

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """One proxy: everything of proxy/om_proxy/app.py between the edge and the models. A crash drops it where it stands."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.connections: dict[Exchange, None] = {}
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.store = SimulatedStore(world.disk, world.pause)
        catalogue, rng = Catalogue(), world.rng
        memories = Memories(
            self.store, self._due, world.plan.cache_bytes, label=partial(identity.label, SECRET), stir=self._stir
        )
        observing = WatchedObserving(
            memories,
            Observer(world.minds, tokens=catalogue.tokens, rng=rng),
            Reflector(world.minds, tokens=catalogue.tokens, rng=rng),
            catalogue.tokens,
            clock=world.clock,
            jitter=rng.random,
        )
        observing.world = world
        self.background = WatchedBackground(memories, observing, self._call_for, concurrency=4, clock=world.clock)
        self.background.world = world
        deferred = DeferredTurns()
        engine = WatchedEngine(
            memories, self.background, Prompts(), catalogue, SECRET, clock=world.clock, deferred=deferred
        )
        engine.world = world
        self.site = Site.of(world.settings)
        upstream = Upstream(transport=world.actor)
        budget = MemoryBudget(lambda: world.settings.limits.memory)
        self.chat = WatchedRoute(engine, self.background, upstream, SECRET, budget)
        self.chat.world = world
        self._seen, self._idle = world.steps, 0
        self.spawn(self.background.look_for_due(self._interval))
        self.spawn(deferred.retry_forever())

    def _interval(self) -> float:
        """Longer by night: most of virtual time is a client's pause of hours, in which every look costs what a turn costs."""
        self._seen, quiet = self.world.steps, self._seen == self.world.steps
        self._idle = min(self._idle + 1, 3) if quiet else 0
        return self.world.settings.background.observer_interval * 2**self._idle

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

    def _due(self, memory: Memory) -> float | None:
        limits = self.world.settings.effective(memory.model, memory.key.resource).limits
        return lifecycle.due_at(memory, limits, self.world.clock())

    def _stir(self, memory: Memory) -> Stir:
        limits = self.world.settings.effective(memory.model, memory.key.resource).limits
        return Stir(self.world.clock(), limits.interval or limits.observe_at)

    def _call_for(self, memory: Memory) -> Call | None:
        effective = self.world.settings.effective(memory.model, memory.key.resource)
        if "inherit" in (effective.observer_model, effective.reflector_model):
            return None
        return Call(effective, None)


# ── the parts, watched: what they would pass over in silence is a violation here ──────────────────────────────────────


class WatchedObserving(Observing):
    world: World

    async def perform(
        self, key: Key, decision: Decision | Gather | Settle, call: Call, progress: Progress | None = None
    ) -> bool:
        perform = partial(super().perform, key, decision, call)
        if self.world.calm or self.world.rng.random() >= 0.1:
            return await perform(progress)
        self.world.told(f"{type(decision).__name__} twice")  # as when a lease has run out: both are answered
        done = await asyncio.gather(perform(progress), perform())
        return done[0]

    async def _failed(self, memory: Memory, decision: Decision, exc: ModelError) -> None:
        if type(exc) is ModelError and str(exc) not in ("broken", Surprise.__name__) and "credential" not in str(exc):
            self.world.broke(Violation(f"a memory model's failure that was ours: {exc}"))
        await super()._failed(memory, decision, exc)


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

    async def close_turn(self, turn: Turn, reply: Reply | None, *, accepted: bool) -> None:
        await self._watched(super().close_turn(turn, reply, accepted=accepted))

    async def keep_unanswered(self, turn: Turn) -> None:
        await self._watched(super().keep_unanswered(turn))

    async def open_turn(self, *args: Any, **more: Any) -> Turn:
        turn: Turn = await self._watched(super().open_turn(*args, **more))
        self.world.told(f"case {turn.standing.rec.case} cut {turn.standing.rec.cut} {turn.status} {turn.reason}")
        self.world.cases[turn.standing.rec.case] = self.world.cases.get(turn.standing.rec.case, 0) + 1
        return turn

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except StorageError:
            raise
        except Exception as exc:
            self.world.broke(exc)
            raise


class WatchedRoute(ChatRoute):
    world: World

    async def _closing(self, exchange: edge.Exchange, reply: Reply | None, status: int) -> None:
        number = next(int(v) for n, v in exchange.scope["headers"] if n == EXCHANGE.encode())
        ours = self.world.exchanges[number]
        ours.closings += 1
        try:
            await super()._closing(exchange, reply, status)
        finally:
            ours.closings -= 1
