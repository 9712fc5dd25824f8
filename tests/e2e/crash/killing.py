"""Kills a proxy at the planned passages, again and again on one store, and looks after each restart
whether all is well."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.crash.client import Broken, Conversation
from tests.e2e.crash.findings import Findings, Lease, broken, examine, leases
from tests.e2e.crash.models import Models
from tests.e2e.crash.plan import Kill
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.three_apis import APIS, Api

LAUNCHER = Path(__file__).with_name("launcher.py")
WITHIN = 120.0  # seconds until every thread works again
SLACK = 10.0  # seconds for what follows a lease that ran to its end
LONG = 60  # messages; then a new conversation takes its place
MOST = 150  # turns until a passage must have been come by

CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: scripted, base_url: "{models}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{database}"}}
memory:
  reflection: {{model: openai/scripted-reflector, observation_tokens: 150}}
  observation: {{model: openai/scripted-observer, message_tokens: 600, buffer_tokens: 150, block_timeout: 5s}}
  api_base: "{models}/v1"
  api_key: sk-memory
background: {{observer_interval: 200ms}}
telemetry: {{log: "off"}}
"""


@dataclass
class Outcome:
    """What came of one kill. Seconds since the restart, in real time but for the lease, which is
    not waited for."""

    kill: Kill
    answered: float = 0.0  # until every thread had taken and answered a turn
    # what was left of the killed process's lease: the longest that due work would have waited
    lease: float = 0.0
    quiet: float = 0.0  # until the work that was due was done
    found: Findings = field(default_factory=Findings)


class Trapped(Process):
    """`om-proxy serve` behind launcher.py."""

    def __init__(self, config: Path, port: int, trap: Path) -> None:
        super().__init__(config, port)
        self._trap = trap

    def set(self, kill: Kill) -> None:
        """From now on it dies there."""
        written = self._trap.with_suffix(".new")
        written.write_text(f"{kill.nth} {kill.passage}")
        written.replace(self._trap)

    async def start(self, within: float = 60.0) -> None:
        """Returns when it serves, or has died."""
        command = (
            sys.executable,
            str(LAUNCHER),
            str(self._trap),
            "serve",
            "--config",
            str(self.config),
        )
        await self._started(*command, within=within)

    async def wait_killed(self) -> None:
        """Died of the trap, and of nothing else."""
        assert self._process is not None
        async with asyncio.timeout(30):
            assert await self._process.wait() == -signal.SIGKILL
        self._trap.unlink()


