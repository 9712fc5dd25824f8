"""The composition root of a server: make the store, models, upstream and engine from the settings, as
one ASGI app with a lifespan."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.model_access.direct import Direct
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.agents.model_access.llm import Routed
from om_proxy.agents.models import TokenCounter
from om_proxy.app.composition import create_background, create_message_vectors, open_tracing
from om_proxy.app.own_pages import (
    ABOUT_PAGE,
    ABOUT_WORKER,
    MetricsPage,
    OwnPages,
    describe_store,
    is_verbose,
)
from om_proxy.app.router import Router
from om_proxy.app.store_opening import create_reopening_store
from om_proxy.common.errors import OmError
from om_proxy.common.off_loop import FirstUse
from om_proxy.common.permanent_tasks import keep_running
from om_proxy.edge.chat import TurnRoute
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.passthrough import UnreachedRequests
from om_proxy.edge.rounds.recall_offers import RecallOffers
from om_proxy.edge.rounds.recalling import CreateLookUps
from om_proxy.engine.background.embedding import MessageVectors, create_vector_filler
from om_proxy.engine.background.indexing import create_index_filler
from om_proxy.engine.background.retention import Retention
from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce, find_token_prices
from om_proxy.engine.recall.conversations import OfferedThreads
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.deferred import DeferredTurns
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.management.api.sign_in import SignIn
from om_proxy.management.audit_log import AuditLog
from om_proxy.memory.escaping import escape
from om_proxy.memory.rounds import LookUps
from om_proxy.observability.fact_lines import LOGGED_FACTS, FactLines
from om_proxy.observability.facts import Facts, Forgotten, MemoryCallEnded
from om_proxy.observability.figures.figures import Figures, ProcessState, TotalsWatch
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.observability.logs import get_thread_label, report_start_failure
from om_proxy.settings.config import Settings, WatchedSettings, WebhookSettings
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.spooling.breaker import WriteProbe
from om_proxy.storage.spooling.spooled_turns import SpoolBudget
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.store_clock import StoreClock
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.admission import Admission
from om_proxy.wire.server.capacity.work_queues import LOOK_UP, WorkQueues
from om_proxy.wire.server.graceful_server import STOP_STATE_KEY, ServerStop
from om_proxy.wire.server.watchdog import WATCHDOG_STATE_KEY, Watchdog
from om_proxy.wire.upstream import AiohttpTransport, Upstream

if TYPE_CHECKING:
    from om_proxy.app.management import Management
    from om_proxy.observability.spans import Tracing

logger = structlog.get_logger()

PRUNE_INTERVAL_S = 3_600.0
WEBHOOKS_CHECK_INTERVAL_S = 1.0  # whether the settings have any
# for commits, and then for giving leases back, before a process ends
BACKGROUND_GRACE_S = 1.5
LOOK_JITTER = 0.2  # of `background.observer_interval`
MAX_CHAT_CONNECTIONS = 1_000  # to model servers


class App:
    """The program as an ASGI app. `start` creates its parts, `stop` ends them.

    `clock` returns unix seconds; it dates messages and prompts. `model_timeout_s`: how long a memory
    model may take. `figures_folder`: where the workers of one server share their figures.
    `is_worker`: it does the background work and serves nothing but its own pages (`serve --worker`).
    `sign_in`: whose link is printed.
    """

    def __init__(
        self,
        settings: Settings | WatchedSettings,
        *,
        clock: Callable[[], float] = time.time,
        model_timeout_s: float | None = None,
        figures_folder: Path | None = None,
        is_worker: bool = False,
        sign_in: SignIn | None = None,
    ) -> None:
        watched = settings if isinstance(settings, WatchedSettings) else WatchedSettings(settings)
        self._watched = watched
        self._sign_in = sign_in
        self._is_worker = is_worker
        self._machine_clock = clock
        self._clock = clock  # the store's, once it is open
        self._policies = PolicyInForce(watched, model_timeout_s=model_timeout_s)
        self._config = self._make_config()
        is_counting = watched.current.telemetry.metrics
        self._figures = Figures(watched, figures_folder) if is_counting else None
        self._tracing: Tracing | None = None
        self.admission = Admission(lambda: watched.current.limits)
        self.work_queues = WorkQueues(self.admission.budget)
        self._memories: Memories | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._warm_up: asyncio.Task[None] | None = None
        # created again for a database with another secret
        self._memory_tasks: list[asyncio.Task[None]] = []
        # no more work is claimed by a process that ends soon
        self._server_stop = ServerStop(lambda: self.background.leave_due_work())  # noqa: PLW0108 - created later

    # ── lifespan ──────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open the store, create all parts, and start the background tasks."""
        settings = self._watched.current
        self._tracing = open_tracing(settings.telemetry.otel)
        budget = SpoolBudget()
        self._reopening = create_reopening_store(
            settings.storage,
            settings.retention.generations,
            self._machine_clock,
            self._empty_memory_cache,
        )
        await self._reopening.open(is_required=settings.storage.required)
        self._store_clock = StoreClock(self._reopening, self._machine_clock)
        await self._store_clock.try_measure()
        self._clock = self._store_clock.now
        self._reopening.before_use = self._store_clock.try_measure
        measured = (
            self._figures.measure(self._reopening, lambda: self.facts)
            if self._figures
            else self._reopening
        )
        self.store = SpoolingStore(measured, budget)
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
        self._embedding_models = EmbeddingModels(self._litellm)
        self._compose_memory(settings, secret, budget)
        self._warm_up = (
            asyncio.create_task(
                _warm_up(self._token_counter, self._embedding_models, settings.embedding_models)
            )
            if can_have_memory(settings)
            else None
        )
        self._tasks = [
            *([self._warm_up] if self._warm_up else []),
            _start_permanent("settings", self._watched.watch),
            _start_permanent("reopen", self._reopening.reopen_forever),
            _start_permanent("clock", self._store_clock.measure_forever),
            _start_permanent("webhooks", self._send_webhooks_forever),
            _start_permanent("prune", self._prune_forever),
            _start_permanent("flush", self.store.flusher.flush_forever),
        ]
        if self._figures:
            self._figures.watch_gauges(self._read_state)
            totals = TotalsWatch(self._figures.series, lambda: self.store, self._clock)
            self._tasks += [
                _start_permanent("figures", self._figures.update_gauges_forever),
                _start_permanent("totals", totals.update_forever),
            ]
        self._reopening.on_open = partial(self._take_store, budget)

    async def _take_store(self, budget: SpoolBudget, secret: bytes, is_known: bool) -> None:
        """Switch to another database. If it has its own secret, everything keyed with the old one
        is invalid in it. A turn whose memory was not read is keyed anew: its request says whose it
        is. That holds for the first database, too, if it could not be opened at the start."""
        if is_known:
            self.store.spool.mark_other_database()
            return
        old_background, tasks = self.background, self._memory_tasks
        old_ledger_writer, old_audit_log = self.ledger_writer, self._audit_log
        old_chat, old_offset_s = self.chat, self._clock_offset_s
        self.store.spool.drop_all("OtherDatabase")
        self._compose_memory(self._watched.current, secret, budget)
        old_chat.hand_over(self.chat, self._clock_offset_s - old_offset_s)
        await _cancel_tasks(tasks)
        await old_background.close()
        old_ledger_writer.drop_all("OtherDatabase")
        old_audit_log.drop_all("OtherDatabase")

    def _compose_memory(self, settings: Settings, secret: bytes, budget: SpoolBudget) -> None:
        self._clock_offset_s = self._store_clock.offset_s
        token_counter = self._token_counter
        name_for_log = partial(get_thread_label, secret)
        self.store.spool.name_for_log = name_for_log
        self.ledger_writer = LedgerWriter(self.store, self._clock)
        self.facts = facts = Facts(tells_decisions=settings.telemetry.debug_events)
        facts.subscribe(FactLines(name_for_log), *LOGGED_FACTS)
        self.ledger_writer.subscribe_to(facts)
        if self._figures:
            self._figures.count_facts(facts, partial(label_thread, secret))
        if self._tracing:
            memory_spans = self._tracing.create_subscriber(partial(label_thread, secret))
            facts.subscribe(memory_spans, MemoryCallEnded, Forgotten)
        self._deferred = DeferredTurns(budget, facts)
        self._memories = memories = Memories(
            self.store,
            self._policies,
            clock=self._clock,
            label=partial(label_thread, secret),
            facts=facts,
            spool=self.store,
            count_tokens=token_counter.tokens,
        )
        self.background = create_background(
            memories,
            self._policies,
            Routed(Direct(self._memory_transport), self._litellm),
            token_counter,
            concurrency=settings.background.concurrency,
            clock=self._clock,
            is_busy=self.admission.is_busy,
            is_external=self._is_external,
        )
        engine = Engine(
            memories,
            self.background,
            BlockRenderer(),
            token_counter,
            secret,
            clock=self._clock,
            deferred=self._deferred,
        )
        vectors = create_message_vectors(memories, self._embedding_models, engine.committer)
        self._deliveries = engine.deliveries
        flusher = self.store.flusher
        flusher.renumbered = engine.deliveries.renumber
        flusher.delivered_seq = engine.deliveries.find_delivered_seq
        flusher.forgotten, flusher.label = memories.emit_forgotten, memories.label
        offers = RecallOffers(offered_threads=OfferedThreads(memories.store))
        self.chat = TurnRoute(
            engine,
            self.background,
            self.upstream,
            secret,
            self.admission.budget,
            facts,
            InlineEvents(memories, self.background.find_operation),
            self._tracing.create_chat_tracer(partial(label_thread, secret))
            if self._tracing
            else None,
            self._postpone_look_ups(memories, vectors),
            offers,
        )
        memories.traces.on_words_erased.append(self.chat.drop_texts)
        self.unreached = UnreachedRequests(secret, facts)
        self._audit_log = AuditLog(self.store, partial(label_thread, secret), self._clock)
        self.management = self._postpone_management(
            memories, secret, engine.committer, offers, vectors
        )
        retention = Retention(
            memories,
            self._policies,
            self._audit_log.record_retired,
            self._is_external,
            generations=settings.retention.generations,
        )
        indexing = create_index_filler(
            self.store, lambda: self._policies.current.settings, self._is_external
        )
        embedding = create_vector_filler(
            memories, vectors, lambda: self._policies.current.settings, self._is_external
        )
        own_pages = OwnPages(
            MetricsPage(self._figures.render if self._figures else None, facts),
            {"/": self.send_about, "/healthz": self.send_alive, "/readyz": self.send_ready},
            self._current_config,
        )
        self._router: Router | OwnPages = (
            own_pages
            if self._is_worker
            else Router(
                self.chat,
                self.management,
                own_pages,
                self.unreached,
                self.upstream,
                self.admission,
                facts,
                self._current_config,
            )
        )
        self._memory_tasks = [
            _start_permanent("ledger", self.ledger_writer.write_forever),
            _start_permanent("deliveries", engine.deliveries.write_forever),
            _start_permanent("deferred", self._deferred.retry_forever),
            _start_permanent("retention", retention.run_forever),
            _start_permanent("indexing", partial(indexing.run_forever, self._observer_interval_s)),
            _start_permanent(
                "embedding", partial(embedding.run_forever, self._observer_interval_s)
            ),
            _start_permanent(
                "due", partial(self.background.look_for_due, self._observer_interval_s)
            ),
        ]

    def _postpone_management(
        self,
        memories: Memories,
        secret: bytes,
        committer: Committer,
        offers: RecallOffers,
        vectors: MessageVectors,
    ) -> FirstUse[Management]:
        """Return what serves requests below `/om`, of this database's parts; the first request
        imports it."""
        background, ledger_writer = self.background, self.ledger_writer
        audit_log, clock = self._audit_log, self._clock

        def create() -> Management:
            from om_proxy.app.management import Management, create_admin_services  # noqa: PLC0415 - see FirstUse

            services = create_admin_services(
                memories,
                self._policies,
                background,
                self._token_counter,
                secret,
                committer,
                audit_log,
                clock,
                ledger_writer,
                offers,
                vectors,
                self._sign_in,
            )
            return Management(services, self.work_queues, self.admission)

        return FirstUse(create)

    def _postpone_look_ups(self, memories: Memories, vectors: MessageVectors) -> CreateLookUps:
        """Return the function that makes the look-ups of a turn; its first call imports them."""

        def create() -> Callable[[PreparedTurn], LookUps]:
            from om_proxy.app.look_ups import create_look_ups  # noqa: PLC0415 - see FirstUse

            queue = self.work_queues[LOOK_UP]
            return create_look_ups(memories, self._policies, self._token_counter, queue, vectors)

        first_use = FirstUse(create)

        async def create_for_turn(turn: PreparedTurn) -> LookUps:
            return (await first_use.get())(turn)

        return create_for_turn

    def _is_external(self) -> bool:
        """Return whether this process serves only, and others do the background work."""
        return self._watched.current.background.external and not self._is_worker

    def _list_webhooks(self) -> tuple[WebhookSettings, ...]:
        return () if self._is_external() else self._watched.current.telemetry.webhooks

    def _empty_memory_cache(self) -> None:
        if self._memories is not None:
            self._memories.drop_all()

    def _read_state(self) -> ProcessState:
        return ProcessState(
            self.store.spool.turn_count + self._deferred.turn_count,
            self.background.running_count,
            self.admission.in_flight,
        )

    def _observer_interval_s(self) -> float:
        # so that processes that were started at once do not all ask the store at once
        share = SystemRandom().uniform(1 - LOOK_JITTER, 1 + LOOK_JITTER)
        return self._watched.current.background.observer_interval * share

    async def _send_webhooks_forever(self) -> None:
        """Send events to webhooks from when some are configured."""
        while not self._list_webhooks():  # noqa: ASYNC110 # the settings have no event for it
            await asyncio.sleep(WEBHOOKS_CHECK_INTERVAL_S)
        from om_proxy.engine.event_feed.webhooks import HttpPost, Webhooks  # noqa: PLC0415 - most servers have none

        post = HttpPost(AiohttpTransport())
        try:
            webhooks = Webhooks(self.store, self._list_webhooks, post, clock=self._clock)
            await webhooks.run_forever()
        finally:
            await post.aclose()

    async def _prune_forever(self) -> None:
        """Remove old events, records of the audit, receipts and lines of the ledger, also while no
        new ones come. The store says what time it is: this machine's clock may be far ahead."""
        while True:
            if not self._is_external():
                with suppress(OmError):  # the store is away: the next hour will do
                    await self.store.prune(await self.store.clock())
            await asyncio.sleep(PRUNE_INTERVAL_S)

    async def stop(self) -> None:
        """End the tasks, store what waits, and close all parts."""
        await _cancel_tasks([*self._tasks, *self._memory_tasks])
        await self._write_probe.close()
        self._deferred.release_replies()
        self.store.release_replies()
        await self.background.close(BACKGROUND_GRACE_S)
        await self._deferred.close()
        self.admission.budget.close()
        await self._deliveries.write()
        await self.ledger_writer.close()
        await self._audit_log.close()
        await self.upstream.aclose()
        await self._memory_transport.aclose()
        self._embedding_models.close()
        self._litellm.close()
        await self.store.close()
        if self._figures:
            self._figures.close()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._router.serve(scope, receive, send)
            case "lifespan":
                await self._run_lifespan(scope, receive, send)
            case kind:
                raise RuntimeError(f"served without support for {kind}: run uvicorn with ws='none'")

    def _make_config(self) -> EdgeConfig:
        policy = self._policies.current
        return EdgeConfig.from_settings(policy.settings, policy, os.environ)

    def _current_config(self) -> EdgeConfig:
        if self._config.settings is not self._watched.current:
            self._config = self._make_config()
        return self._config

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        state = scope.get("state", {})
        state[WATCHDOG_STATE_KEY] = Watchdog(lambda: self._watched.current.limits)
        state[STOP_STATE_KEY] = self._server_stop
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

    async def send_alive(self, _scope: Scope, send: Send) -> None:
        await responses.send_json(send, 200, {"status": "ok"})

    async def send_ready(self, scope: Scope, send: Send) -> None:
        """Answer 200 while chat can be served, with `degraded` while memory fails. Answer 503 while
        the first request with memory would wait for loading, and once the server was told to end;
        a request that comes anyway is served. `?verbose` adds what the store promises, if it can
        be asked."""
        if self._server_stop.has_begun:
            await responses.send_json(send, 503, {"status": "stopping"})
            return
        if self._warm_up is not None and not self._warm_up.done():
            await responses.send_json(send, 503, {"status": "starting"}, [(b"retry-after", b"1")])
            return
        answer: dict[str, object] = {"status": "ok"}
        try:
            await self._write_probe.check(self._reopening.is_away or self.store.is_failing)
        except OmError as exc:
            answer = {"status": "degraded", "reason": exc.code}
        if is_verbose(scope):
            answer["store"] = await describe_store(
                self.store, self._policies.current.settings.storage.search
            )
        await responses.send_json(send, 200, answer)

    async def send_about(self, _scope: Scope, send: Send) -> None:
        await responses.send_json(send, 200, ABOUT_WORKER if self._is_worker else ABOUT_PAGE)


async def _warm_up(
    token_counter: TokenCounter, models: EmbeddingModels, embedding_models: Sequence[str]
) -> None:
    """Load what the first requests with memory would wait for: token ranks, then list prices, then
    the patterns of escaping, then the models of semantic searches, whose queries wait 2 s at most."""
    await token_counter.warm_up()
    try:
        await asyncio.to_thread(find_token_prices, "")
    except Exception as exc:  # each turn tries again, and reports the failure
        logger.warning("prices.unloaded", error=type(exc).__name__)
    await asyncio.to_thread(escape, "")
    try:
        await models.warm_up(embedding_models)
    except Exception as exc:  # each search tries again, and goes by words until then
        logger.warning("vectors.failed", error=type(exc).__name__, work="warm-up")


def can_have_memory(settings: Settings) -> bool:
    """Return whether any request may have memory: overrides can switch it on."""
    return settings.memory.enabled or bool(settings.models or settings.resources)


def _start_permanent(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    return asyncio.create_task(keep_running(name, work))


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
