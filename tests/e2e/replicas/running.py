"""Run replicas on one PostgreSQL, kill them while clients talk, and judge what was seen."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import orjson

from om_proxy.memory.model import EMPTY_CHAIN, Key, Memory, extend_chain
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.testing.asgi import Receive, Scope, Send
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.notes import extract_transcript
from om_proxy.testing.scripted import ACTOR, OBSERVER, RecordedRequest, message_text
from tests.e2e.crash.models import NOTED, SAID, Models
from tests.e2e.process import Process, free_port
from tests.e2e.replicas.clients import (
    REQUEST_TIMEOUT_S,
    SHORT_TIMEOUT_S,
    ClientKind,
    Notebook,
    ReplicaClient,
)
from tests.e2e.replicas.front import Front, open_front
from tests.e2e.replicas.history import (
    Findings,
    History,
    Lease,
    Prompt,
    Range,
    StoredMessage,
    StoredThread,
    check,
)

# patient: a busy machine shall not make a healthy server look as if it were away
CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "{url}", prefix: {schema}, connections: 5, timeout: 10s}}
memory:
  api_base: "{models}/v1"
  api_key: sk-memory
  observation: {{model: openai/scripted-observer, message_tokens: 600, buffer_tokens: 200, block_timeout: 2s}}
  reflection: {{model: openai/scripted-reflector, observation_tokens: 400}}
background: {{observer_interval: 1s}}
telemetry: {{log: "off"}}
"""
# of the clients, in turn: the last two share their threads
KINDS: tuple[ClientKind, ...] = ("full", "thin", "full", "paired", "paired")
MODEL_DELAY_S = 0.1
ROLL_PAUSE_S = 0.5
OLDER, NEWER = ("om_proxy",), ("tests.e2e.replicas.newer",)
# each lease as its row was, with the server's clock
LOG_LEASES = """
CREATE TABLE "{schema}".test_lease (id bigserial, at float8, op text, key text, holder text, until float8);
CREATE FUNCTION "{schema}".test_log_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO "{schema}".test_lease (at, op, key, holder, until)
    SELECT extract(epoch FROM clock_timestamp()), TG_OP, l.resource || '/' || l.thread, l.holder, l.until
    FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) AS l;
    RETURN NULL; END $$;
CREATE TRIGGER test_log AFTER INSERT OR UPDATE OR DELETE ON "{schema}".lease
    FOR EACH ROW EXECUTE FUNCTION "{schema}".test_log_lease();
"""


@dataclass(frozen=True)
class Plan:
    """What is done, and by whom. It goes on until all three are reached."""

    seconds: float = 40.0
    kills: int = 15
    turns: int = 1  # acknowledged
    replicas: int = 3
    clients: int = 10
    kill_every_s: float = 1.2
    seed: int = 0
    fault: str = ""  # that is planted
    stop_every_s: float = 0.0  # a process stands still; 0: none does
    # how often all are replaced, one by one: by the next release, then by this one again
    rolls: int = 0


@dataclass(frozen=True)
class Report:
    """What came of it."""

    kills: int
    stops: int
    replaced: int
    schema_version: int  # of the database, at the end
    notebook: Notebook
    history: History
    findings: Findings
    observed: int  # messages that an observer was shown
    observed_twice: int  # of them, those that were paid for again

    def dump(self) -> bytes:
        """Return what was seen as JSON, for a file that outlives a failed run."""
        seen = {
            name: [value._asdict() for value in values]
            for name, values in vars(self.history).items()
            if name != "at"
        }
        return orjson.dumps(seen, default=_write_plainly)

    def __str__(self) -> str:
        notebook, findings = self.notebook, self.findings
        unknown = notebook.count("unknown")
        lines = {
            "kills": self.kills,
            "stops": self.stops,
            "replaced": self.replaced,
            "schema": self.schema_version,
            "acknowledged turns": notebook.count("acknowledged"),
            "unknown turns": f"{unknown}, of them degraded {notebook.degraded_count}",
            "readings": len(notebook.readings),
            "forgotten threads": len(notebook.forgettings),
            "observed messages": f"{self.observed}, paid for again {self.observed_twice}",
            **{name: len(found) for name, found in vars(findings).items()},
        }
        told = [f"{name:<20}{value}" for name, value in lines.items()]
        return "\n".join([*told, *([str(findings)] if findings else []), *notebook.errors[:5]])


