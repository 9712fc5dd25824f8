"""The composition root: settings → store, models, upstream, engine → one ASGI app and its lifespan."""

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
from om_proxy.agents.llm import Routed, Target
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.background import Background
from om_proxy.catalogue import Catalogue, limits
from om_proxy.deferred import DeferredTurns
from om_proxy.deliveries import Deliveries
from om_proxy.edge import answers
from om_proxy.edge.admin import AdminApi
from om_proxy.edge.admission import Admission, Held, Passing
from om_proxy.edge.base_url import without_names
from om_proxy.edge.chat import ChatRoute
from om_proxy.edge.guard import GUARD, Guard
from om_proxy.edge.headers import Header, fault_of_head
from om_proxy.edge.own_pages import ABOUT, ADMIN, own_page
from om_proxy.edge.passthrough import CLIENT_LEFT, Passed, passthrough, refuse
from om_proxy.edge.routing import fault_of_protocol, may_name, server_for
from om_proxy.edge.site import Site
from om_proxy.edge.unreached import UnreachedRequests
from om_proxy.engine import Engine
from om_proxy.errors import ConfigError, OmError, StorageError
from om_proxy.lasting import keep_running
from om_proxy.logs import start_failed, thread_label
from om_proxy.memories import Memories
from om_proxy.memory import identity, lifecycle
from om_proxy.memory.model import Memory
from om_proxy.observing import Call, Observing, priced
from om_proxy.prompt import Prompts
from om_proxy.settings import Effective, Settings, StorageSettings, Watched
from om_proxy.steering import Steering
from om_proxy.storage.base import Stir, Store
from om_proxy.storage.reopening import ReopeningStore
from om_proxy.storage.spool import SpoolingStore
from om_proxy.storage.spool_budget import SpoolBudget
from om_proxy.storage.sqlite import SqliteStore
from om_proxy.storage.write_probe import WriteProbe
from om_proxy.upstream import AiohttpTransport, Upstream

CHAT = (b"/v1/chat/completions", b"/chat/completions")
CONNECTIONS = 1_000  # to model servers, for chat