@dataclass
class Session:
    """One store and its proxy, whoever is killed; a conversation by each API at a time."""

    folder: Path
    models: Models
    address: str  # of the models
    names: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        port = free_port()
        self.database = self.folder / "om.db"
        self.process = self._process_on(self.database, port)
        self.talking = [self.converse(api) for api in APIS]
        self.ended: list[Conversation] = []

    def _process_on(self, database: Path, port: int) -> Trapped:
        config = database.with_suffix(".yaml")
        config.write_text(CONFIGURATION.format(port=port, models=self.address, database=database))
        return Trapped(config, port, self.folder / "trap")

    def converse(self, api: Api) -> Conversation:
        return Conversation(f"thread-{next(self.names)}", api)

    async def survive(self, kill: Kill, *, patient: bool = False) -> Outcome:
        """Go on talking until it is killed, start it again, and look. `patient`: the lease it
        leaves is waited for."""
        outcome = Outcome(kill)
        await self.killed(kill)
        left = [] if kill.starts else await self.look_behind(outcome)
        restarted = time.monotonic()
        await self.process.start()
        await self._answered(outcome)
        outcome.answered = time.monotonic() - restarted
        if not patient:
            async with open_database(self.database) as store:
                await expired(store, left)
        await self._quiet(within=WITHIN + SLACK)
        outcome.quiet = time.monotonic() - restarted
        await self._examine(outcome.found, self.talking)
        self._renew()
        return outcome

    async def killed(self, kill: Kill) -> None:
        if kill.starts:
            await self._new_store()
            self.process.set(kill)
            await self.process.start()
        else:
            self.process.set(kill)
            await self._talk_until_killed(kill)
        await self.process.wait_killed()

    async def _new_store(self) -> None:
        """Everything from the start, on a file that is not there."""
        found = await self.end()
        assert not found, found
        self.database = self.folder / f"om-{next(self.names)}.db"
        self.process = self._process_on(self.database, free_port())
        self.talking, self.ended = [self.converse(api) for api in APIS], []

    async def _talk_until_killed(self, kill: Kill) -> None:
        for _ in range(MOST):
            if not self.process.alive:
                return
            if not all(await self.turns(fork=kill.forks)):
                return
        raise AssertionError(f"never came by: {kill}")

    async def turns(self, *, fork: bool = False) -> list[bool]:
        """A turn of every conversation, at once; whether the client got its reply."""
        async with httpx.AsyncClient(
            base_url=self.process.base, trust_env=False, timeout=30
        ) as http:
            return await asyncio.gather(*(self._turn(http, c, fork=fork) for c in self.talking))

    @staticmethod
    async def _turn(http: httpx.AsyncClient, conversation: Conversation, *, fork: bool) -> bool:
        observed = int(conversation.receipt.get("observation-tokens", 0)) > 0
        try:
            await conversation.turn(http, fork=fork and observed and len(conversation.history) > 20)
        except Broken:
            return False
        return True

    async def look_behind(self, outcome: Outcome) -> list[Lease]:
        """Look at what the killed process left, in a copy: the file is the next one's to recover.
        Its leases.

        No acknowledged turn is missing; a thread with a lease is not handed out until the lease is
        over, and then it is.
        """
        copy = self.folder / "left-behind.db"
        for suffix in ("", "-wal"):
            copied(
                self.database.with_name(self.database.name + suffix),
                copy.with_name(copy.name + suffix),
            )
        found = outcome.found
        async with open_database(copy) as store:
            for conversation in self.talking:
                found += await examine(store, conversation, self.models)
            left = leases(copy)
            outcome.lease = max((lease.left for lease in left), default=0.0)
            due = {lease.key for lease in left if (await store.load(lease.key)).due_at}
            if due & set(await store.due_threads(time.time(), 1_000)):
                found.other.append("a leased thread was handed out")
            await expired(store, left)
            if not due <= set(await store.due_threads(time.time(), 1_000)):
                found.other.append("due work was not handed out after its lease")
        return left

    async def _answered(self, outcome: Outcome) -> None:
        """Retries what was cut off, and then one more turn, with whatever leases the killed process
        has left."""
        for _ in range(2):
            if not all(await self.turns()):
                outcome.found.other.append("a turn after the restart was not answered")
            statuses = {c.receipt["status"] for c in self.talking}
            if not statuses <= {"raw", "applied"}:
                outcome.found.other.append(f"receipts say {statuses}")

    async def _quiet(self, within: float) -> None:
        """Until no thread has anything due, nor anybody works on one."""
        async with open_database(self.database) as store, asyncio.timeout(within):
            while leases(self.database) or any([await self._due(store, c) for c in self.talking]):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(0.02)  # another process's work; bounded by the time-out

    @staticmethod
    async def _due(store: SqliteStore, conversation: Conversation) -> bool:
        due = (await store.load(conversation.key)).due_at
        return due is not None and due <= time.time()

    async def _examine(self, found: Findings, conversations: Sequence[Conversation]) -> None:
        found.other += broken(self.database)
        async with open_database(self.database) as store:
            for conversation in conversations:
                found += await examine(store, conversation, self.models)

    def _renew(self) -> None:
        for place, conversation in enumerate(self.talking):
            if len(conversation.history) > LONG:
                self.ended.append(conversation)
                self.talking[place] = self.converse(conversation.api)

    async def end(self) -> Findings:
        """Stop it, and look at every thread there ever was."""
        assert await self.process.terminate() == 0
        found, self.ended = Findings(), [*self.ended, *self.talking]
        await self._examine(found, self.ended)
        return found


@asynccontextmanager
async def open_database(database: Path) -> AsyncIterator[SqliteStore]:
    """A store beside the proxy's, never open while the proxy is killed."""
    store = await SqliteStore.open(database)
    try:
        yield store
    finally:
        await store.close()


async def expired(store: SqliteStore, left: Sequence[Lease]) -> None:
    """What time would do, without waiting for it."""
    for lease in left:
        await store.lease(lease.key, lease.holder, 0)


def copied(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    if source.exists():
        target.write_bytes(source.read_bytes())


@asynccontextmanager
async def session(folder: Path) -> AsyncIterator[Session]:
    models = Models()
    async with serve_on_loopback(models, lifespan="off") as address:
        session = Session(folder, models, address)
        await session.process.start()
        try:
            yield session
        finally:
            if session.process.alive:
                await session.process.kill()
