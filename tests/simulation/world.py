"""The world of one seed: engines on one disk, clients, models, crashes and broken disks, on virtual
time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import orjson
import structlog

from om_proxy.agents.models import create_encoder
from om_proxy.cli.doctor.store import revive_thread
from om_proxy.common.errors import StorageError
from om_proxy.edge import chat as edge
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory, Observation
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION
from tests.simulation import loop, oracle
from tests.simulation.actor import EXCHANGE, Actor
from tests.simulation.callers import Client, Node
from tests.simulation.changes import Changes
from tests.simulation.minds import Minds
from tests.simulation.people import Person
from tests.simulation.plan import CLIENTS, Plan, settings_of
from tests.simulation.process import PROCESS, SECRET, Process
from tests.simulation.promises import Violation, must
from tests.simulation.store import Disk, Thread
from tests.simulation.talk import Exchange, Talk
from tests.simulation.words import ids_in, markers_in

BEGAN = 1_700_000_000.0  # unix seconds at virtual time 0
OUR_FAULTS = (
    "memory-slow",
    "storage",
    "conflict",
)  # reasons of a degraded turn: none of it is kept
FINE = (None, "observer-failing", "observer-late", "fork-not-waited", "upstream-refused")

# ── the world ─────────────────────────────────────────────────────────────────────────────────────


class World:
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.plan = plan or Plan.of(self.rng)
        self.trace: list[str] = []
        self.steps = 0
        self.cases: dict[str, int] = {}
        self.crashes = 0
        self.calm = False
        self.broken: BaseException | None = None
        self.exchanges: list[Exchange] = []
        self.faulty_until = self.fault_at = -1.0
        self.disk = Disk(self.clock, secret=SECRET, watch=self._committed, recent=self.plan.recent)
        self.minds = Minds(self.rng, self.told, self.plan.minds, self.risk)
        self.actor = Actor(self)
        self.settings = settings_of(self.plan.settings)
        self.talks: dict[Key, Talk] = {}
        self.changes = Changes(self.elapsed)
        self.markers = 0  # how many texts people have written
        self.calls_under_way = 0  # of memory models
        self.call_begins = asyncio.Event()
        self.processes: list[Process] = []
        self.loop: loop.VirtualLoop

    # ── time, trouble, and telling ──

    def clock(self) -> float:
        return BEGAN + self.loop.time()

    def elapsed(self) -> float:
        return self.loop.time()

    def told(self, what: str) -> None:
        self.steps += 1
        self.trace.append(f"{self.loop.time():.3f} {what}")

    def broke(self, exc: BaseException) -> None:
        """The first thing that broke ends the run."""
        if self.broken is None:
            self.broken = exc
            self.told(f"BROKEN {exc!r}")

    async def pause(self) -> None:
        """The time a store takes; now and then it fails, or its process crashes."""
        luck = self.rng.random()
        if luck < 0.4:
            pass
        elif luck < 0.7:
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.rng.uniform(0, 0.02 if luck < 0.97 else 0.5))
        if self.calm:
            return
        await self.risk()
        await self._disk_trouble()

    async def risk(self) -> None:
        """A place where the process that got here may crash, now or a little later."""
        process = PROCESS.get()
        if process and not self.calm and self.rng.random() < self.plan.crashes:
            self.loop.call_later(self.rng.choice((0.0, 0.0, 0.01, 2.0)), process.crash)
            await asyncio.sleep(0)

    async def _disk_trouble(self) -> None:
        now = self.loop.time()
        if self.plan.faults and now > self.faulty_until and self.rng.random() < 0.005:
            self.faulty_until = now + self.rng.choice((0.1, 1.0, 10.0, 60.0))
        if now <= self.faulty_until and self.rng.random() < 0.5:
            self.fault_at = max(now, self.fault_at)
            if self.rng.random() < 0.2:
                seconds = self.rng.uniform(1, 8)
                self.fault_at = max(
                    now + seconds, self.fault_at
                )  # a later request may wait for what hangs now
                await asyncio.sleep(seconds)
            else:
                raise StorageError("the disk is broken")

    def _committed(self, before: Memory, after: Memory, rows: Thread) -> None:
        talk = self.talks[after.key]
        self.told(f"{talk.letter} commit {after}")
        try:
            oracle.check_commit(talk, before, after, rows)
        except Violation as exc:
            self.broke(exc)

    # ── requests ──

    async def exchange(self, client: Client, nodes: list[Node], retry: bool = False) -> Exchange:
        """One request, until its answer is over or the client has left."""
        made = self._exchange(client, nodes)
        if retry and not client.alone:
            client.talk.again |= set(made.shown)
        for left in client.talk.exchanges:
            if (
                left.over.done() and left.under_way
            ):  # its messages are being stored, as if two had asked at once
                left.raced = True
                client.talk.again |= set(left.shown) - set(client.talk.live.values())
        self.exchanges.append(made)
        client.talk.exchanges.append(made)
        process = await self._process(client)
        self.told(
            f"{client.talk.letter} asks {made.number} {' '.join(made.shown[-6:])} of {len(made.shown)}"
        )
        process.connections[made] = None
        scope = self._scope(made, client, retry)
        handler = process.spawn(
            process.chat(scope, self._receive(made), self._send(made, process), process.site, CHAT)
        )
        handler.add_done_callback(lambda task: self._handled(made, task))
        if not self.calm and self.rng.random() < self.plan.hang_ups:
            self.loop.call_later(
                self.rng.choice((0.0, 0.02, 0.5, 2.0, 4.0, 8.0)), self._leave, made
            )
        await made.over
        self.told(
            f"{client.talk.letter} over {made.number} {made.status} {made.complete} {made.receipt.get('reason')}"
        )
        self._judge(made)
        return made

    def _exchange(self, client: Client, nodes: list[Node]) -> Exchange:
        shown = [node.id for node in nodes]
        last = max((i for i, node in enumerate(nodes) if node.role == "assistant"), default=-1)
        stream = self.rng.random() < 0.5
        model = self.rng.choice(("actor", "actor", "other"))
        said = [b'{"role":"system","content":"Be brief."}', *(node.raw for node in nodes)]
        head = orjson.dumps({"model": model, "stream": stream})[:-1]
        return Exchange(
            number=len(self.exchanges),
            client=client,
            shown=shown,
            asked=set(shown[last + 1 :]),
            calls=set(shown[max(last, 0) : last + 1]),
            body=head + b',"messages":[' + b",".join(said) + b"]}",
            stream=stream,
            required=client.talk.promised() - client.talk.loose
            if client.thin or client.window
            else set(),
            started=self.loop.time(),
            over=self.loop.create_future(),
            gone=self.loop.create_future(),
        )

    async def _process(self, client: Client) -> Process:
        """One that is alive; a client comes back to the same one, mostly."""
        while not (alive := [p for p in self.processes if not p.dead]):  # noqa: ASYNC110 - a client tries again
            await asyncio.sleep(1)
        if client.sticky and self.rng.random() < 0.9:
            return alive[0]
        return self.rng.choice(alive)

    def _scope(self, made: Exchange, client: Client, retry: bool) -> dict[str, Any]:
        headers = {
            "authorization": "Bearer key",
            "x-om-thread": client.talk.key.thread,
            "x-om-resource": client.talk.key.resource,
            "x-om-history": client.history,
            "x-stainless-retry-count": "1" if retry else "0",
            EXCHANGE: str(made.number),
        }
        path = "/v1/chat/completions"
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(n.encode(), v.encode()) for n, v in headers.items()],
            "extensions": {
                DISCONNECT_EXTENSION: {"future": made.gone}
            },  # as our own server's connections bring it along
        }

    def _receive(self, made: Exchange) -> Callable[[], Any]:
        bodies = [made.body]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await asyncio.shield(made.gone)
            return {"type": "http.disconnect"}

        return receive

    def _send(self, made: Exchange, process: Process) -> Callable[[Any], Any]:
        async def send(said: dict[str, Any]) -> None:
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.choice((0.0, 0.01)))
            await self.risk()
            if process.dead:
                raise asyncio.CancelledError
            if made.over.done():
                return
            if said["type"] == "http.response.start":
                made.status = said["status"]
                ours = [
                    (n.decode(), v.decode()) for n, v in said["headers"] if n.startswith(b"x-om-")
                ]
                made.receipt = {n.removeprefix("x-om-"): v for n, v in ours}
                return
            made.received += said.get("body", b"")
            made.ended = not said.get("more_body", False)
            if made.ended:
                self.end(made)

        return send

    def end(self, made: Exchange) -> None:
        if not made.over.done():
            made.finished = self.loop.time()
            made.over.set_result(None)

    def _leave(self, made: Exchange) -> None:
        if not made.over.done():
            self.told(f"{made.client.talk.letter} hangs up {made.number}")
            made.gone.set_result(None)
            self.end(made)

    def _handled(self, made: Exchange, task: asyncio.Task[None]) -> None:
        made.handled = True
        if not task.cancelled() and (exc := task.exception()):
            self.broke(exc)
        self.end(made)

    # ── judging ──

    def prompted(self, made: Exchange, body: bytes) -> None:
        """The actor is sent this."""
        try:
            observed, raw = self._read(made, body)
            if body == made.body:
                made.missing = made.required - set(raw) - self.changes.excused(made.started)
            else:
                oracle.check_told(made, observed, raw)
                self._check_changes(made, observed, body)
            made.client.talk.shown |= observed | set(raw)
            self.told(
                f"{made.client.talk.letter} prompt {made.number} {len(observed)} + {' '.join(raw[-8:])}"
            )
        except Violation as exc:
            self.broke(exc)

    def _read(self, made: Exchange, body: bytes) -> tuple[set[str], list[str]]:
        """The ids a prompt tells, observed and raw."""
        return oracle.parts(body)

    def _check_changes(self, made: Exchange, observed: set[str], body: bytes) -> None:
        """What people wrote before a request began is in its prompt, and what they took away is
        not."""
        client, log = made.client, self._log_of(made)
        talk, text = client.talk, body.decode()
        told = (observed & self.changes.hidden(made.started)) - talk.again - talk.doubtful()
        must(not told, "what was withdrawn is not told", oracle.named(told))
        held = {node.id for node in client.nodes} - talk.doubtful()
        seqs = {seq for seq, one in talk.live.items() if one in held}
        written = self.changes.expected_markers(log, talk.letter, seqs, made.started)
        missing = written - markers_in(text)
        must(not missing, "what was edited last is told", sorted(missing))
        pins = {pin for pin in self.changes.expected_pins(log, made.started) if pin not in text}
        must(not pins, "every pin is told", sorted(pins))

    def _log_of(self, made: Exchange) -> Key:
        """The row that holds the log of this prompt."""
        return made.client.talk.key

    def check_forgotten(self, log: Key, stand_in: Observation) -> None:
        """Nothing that is stored says what a person had forgotten."""
        kept = self.changes.forgotten.get((log, stand_in.id), set()) & self.changes.hidden()
        for talk in self.talks.values():
            kept -= talk.again | talk.doubtful()
        texts = [text for key in self.disk.threads for text in self._list_notes(key, log)]
        found = kept & ids_in(" ".join(texts))
        must(not found, "what was forgotten is stored nowhere", oracle.named(found))

    def _list_notes(self, key: Key, log: Key) -> Iterator[str]:
        """The notes of this row that must not say what was forgotten in `log`: those of several
        threads stay where a thread has left or not yet joined them."""
        rows = self.disk.threads[key]
        for entry, _ in rows.observations.values():
            if key == log or len(entry.parts) < 2:
                yield entry.text
        if rows.reflection and key == log:
            yield rows.reflection.text
        yield rows.head.other_threads_text

    def _judge(self, made: Exchange) -> None:
        reason, status = made.receipt.get("reason"), made.receipt.get("status")
        if not made.receipt:
            return
        # a result that was sent again while others talked is stored twice: docs/concepts/limits.md
        is_doubled = reason == "tool-pairs" and made.client.talk.again
        if reason not in FINE and reason not in OUR_FAULTS and not is_doubled:
            self.broke(Violation(f"a reason nobody expects: {status} {reason}"))
        faulty = self.fault_at >= made.started
        if reason in OUR_FAULTS and not faulty and reason != "conflict":
            self.broke(Violation(f"degraded, and the disk was sound: {reason}"))
        made.kept = made.complete and reason not in OUR_FAULTS and not faulty
        if made.kept and made.missing and status != "degraded":
            self.broke(
                Violation(f"original bytes, and not all of it: {oracle.named(made.missing)}")
            )

    def turned(self, made: Exchange) -> None:
        """A turn the client takes for done."""
        talk = made.client.talk
        if (
            any(other.under_way for other in talk.exchanges if other is not made)
            or len(talk.clients) > 1
        ):
            return
        try:
            oracle.check_turn(made)
        except Violation as exc:
            self.broke(exc)

    # ── its course ──

    def restart(self, crashed: Process) -> None:
        place = self.processes.index(crashed)

        def start() -> None:
            self.processes[place] = Process(self, crashed.number + 10)

        self.loop.call_later(self.rng.choice((0.0, 1.0, 30.0, 200.0)), start)

    def _task(self, running: Any, work: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=running, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            if process.dead:  # what its tasks begin at their end
                task.cancel()
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def _client(self, talk: Talk, kind: str) -> Client:
        rng = Random(self.rng.random())
        made = Client(
            self, talk, rng, sticky=rng.random() < 0.5, tools=rng.random() < 0.6, **CLIENTS[kind]
        )
        talk.clients.append(made)
        return made

    async def live(self, running: loop.VirtualLoop) -> None:
        self.loop = running
        running.set_task_factory(self._task)
        running.set_exception_handler(self._unheard)
        tenant = edge.identify(
            [(b"authorization", b"Bearer key"), (b"x-om-thread", b"x")],
            EdgeConfig.from_settings(self.settings).identity,
            SECRET,
        ).tenant
        for number, kinds in enumerate(self.plan.kinds):
            key = Key(tenant or "", "user", f"thread-{number}")
            talk = self.talks[key] = Talk(key, "ABCDEF"[number], self.changes)
            for kind in kinds:
                self._client(talk, kind)
        self.processes = [Process(self, number) for number in range(self.plan.engines)]
        clients = [client for talk in self.talks.values() for client in talk.clients]
        lives = [asyncio.create_task(client.live(self.plan.moves)) for client in clients]
        people = [Person(self, Random(self.rng.random())) for _ in range(self.plan.people)]
        lives += [asyncio.create_task(person.live(self.plan.acts)) for person in people]
        await self._unless_broken(lives)
        if not self.broken:
            await self._unless_broken([asyncio.create_task(self._settle())])
        await self._stop()

    async def _stop(self) -> None:
        """Every process is dropped, and what that starts too: nobody is left when the loop
        closes."""
        for process in self.processes:
            process.dead = process.store.dead = True
        while tasks := [task for process in self.processes for task in process.tasks]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

    async def _unless_broken(self, tasks: list[asyncio.Task[None]]) -> None:
        waiting = set(tasks)
        while waiting and not self.broken:
            done, waiting = await asyncio.wait(
                waiting, timeout=300.0, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [t for t in tasks if t in done]:
                if exc := task.exception():
                    self.broke(exc)

    async def _settle(self) -> None:
        """No trouble any more: everybody has a last word, all that is due is done, and everything
        is where it belongs."""
        self.calm = self.minds.calm = True
        await asyncio.sleep(1_000)
        for _ in range(2):
            for talk in self.talks.values():
                for client in talk.clients:
                    await client.say()
            for _ in range(4):
                await self._revive()
                await asyncio.sleep(600)
        for talk in self.talks.values():
            thread = self.disk.threads[talk.key]
            memory = thread.memory()
            limits = self.settings.effective(memory.model, talk.key.resource).limits
            self._must_be_done(memory, limits)
            oracle.check_end(talk, memory, thread.live())

    async def _revive(self) -> None:
        for key in self.talks:
            await revive_thread(self.processes[0].store, key)

    def _must_be_done(self, memory: Memory, limits: Limits) -> None:
        left = decisions.decide_after_reply(memory, limits)
        must(not isinstance(left, Observe), "no work stranded", left, memory)

    def _unheard(self, running: Any, context: dict[str, Any]) -> None:
        """What asyncio would write into a log."""
        exc = context.get("exception")
        if exc is not None and not isinstance(exc, StorageError | asyncio.CancelledError):
            self.broke(exc)

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the proxy's own log."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def simulate(
    seed: int,
    change: Callable[[World], None] = lambda world: None,
    plan: Plan | None = None,
    made: type[World] = World,
) -> World:
    """One seed, to its end or to the first thing that breaks; `world.broken` says which."""
    create_encoder("")("")  # its ranks load once in a process, and every run must find them loaded
    world = made(seed, plan)
    change(world)
    with quiet():
        try:
            loop.run(world.live, lambda: world.rng.choice((0.0, 0.0, 0.01)))
        except loop.Stuck as exc:
            world.broke(exc)
    return world