class App:
    """The program: everything it consists of, made in `start`, ended in `stop`; called as an ASGI app."""

    def __init__(
        self, watched: Watched, *, clock: Callable[[], float] = time.time, model_within: float | None = None
    ) -> None:
        self._watched = watched
        self._model_within = model_within
        self._clock = clock
        self._site = Site.of(watched.current)
        self.admission = Admission(lambda: watched.current.limits)
        self.store: SpoolingStore
        self._reopening: ReopeningStore
        self._write_probe: WriteProbe
        self._catalogue: Catalogue
        self._deferred: DeferredTurns
        self.upstream: Upstream
        self._memory_road: AiohttpTransport
        self._litellm: LiteLLM
        self.background: Background
        self.chat: ChatRoute
        self.admin: AdminApi
        self.unreached: UnreachedRequests
        self._deliveries: Deliveries
        self._tasks: list[asyncio.Task[None]] = []
        self._warm_up: asyncio.Task[None] | None = None
        self._memory_tasks: list[
            asyncio.Task[None]
        ] = []  # of what is composed anew where a database has another secret

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        settings = self._watched.current
        budget = SpoolBudget()
        self._reopening = made = reopening_store(settings.storage, settings.retention.generations)
        try:
            await made.open()
        except StorageError:
            if settings.storage.required:
                raise
        self.store = SpoolingStore(made, budget)
        self._write_probe = WriteProbe(self.store)
        try:
            self._compose(settings, made.known_secret, budget)
        except BaseException:
            await self.store.close()  # its thread would keep the process alive
            raise

    def _compose(self, settings: Settings, secret: bytes, budget: SpoolBudget) -> None:
        self.upstream = Upstream(connections=CONNECTIONS)
        self._catalogue = Catalogue()
        self._memory_road = AiohttpTransport()  # apart from chat's: observing never takes its places
        self._litellm = LiteLLM()
        self._compose_memory(settings, secret, budget)
        self._warm_up = asyncio.create_task(self._catalogue.warm_up()) if may_remember(settings) else None
        self._tasks = [
            *([self._warm_up] if self._warm_up else []),
            _start_lasting("settings", self._watched.watch),
            _start_lasting("reopen", self._reopening.reopen_forever),
            _start_lasting("flush", self.store.flush_forever),
        ]
        self._reopening.opened = partial(self._take_store, budget)

    async def _take_store(self, budget: SpoolBudget, secret: bytes, is_known: bool) -> None:
        """The database is another one. Where it has a secret of its own, all that was keyed with ours means nothing in it."""
        if is_known:
            self.store.mark_moved()
            return
        before, tasks = self.background, self._memory_tasks
        self._deferred.drop_all("OtherDatabase")
        self.store.drop_all("OtherDatabase")
        self._compose_memory(self._watched.current, secret, budget)
        await _cancel(tasks)
        await before.close()

    def _compose_memory(self, settings: Settings, secret: bytes, budget: SpoolBudget) -> None:
        catalogue = self._catalogue
        llm = Routed(Direct(self._memory_road), self._litellm)
        named = partial(thread_label, secret)
        self.store.label = named
        self._deferred = DeferredTurns(budget, named, lambda: not self._reopening.has_opened)
        memories = Memories(
            self.store, self._due, label=partial(identity.label, secret), stir=self._stir, spool=self.store
        )
        observing = Observing(
            memories,
            Observer(llm, tokens=catalogue.tokens, abilities=limits),
            Reflector(llm, tokens=catalogue.tokens, abilities=limits),
            catalogue.tokens,
            clock=self._clock,
            within=self._call_timeout,
            environ=os.environ,
        )
        self.background = Background(
            memories,
            observing,
            self._call_for,
            concurrency=settings.background.concurrency,
            clock=self._clock,
            busy=self.admission.busy,
        )
        engine = Engine(
            memories, self.background, Prompts(), catalogue, secret, clock=self._clock, deferred=self._deferred
        )
        self._deliveries = engine.deliveries
        self.store.renumbered = engine.deliveries.renumber
        self.chat = ChatRoute(engine, self.background, self.upstream, secret, self.admission.budget)
        self.unreached = UnreachedRequests(secret)
        self.admin = AdminApi(Steering(memories, self._effective, clock=self._clock), secret, self._clock)
        self._memory_tasks = [
            _start_lasting("deliveries", engine.deliveries.write_forever),
            _start_lasting("deferred", self._deferred.retry_forever),
            _start_lasting("due", partial(self.background.look_for_due, self._observer_interval)),
        ]

    def _observer_interval(self) -> float:
        return self._watched.current.background.observer_interval

    def _call_timeout(self) -> float:
        """Seconds a memory call may take, as the configuration says now."""
        return self._model_within or self._watched.current.background.call_timeout

    async def stop(self) -> None:
        await _cancel([*self._tasks, *self._memory_tasks])
        await self._write_probe.close()
        self._deferred.let_go()
        self.store.let_go()
        await self.background.close()
        await self._deferred.close()
        self.admission.budget.close()
        await self._deliveries.write()
        await self.upstream.aclose()
        await self._memory_road.aclose()
        self._litellm.close()
        await self.store.close()

    def _due(self, memory: Memory) -> float | None:
        try:
            effective = priced(self._effective(memory), memory.model).overridden(memory.overrides)
        except ConfigError:  # overrides that contradict each other: this thread's requests say so, and go raw
            return None
        return lifecycle.due_at(memory, effective.limits, self._clock())

    def _effective(self, memory: Memory) -> Effective:
        return self._watched.current.effective(memory.model, memory.key.resource)

    def _stir(self, memory: Memory) -> Stir | None:
        """From how many unobserved tokens on the resource of this thread is due."""
        try:
            limits = self._effective(memory).limits
        except ConfigError:
            return None
        return Stir(self._clock(), limits.interval or limits.observe_at)

    def _call_for(self, memory: Memory) -> Call | None:
        """What work found after a restart can be done with: a configured memory model, or the upstream's own key."""
        settings = self._watched.current
        try:
            effective = priced(settings.effective(memory.model, memory.key.resource), memory.model)
        except ConfigError:
            return None
        upstream = settings.upstream_for(memory.model)
        inherited = None
        if upstream is not None and upstream.api_key and memory.model:
            inherited = Target(
                model=memory.model, base_url=upstream.base_url, api_key=upstream.api_key.get_secret_value()
            )
        if inherited is None and "inherit" in (effective.observer_model, effective.reflector_model):
            return None
        return Call(effective, inherited)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(scope, receive, send)
            case kind:
                raise RuntimeError(f"served without support for {kind}: run uvicorn with ws='none'")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope = without_names(scope)
            if fault := fault_of_head(scope["headers"], scope["http_version"]):
                raise fault
            refusal = fault_of_protocol(scope)
            # as it was written: a path in disguise (`/v1/chat%2fcompletions`) is none of these routes, and refused by `_pass`
            is_chat = scope["raw_path"] in CHAT and scope["method"] == "POST" and not refusal
            page = None if is_chat or refusal else own_page(scope)
        except OmError as exc:
            await answers.error(send, exc)
            return
        site = self._current_site()
        if is_chat:
            with Held(self.admission, scope, receive) as held:
                await self.chat(scope, held.receive, send, site, held.weigh)
        elif page == ADMIN:
            await self.admin(scope, receive, send, site)
        elif page is not None:
            await OURS[page](self, send)
        else:
            await self._pass(scope, receive, send, site, refusal)

    def _current_site(self) -> Site:
        if self._site.settings is not self._watched.current:
            self._site = Site.of(self._watched.current)
        return self._site

    async def _pass(self, scope: Scope, receive: Receive, send: Send, site: Site, refusal: OmError | None) -> None:
        unreached = self.unreached.find(scope, site)
        receipt = unreached.receipt if unreached else ()
        passed = await self._passed(scope, receive, send, site, refusal, receipt)
        if unreached:
            self.unreached.tell(unreached, passed)

    async def _passed(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        site: Site,
        refusal: OmError | None,
        receipt: Sequence[Header],
    ) -> Passed:
        look = may_name(scope, site)
        try:
            if refusal:
                raise refusal
            identity.admit(scope["headers"], site.identity)
            place = Held(self.admission, scope, receive) if look else Passing(self.admission, receive)
        except OmError as exc:
            return await refuse(send, exc, receipt)
        with place:
            try:
                body = await answers.read_body(place.receive, site.settings.limits.body) if look else None
                upstream = server_for(scope, site, body)
            except OmError as exc:
                return await refuse(send, exc, receipt)
            except answers.Disconnected:
                return CLIENT_LEFT
            headers = site.sent_on(scope["headers"], upstream)
            relayed = partial(passthrough, upstream=self.upstream, settings=upstream, headers=headers, body=body)
            return await relayed(scope, place.receive, send, receipt=receipt)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope.get("state", {})[GUARD] = Guard(lambda: self._watched.current.limits)
        try:
            await self.start()
        except Exception as exc:
            start_failed(exc)  # whatever it is: in one line for who started the server, which does not begin to serve
            await send({"type": "lifespan.startup.failed"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def alive(self, send: Send) -> None:
        await answers.as_json(send, 200, {"status": "ok"})

    async def ready(self, send: Send) -> None:
        """200 while chat can be served; says `degraded` when memory cannot. 503 at first, while the first request with memory would
        wait for what is being loaded; one that comes all the same is served."""
        if self._warm_up is not None and not self._warm_up.done():
            await answers.as_json(send, 503, {"status": "starting"}, [(b"retry-after", b"1")])
            return
        try:
            await self._write_probe.check(self._reopening.is_away or self.store.is_failing)
        except OmError as exc:
            await answers.as_json(send, 200, {"status": "degraded", "reason": exc.code})
            return
        await answers.as_json(send, 200, {"status": "ok"})

    async def about(self, send: Send) -> None:
        await answers.as_json(send, 200, ABOUT)


def may_remember(settings: Settings) -> bool:
    """Whether any request may have memory: overrides can switch it on."""
    return settings.memory.enabled or bool(settings.models or settings.resources)


def _start_lasting(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    return asyncio.create_task(keep_running(name, work))


OURS = {"/": App.about, "/healthz": App.alive, "/readyz": App.ready}


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def reopening_store(settings: StorageSettings, generations: int | None) -> ReopeningStore:
    file = Path(settings.file) if settings.file else None
    return ReopeningStore(lambda: open_store(settings.url, generations), file)


async def open_store(url: str, generations: int | None = None) -> Store:
    """The store an address names; raises ConfigError for a kind there is no backend for yet. `generations`: see SqliteStore.open."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        raise ConfigError(f"storage.url: no backend for {scheme}:// in this version; use sqlite:///path/to/file.db")
    try:
        return await SqliteStore.open(rest.removeprefix("/") or ":memory:", generations=generations)
    except StorageError as exc:
        raise StorageError(
            f"storage.url: {exc}; name a file of ours or a new one, where this process may write"
        ) from exc


def create_app(
    settings: Settings | Watched, *, clock: Callable[[], float] = time.time, model_within: float | None = None
) -> App:
    """The app for these settings. `clock` gives unix seconds: when messages are first seen, what dates are relative to.
    `model_within`: seconds a memory model may take."""
    watched = settings if isinstance(settings, Watched) else Watched(settings)
    return App(watched, clock=clock, model_within=model_within)
