"""The composition root: make the store, models, upstream and engine from the settings, as one ASGI
app with a lifespan."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.types import Receive, Scope, Send

from om_proxy.agents.direct import Direct
from om_proxy.agents.litellm_adapter import LiteLLM
from om_proxy.agents.llm import Routed
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.apis.registry import CHAT
from om_proxy.background.performers.work_guard import WorkGuard
from om_proxy.background.scheduler import Background
from om_proxy.background.worker import MemoryWorker
from om_proxy.edge.admin.admin_api import AdminApi
from om_proxy.edge.chat import ChatRoute
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.own_pages import ABOUT_PAGE
from om_proxy.edge.router import Router
from om_proxy.edge.unreached import UnreachedRequests
from om_proxy.errors import ConfigError, OmError, StorageError
from om_proxy.facts import Facts
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory_cache import Memories
from om_proxy.models import TokenCounter, find_abilities
from om_proxy.permanent_tasks import keep_running
from om_proxy.policy import PolicyInForce
from om_proxy.server import responses
from om_proxy.server.admission import Admission
from om_proxy.server.watchdog import WATCHDOG_STATE_KEY, Watchdog
from om_proxy.settings import Settings, StorageSettings, WatchedSettings
from om_proxy.storage.base import Store
from om_proxy.storage.reopening_store import ReopeningStore
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.write_probe import WriteProbe
from om_proxy.telemetry.fact_lines import FactLines
from om_proxy.telemetry.logs import get_thread_label, report_start_failure
from om_proxy.thread_admin import ThreadAdmin
from om_proxy.thread_reader import ThreadReader
from om_proxy.turns.block_renderer import BlockRenderer
from om_proxy.turns.deferred import DeferredTurns
from om_proxy.turns.deliveries import Deliveries
from om_proxy.turns.engine import Engine
from om_proxy.turns.preview import ContextPreviewer
from om_proxy.upstream import AiohttpTransport, Upstream

MAX_CHAT_CONNECTIONS = 1_000  # to model servers


class App:
    """The program as an ASGI app. `start` creates its parts, `stop` ends them."""

    def __init__(
        self,
        watched: WatchedSettings,
        *,
        clock: Callable[[], float] = time.time,
        model_timeout_s: float | None = None,
    ) -> None:
        self._watched = watched
        self._clock = clock
        self._policies = PolicyInForce(watched, model_timeout_s=model_timeout_s)
        self._config = EdgeConfig.from_settings(watched.current, self._policies.current)
        self.admission = Admission(lambda: watched.current.limits)
        self.store: SpoolingStore
        self._reopening: ReopeningStore
        self._write_probe: WriteProbe
        self._token_counter: TokenCounter
        self._deferred: DeferredTurns
        self.upstream: Upstream
        self._memory_transport: AiohttpTransport
        self._litellm: LiteLLM
        self.background: Background
        self.chat: ChatRoute
        self.admin: AdminApi
        self.unreached: UnreachedRequests
        self._router: Router
        self._deliveries: Deliveries
        self._tasks: list[asyncio.Task[None]] = []
        self._warm_up: asyncio.Task[None] | None = None
        # created again for a database with another secret
        self._memory_tasks: list[asyncio.Task[None]] = []

    # ── lifespan ──────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open the store, create all parts, and start the background tasks."""
        settings = self._watched.current
        budget = SpoolBudget()
        self._reopening = create_reopening_store(settings.storage, settings.retention.generations)
        try:
            await self._reopening.open()
        except StorageError:
            if settings.storage.required:
                raise
        self.store = SpoolingStore(self._reopening, budget)
        self._write_probe = WriteProbe(self.store)
        try:
            self._compose(settings, self._reopening.known_secret, budget)
        except BaseException:
            await self.store.close()  # the store's thread would keep the process alive
            raise

    def _compose(self, settings: Settings, secret: bytes, budget: SpoolBudget) -> None:
        self.upstream = Upstream(connections=MAX_CHAT_CONNECTIONS)
        self._token_counter = TokenCounter()
        # its own transport: observing never takes connections from chat
        self._memory_transport = AiohttpTransport()
        self._litellm = LiteLLM()
        self._compose_memory(settings, secret, budget)
        self._warm_up = (
            asyncio.create_task(self._token_counter.warm_up())
            if can_have_memory(settings)
            else None
        )
        self._tasks = [
            *([self._warm_up] if self._warm_up else []),
            _start_permanent("settings", self._watched.watch),
            _start_permanent("reopen", self._reopening.reopen_forever),
            _start_permanent("flush", self.store.flusher.flush_forever),
        ]
        self._reopening.on_open = partial(self._take_store, budget)

    async def _take_store(self, budget: SpoolBudget, secret: bytes, is_known: bool) -> None:
        """Switch to another database. If it has its own secret, everything keyed with the old one
        is invalid in it."""
        if is_known:
            self.store.spool.mark_other_database()
            return
        old_background, tasks = self.background, self._memory_tasks
        self._deferred.drop_all("OtherDatabase")
        self.store.spool.drop_all("OtherDatabase")
        self._compose_memory(self._watched.current, secret, budget)
        await _cancel_tasks(tasks)
        await old_background.close()

    def _compose_memory(self, settings: Settings, secret: bytes, budget: SpoolBudget) -> None:
        token_counter = self._token_counter
        name_for_log = partial(get_thread_label, secret)
        self.store.spool.name_for_log = name_for_log
        facts = Facts(FactLines(name_for_log))
        self._deferred = DeferredTurns(budget, facts, lambda: not self._reopening.has_opened)
        memories = Memories(
            self.store,
            self._policies,
            clock=self._clock,
            label=partial(label_thread, secret),
            facts=facts,
            spool=self.store,
        )
        self.background = self._create_background(memories, settings.background.concurrency)
        engine = Engine(
            memories,
            self.background,
            BlockRenderer(),
            token_counter,
            secret,
            clock=self._clock,
            deferred=self._deferred,
        )
        self._deliveries = engine.deliveries
        self.store.flusher.renumbered = engine.deliveries.renumber
        self.chat = ChatRoute(
            CHAT, engine, self.background, self.upstream, secret, self.admission.budget, facts
        )
        self.unreached = UnreachedRequests(secret, facts)
        self.admin = self._create_admin_api(memories, engine, secret)
        self._router = Router(
            self.chat,
            self.admin,
            self.unreached,
            self.upstream,
            self.admission,
            self._current_config,
            {"/": self.send_about, "/healthz": self.send_alive, "/readyz": self.send_ready},
        )
        self._memory_tasks = [
            _start_permanent("deliveries", engine.deliveries.write_forever),
            _start_permanent("deferred", self._deferred.retry_forever),
            _start_permanent(
                "due", partial(self.background.look_for_due, self._observer_interval_s)
            ),
        ]

    def _create_background(self, memories: Memories, concurrency: int) -> Background:
        count_tokens = self._token_counter.tokens
        llm = Routed(Direct(self._memory_transport), self._litellm)
        worker = MemoryWorker(
            memories,
            Observer(llm, tokens=count_tokens, abilities=find_abilities),
            Reflector(llm, tokens=count_tokens, abilities=find_abilities),
            count_tokens,
            self._policies,
            WorkGuard(memories, self._policies, clock=self._clock),
            clock=self._clock,
            environ=os.environ,
        )
        return Background(
            memories,
            worker,
            self._policies,
            concurrency=concurrency,
            clock=self._clock,
            is_busy=self.admission.is_busy,
        )

    def _create_admin_api(self, memories: Memories, engine: Engine, secret: bytes) -> AdminApi:
        previewer = ContextPreviewer(
            memories,
            self._policies,
            self.background,
            self._token_counter,
            secret,
            self._clock,
            engine.deliveries,
        )
        return AdminApi(
            ThreadAdmin(memories, self._policies, clock=self._clock),
            ThreadReader(memories, self._policies, self._clock),
            previewer,
            secret,
            self._clock,
        )

    def _observer_interval_s(self) -> float:
        return self._watched.current.background.observer_interval

    async def stop(self) -> None:
        """End the tasks, store what waits, and close all parts."""
        await _cancel_tasks([*self._tasks, *self._memory_tasks])
        await self._write_probe.close()
        self._deferred.release_replies()
        self.store.release_replies()
        await self.background.close()
        await self._deferred.close()
        self.admission.budget.close()
        await self._deliveries.write()
        await self.upstream.aclose()
        await self._memory_transport.aclose()
        self._litellm.close()
        await self.store.close()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._router.serve(scope, receive, send)
            case "lifespan":
                await self._run_lifespan(scope, receive, send)
            case kind:
                raise RuntimeError(f"served without support for {kind}: run uvicorn with ws='none'")

    def _current_config(self) -> EdgeConfig:
        if self._config.settings is not self._watched.current:
            self._config = EdgeConfig.from_settings(self._watched.current, self._policies.current)
        return self._config

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope.get("state", {})[WATCHDOG_STATE_KEY] = Watchdog(lambda: self._watched.current.limits)
        try:
            await self.start()
        except Exception as exc:
            # any exception: log one line for the operator, and do not begin to serve
            report_start_failure(exc)
            await send({"type": "lifespan.startup.failed"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def send_alive(self, send: Send) -> None:
        await responses.send_json(send, 200, {"status": "ok"})

    async def send_ready(self, send: Send) -> None:
        """Answer 200 while chat can be served, with `degraded` while memory fails. Answer 503 while
        the first request with memory would wait for loading; a request that comes anyway is
        served."""
        if self._warm_up is not None and not self._warm_up.done():
            await responses.send_json(send, 503, {"status": "starting"}, [(b"retry-after", b"1")])
            return
        try:
            await self._write_probe.check(self._reopening.is_away or self.store.is_failing)
        except OmError as exc:
            await responses.send_json(send, 200, {"status": "degraded", "reason": exc.code})
            return
        await responses.send_json(send, 200, {"status": "ok"})

    async def send_about(self, send: Send) -> None:
        await responses.send_json(send, 200, ABOUT_PAGE)


def can_have_memory(settings: Settings) -> bool:
    """Return whether any request may have memory: overrides can switch it on."""
    return settings.memory.enabled or bool(settings.models or settings.resources)


def _start_permanent(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    return asyncio.create_task(keep_running(name, work))


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def create_reopening_store(settings: StorageSettings, generations: int | None) -> ReopeningStore:
    file = Path(settings.file) if settings.file else None
    return ReopeningStore(lambda: open_store(settings.url, generations), file)


async def open_store(url: str, generations: int | None = None) -> Store:
    """Open the store at this address. Raise ConfigError for a kind without a backend.
    `generations`: see SqliteStore.open."""
    scheme, _, path = url.partition("://")
    if scheme != "sqlite":
        raise ConfigError(
            f"storage.url: no backend for {scheme}:// in this version; "
            "use sqlite:///path/to/file.db"
        )
    try:
        return await SqliteStore.open(path.removeprefix("/") or ":memory:", generations=generations)
    except StorageError as exc:
        raise StorageError(
            f"storage.url: {exc}; name a database of om-proxy or a new file, where this process may write"
        ) from exc


def create_app(
    settings: Settings | WatchedSettings,
    *,
    clock: Callable[[], float] = time.time,
    model_timeout_s: float | None = None,
) -> App:
    """Create the app for these settings. `clock` returns unix seconds; it dates messages and
    prompts. `model_timeout_s`: how long a memory model may take."""
    watched = settings if isinstance(settings, WatchedSettings) else WatchedSettings(settings)
    return App(watched, clock=clock, model_timeout_s=model_timeout_s)
