"""The processes of a run: they are started, killed, stopped and replaced."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from om_proxy.engine.background.leases import LEASE_S
from om_proxy.engine.policy import Policy
from om_proxy.settings.config import parse
from tests.e2e.process import Process
from tests.e2e.replicas.clients import SHORT_TIMEOUT_S
from tests.e2e.replicas.front import Front, open_front
from tests.e2e.replicas.late_turns import ServedBy
from tests.e2e.replicas.plan import Plan
from tests.e2e.replicas.stored import PREFIX, RunStore
from tests.e2e.replicas.trouble import Trouble, is_set_within
from tests.support.free_port import free_port
from tests.support.own_postgres import OwnPostgres
from tests.support.own_redis import OwnRedis
from tests.support.wire import Wire, open_wire

CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "{url}", prefix: {prefix}, connections: 5, timeout: {timeout_s:g}s}}
memory:
  api_base: "{models}/v1"
  api_key: sk-memory-{port}
  observation: {{model: openai/scripted-observer, message_tokens: 600, buffer_tokens: 200, block_timeout: 2s}}
  reflection: {{model: openai/scripted-reflector, observation_tokens: 400}}
models: {{scripted-sharer: {{scope: resource}}}}
background: {{observer_interval: 1s, external: {external}}}
telemetry: {{log: json}}
"""
ROLL_PAUSE_S = 0.5
OLDER, NEWER = ("om_proxy",), ("tests.e2e.replicas.newer",)


class Replicas:
    """The processes, each of which is killed now and then. One always serves."""

    def __init__(
        self,
        servers: Sequence[Process],
        workers: Sequence[Process],
        front: Front,
        trouble: Trouble,
        plan: Plan,
        policy: Policy,
    ) -> None:
        self._servers = servers
        self._workers = workers
        self._plan = plan
        self._serving = len(servers)
        self.front = front
        self.policy = policy
        self.trouble = trouble
        self.kills = 0
        self.killed_at: list[tuple[int, float]] = []  # the port of each, and when
        self.killed_with_turns_at: list[tuple[int, float]] = []
        self.stopped: list[tuple[int, float, float]] = []  # the port of each, from when to when
        self.stops = 0
        self.replaced = 0

    def find_fate(self, port: int) -> ServedBy:
        """Return what happened to the process on this port."""
        return ServedBy(
            [(since, to) for stopped_port, since, to in self.stopped if stopped_port == port],
            [at for killed_port, at in self.killed_at if killed_port == port],
            [at for killed_port, at in self.killed_with_turns_at if killed_port == port],
            [(since, to) for cut_port, since, to in self.trouble.cut_off if cut_port == port],
        )

    def list_fates(self) -> Mapping[int, ServedBy]:
        """Return what happened to each process, by its port."""
        return {p.port: self.find_fate(p.port) for p in (*self._servers, *self._workers)}

    async def kill_until(self, ended: asyncio.Event) -> None:
        """Kill one, start it again, and so on."""
        async with asyncio.TaskGroup() as tasks:
            for number, process in enumerate((*self._servers, *self._workers)):
                dice = random.Random(f"{self._plan.seed} replica {number}")
                tasks.create_task(self._kill_one_until(process, ended, dice))

    async def stop_until(self, ended: asyncio.Event) -> None:
        """Let one stand still for longer than its clients wait, and than its leases last if they are
        short, and so on."""
        dice = random.Random(f"{self._plan.seed} stops")
        stop_s = max(SHORT_TIMEOUT_S * 1.5, self._plan.lease_s * 1.2)
        while not await is_set_within(ended, self._plan.stop_every_s * dice.uniform(0.5, 1.5)):
            async with self.trouble.calm:
                processes = [p for p in (*self._servers, *self._workers) if p.alive]
                process = dice.choice(processes)
                process.stop()
                self.stops += 1
                stopped_at = time.monotonic()
                try:
                    await is_set_within(ended, stop_s)
                finally:
                    process.go_on()
                    self.stopped.append((process.port, stopped_at, time.monotonic()))

    async def roll(self) -> None:
        """Replace all by the next release, one by one, then by this one again, and so on."""
        for number in range(self._plan.rolls):
            for process in self._servers:
                await asyncio.sleep(ROLL_PAUSE_S)  # releases serve side by side for a while
                self.front.leave_out(process.port)
                assert await process.terminate() == 0
                process.module = NEWER if number % 2 == 0 else OLDER
                await process.start()
                self.front.take_in(process.port)
                self.replaced += 1

    async def _kill_one_until(
        self, process: Process, ended: asyncio.Event, dice: random.Random
    ) -> None:
        count = len(self._servers) + len(self._workers)
        is_server = process in self._servers
        while not await is_set_within(
            ended, self._plan.kill_every_s * count * dice.uniform(0.2, 1.8)
        ):
            async with self.trouble.calm:
                if is_server and self._serving == 1:
                    continue
                self._serving -= is_server
                self.kills += 1
                has_turns = await self.trouble.has_turns(process)
                self.killed_at.append((process.port, time.monotonic()))
                if has_turns:
                    self.killed_with_turns_at.append(self.killed_at[-1])
                await process.kill()
                # a process that starts without the store has no memory, as documented
                await process.start()
            self._serving += is_server


@asynccontextmanager
async def start_replicas(
    folder: Path, store: RunStore, models: str, plan: Plan, server: OwnPostgres | OwnRedis | None
) -> AsyncIterator[Replicas]:
    """Start all processes, each with a way of its own to the store. All end well."""
    async with AsyncExitStack() as stack:
        wires: list[Wire] = []
        processes: list[Process] = []
        for number in range(plan.replicas + plan.workers):
            own_url = store.url
            if plan.has_ways:
                address = urlsplit(own_url)
                assert address.hostname
                assert address.port
                wire = await stack.enter_async_context(open_wire(address.hostname, address.port))
                wires.append(wire)
                own_url = own_url.replace(f":{address.port}/", f":{wire.port}/")
            config, port = folder / f"om-{number}.yaml", free_port()
            config.write_text(
                CONFIGURATION.format(
                    port=port,
                    models=models,
                    url=own_url,
                    prefix=PREFIX,
                    timeout_s=plan.timeout_s,
                    external="true" if plan.workers else "false",
                ),
                encoding="utf-8",
            )
            options = () if number < plan.replicas else ("--worker",)
            log = config.with_suffix(".log")
            processes.append(Process(config, port, _choose_module(plan, number), options, log))
        dice = random.Random(f"{plan.seed} outages")
        trouble = Trouble(store, processes, wires, server, dice, has_hosts=plan.has_hosts)
        try:
            await processes[0].start()  # which makes the schema
            await store.watch(plan.shared_commit_s)
            await asyncio.gather(*(process.start() for process in processes[1:]))
            servers, workers = processes[: plan.replicas], processes[plan.replicas :]
            front = await stack.enter_async_context(open_front([p.port for p in servers]))
            policy = Policy(parse(processes[0].config.read_text(encoding="utf-8")))
            yield Replicas(servers, workers, front, trouble, plan, policy)
            assert [await process.terminate() for process in processes] == [0] * len(processes)
        finally:
            for process in processes:
                if process.alive:
                    await process.kill()


def _choose_module(plan: Plan, number: int) -> tuple[str, ...]:
    if not plan.has_hosts:
        return OLDER
    offset_s = plan.clock_offsets_s[number % len(plan.clock_offsets_s)]
    lease_s = plan.lease_s or LEASE_S
    return ("tests.e2e.replicas.host", str(offset_s), str(lease_s), plan.fault or "none")