class MarkedModels(Models):
    """The model servers. It remembers of each request only what the checker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []
        self.observed: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer after a while, so that a kill finds requests under way."""
        await asyncio.sleep(MODEL_DELAY_S)
        await super().__call__(scope, receive, send)

    def note_requests(self) -> None:
        """Read what was asked since, and forget the bodies."""
        requests, self.requests[:] = list(self.requests), []
        for request in requests:
            if request.model == ACTOR:
                self.prompts.append(self._read_prompt(request))
            elif request.model == OBSERVER:
                shown = extract_transcript(message_text(request.messages[-1]))
                self.observed.update(set(SAID.findall(shown)))

    def _read_prompt(self, request: RecordedRequest) -> Prompt:
        texts = [message_text(message) for message in request.messages]
        marks = tuple(found.group() for text in texts if (found := SAID.match(text)))
        noted = {said for name in NOTED.findall(" ".join(texts)) for said in self.shown[name]}
        reply = SAID.findall(str(request.answer["content"]))[0]
        return Prompt(marks[-1], marks, frozenset(noted), reply)


class Replicas:
    """The processes, each of which is killed now and then. One always serves."""

    def __init__(self, processes: Sequence[Process], front: Front) -> None:
        self._processes = processes
        self._front = front
        self._serving = len(processes)
        self.kills = 0
        self.stops = 0
        self.replaced = 0

    async def kill_until(self, ended: asyncio.Event, plan: Plan) -> None:
        """Kill one, start it again, and so on."""
        async with asyncio.TaskGroup() as tasks:
            for number, process in enumerate(self._processes):
                dice = random.Random(f"{plan.seed} replica {number}")
                tasks.create_task(self._kill_one_until(process, ended, dice, plan))

    async def stop_until(self, ended: asyncio.Event, plan: Plan) -> None:
        """Let one stand still for longer than its clients wait, and so on."""
        dice = random.Random(f"{plan.seed} stops")
        while not await _is_set_within(ended, plan.stop_every_s * dice.uniform(0.5, 1.5)):
            process = dice.choice([process for process in self._processes if process.alive])
            process.stop()
            self.stops += 1
            try:
                await _is_set_within(ended, SHORT_TIMEOUT_S * 1.5)
            finally:
                process.go_on()

    async def roll(self, rolls: int) -> None:
        """Replace all by the next release, one by one, then by this one again, and so on."""
        for number in range(rolls):
            for process in self._processes:
                await asyncio.sleep(ROLL_PAUSE_S)  # releases serve side by side for a while
                self._front.leave_out(process.port)
                assert await process.terminate() == 0
                process.module = NEWER if number % 2 == 0 else OLDER
                await process.start()
                self._front.take_in(process.port)
                self.replaced += 1

    async def _kill_one_until(
        self, process: Process, ended: asyncio.Event, dice: random.Random, plan: Plan
    ) -> None:
        while not await _is_set_within(
            ended, plan.kill_every_s * len(self._processes) * dice.uniform(0.2, 1.8)
        ):
            if self._serving == 1:
                continue
            self._serving -= 1
            self.kills += 1
            await process.kill()
            await process.start()
            self._serving += 1


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def run_replicas(url: str, folder: Path, plan: Plan) -> Report:
    """Do what is planned in a schema of its own, and judge it."""
    schema = f"om_replicas_{secrets.token_hex(6)}"
    models, notebook = MarkedModels(), Notebook()
    try:
        async with serve_on_loopback(models, lifespan="off") as models_url:
            async with _start_replicas(folder, url, schema, models_url, plan) as (replicas, front):
                await _talk_and_kill(replicas, front, models, notebook, plan)
            models.note_requests()
            history = await _read_history(url, schema, notebook, models)
            schema_version = await _read_schema_version(url, schema)
    finally:
        connection = await asyncpg.connect(url)
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        await connection.close()
    observed = _count_observed(notebook, models)
    again = sum(count - 1 for count in observed)
    return Report(
        replicas.kills,
        replicas.stops,
        replicas.replaced,
        schema_version,
        notebook,
        history,
        check(history),
        len(observed),
        again,
    )


def _count_observed(notebook: Notebook, models: MarkedModels) -> list[int]:
    """Return how often each message was shown to an observer. A fork takes notes back that also
    cover what stays: the messages of such threads are not counted."""
    forked = {turn.thread for turn in notebook.turns if turn.takes_back}
    said = {turn.said for turn in notebook.turns if turn.thread not in forked}
    return [models.observed[mark] for mark in said if mark in models.observed]


@asynccontextmanager
async def _start_replicas(
    folder: Path, url: str, schema: str, models: str, plan: Plan
) -> AsyncIterator[tuple[Replicas, Front]]:
    processes, ports = [], [free_port() for _ in range(plan.replicas)]
    module = ("tests.e2e.replicas.planted", plan.fault) if plan.fault else OLDER
    for port in ports:
        config = folder / f"om-{port}.yaml"
        config.write_text(
            CONFIGURATION.format(port=port, models=models, url=url, schema=schema), encoding="utf-8"
        )
        processes.append(Process(config, port, module))
    try:
        await processes[0].start()  # which makes the schema
        connection = await asyncpg.connect(url)
        await connection.execute(LOG_LEASES.format(schema=schema))
        await connection.close()
        await asyncio.gather(*(process.start() for process in processes[1:]))
        async with open_front(ports) as front:
            yield Replicas(processes, front), front
        assert [await process.terminate() for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            if process.alive:
                await process.kill()


async def _talk_and_kill(
    replicas: Replicas, front: Front, models: MarkedModels, notebook: Notebook, plan: Plan
) -> None:
    ended = asyncio.Event()
    clients = [
        ReplicaClient(
            number,
            KINDS[number % len(KINDS)],
            front.base,
            notebook,
            plan.seed,
            SHORT_TIMEOUT_S if plan.stop_every_s else REQUEST_TIMEOUT_S,
        )
        for number in range(plan.clients)
    ]

    async def end_in_time() -> None:
        until = time.monotonic() + plan.seconds
        while (
            time.monotonic() < until
            or replicas.kills < plan.kills
            or replicas.replaced < plan.rolls * plan.replicas
            or notebook.count("acknowledged") < plan.turns
        ):
            await asyncio.sleep(0.2)
            models.note_requests()
        ended.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(end_in_time())
        if plan.kills:
            tasks.create_task(replicas.kill_until(ended, plan))
        if plan.rolls:
            tasks.create_task(replicas.roll(plan.rolls))
        if plan.stop_every_s:
            tasks.create_task(replicas.stop_until(ended, plan))
        for client in clients:
            tasks.create_task(client.talk_until(ended))


# ── the store at the end ──────────────────────────────────────────────────────────────────────────


async def _read_history(url: str, schema: str, notebook: Notebook, models: MarkedModels) -> History:
    store = await PostgresStore.open(url, PostgresOptions(schema, 2, timeout_s=30.0), create=False)
    connection = await asyncpg.connect(url)
    try:
        at = await store.clock()
        rows = await connection.fetch(
            f'SELECT tenant, resource, thread FROM "{schema}".thread'  # noqa: S608 - our own name
        )
        log = await connection.fetch(
            f'SELECT at, op, key, holder, until FROM "{schema}".test_lease ORDER BY id'  # noqa: S608 - our own name
        )
        leases = _read_leases([tuple(row) for row in log])
        keys = Counter(Key(*row) for row in rows)
        threads = [
            await _read_thread(store, key, row_count, leases)
            for key, row_count in keys.items()
            if key.thread not in notebook.unknown_threads
        ]
    finally:
        await connection.close()
        await store.close()
    return History(
        [turn for turn in notebook.turns if turn.thread not in notebook.unknown_threads],
        models.prompts,
        threads,
        notebook.readings,
        notebook.forgettings,
        leases,
        at,
    )


async def _read_schema_version(url: str, schema: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(f'SELECT version FROM "{schema}".schema'))  # noqa: S608 - our own name
    finally:
        await connection.close()


async def _read_thread(
    store: PostgresStore, key: Key, row_count: int, leases: Sequence[Lease]
) -> StoredThread:
    memory: Memory = await store.load(key)
    chain, messages = EMPTY_CHAIN, []
    for message in await store.messages(key, 0):
        chain = extend_chain(chain, message.item.fp)
        mark = SAID.findall(str(orjson.loads(message.item.raw)["content"]))[0]
        messages.append(StoredMessage(message.seq, mark, message.chain, chain))
    ranges = [Range(o.after, o.last, o.chain) for o in (*memory.log.entries, *memory.chunks)]
    leased_until = max(
        (lease.holds_until for lease in leases if lease.key == f"{key.resource}/{key.thread}"),
        default=0.0,
    )
    return StoredThread(
        key.thread,
        tuple(messages),
        tuple(ranges),
        memory.coverage,
        tuple(message.seq for message in memory.tail),
        row_count,
        memory.due_at,
        leased_until,
    )


def _read_leases(log: Sequence[tuple[float, str, str, str, float]]) -> list[Lease]:
    """Return the leases that the log of their rows tells of. A holder that takes its lease again
    goes on with it."""
    leases: list[Lease] = []
    open_leases: dict[str, Lease] = {}
    for at, op, key, holder, until in log:
        held = open_leases.pop(key, None)
        if op == "DELETE":
            if held is not None:
                leases.append(held._replace(ended_at=at))
        elif held is not None and held.holder == holder:
            open_leases[key] = held._replace(until=until)
        else:
            if held is not None:
                leases.append(held)
            open_leases[key] = Lease(key, holder, at, until)
    return [*leases, *open_leases.values()]


def _write_plainly(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, frozenset | tuple)
    return sorted(value) if isinstance(value, frozenset) else list(value)
