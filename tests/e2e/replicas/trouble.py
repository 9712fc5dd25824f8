"""What happens to replicas and their store, one thing after the other: processes are killed and stand
still, the server ends and comes back, the way to it breaks."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import httpx

from tests.e2e.process import Process
from tests.e2e.replicas.history import Outage, Restore
from tests.e2e.replicas.pausing import Pause
from tests.e2e.replicas.stored import RunStore
from tests.support.own_postgres import OwnPostgres
from tests.support.own_redis import OwnRedis
from tests.support.wire import Wire

OUTAGE_S = (2.0, 6.0)
LATENCY_S = 0.2
RESET_AFTER_BYTES = 40_000
HEALING_TIMEOUT_S = 120.0
# Clients talk on meanwhile, then they pause: on a busy machine whose processes all wait for the store
# longer than `storage.timeout`, nothing else lets these catch up.
TALK_WHILE_HEALING_S = 45.0
PATIENCE_S = 10.0
TAKING_BACK_TIMEOUT_S = 300.0
# Commits of others between a copy and its return: what a process has read meanwhile has a version
# that the store reaches again only later.
OTHER_COMMIT_COUNT = 1_000
# what a page of figures says of turns that wait
WAITING = re.compile(r"^om_turns_waiting.*$", re.MULTILINE)
TRACEBACK_S = 1.0  # for a process to say what it is doing


class Trouble:
    """Outages of the store, as one process or all see it. While `calm` is held nothing else happens:
    a process that is killed in an outage takes with it what it could not store, as documented."""

    def __init__(
        self,
        store: RunStore,
        processes: Sequence[Process],
        wires: Sequence[Wire],
        server: OwnPostgres | OwnRedis | None,
        dice: random.Random,
        *,
        has_hosts: bool,
    ) -> None:
        """`has_hosts`: whether the processes are started by `host`."""
        self._store = store
        self._processes = processes
        self._wires = wires
        self._server = server
        self._dice = dice
        self._has_hosts = has_hosts
        self.calm = asyncio.Lock()
        self.outages: list[Outage] = []
        # the port of each process that could not reach the store, from when to when
        self.cut_off: list[tuple[int, float, float]] = []
        self.counts: Counter[str] = Counter()
        self.longest_healing_s = 0.0
        self.pause = Pause()  # of the clients
        self.restores: list[Restore] = []
        self.deadlocks = 0  # that a server which was ended later has told of

    async def disturb_ways_until(self, ended: asyncio.Event, every_s: float) -> None:
        """Disturb the way of one process after the other, in all ways in turn."""
        kinds = [self._black_hole, self._reset_way, self._slow_way_down]
        await self._cause_until(ended, every_s, kinds)

    async def end_server_until(self, ended: asyncio.Event, every_s: float) -> None:
        """End the server again and again, for no time and for some in turn."""
        await self._cause_until(ended, every_s, [self._restart_server, self._stop_server])

    async def _cause_until(
        self,
        ended: asyncio.Event,
        every_s: float,
        kinds: Sequence[Callable[[float], Awaitable[Sequence[Process]]]],
    ) -> None:
        while True:
            for cause in self._dice.sample(kinds, len(kinds)):
                if await is_set_within(ended, every_s * self._dice.uniform(0.5, 1.5)):
                    return
                async with self.calm:
                    await self._cause(cause)

    async def _cause(self, cause: Callable[[float], Awaitable[Sequence[Process]]]) -> None:
        began_at = time.monotonic()
        cut_off = await cause(self._dice.uniform(*OUTAGE_S))
        restored_at = time.monotonic()
        self.cut_off += [(process.port, began_at, restored_at) for process in cut_off]
        healing = asyncio.create_task(self._see_healed(restored_at))
        await asyncio.wait({healing}, timeout=TALK_WHILE_HEALING_S)
        if not healing.done():
            self.counts["clients paused to heal"] += 1
            async with self.pause.hold_all():
                await asyncio.wait({healing})
        await healing
        self.counts[cause.__name__.strip("_").replace("_", " ")] += 1
        self.outages.append(Outage(began_at, time.monotonic()))

    async def _see_healed(self, restored_at: float) -> None:
        await self._see_each_ready()
        self.longest_healing_s = max(self.longest_healing_s, time.monotonic() - restored_at)
        await self._see_each_store_all()

    async def take_server_back(self, count_turns: Callable[[], int], turns: int) -> None:
        """After so many acknowledged turns copy the server's files. After so many more let it go on
        from the copy, as from a backup."""
        assert isinstance(self._server, OwnPostgres)
        await _wait_until(lambda: count_turns() >= turns)
        async with self.pause.hold_all():
            await self._see_each_store_all()
            await self._end_server()
            await asyncio.to_thread(self._server.copy)
            await asyncio.to_thread(self._server.start)
            copied_at = time.monotonic()
            await self._store.use_up_versions(OTHER_COMMIT_COUNT)
            await self._see_each_ready()
        await _wait_until(lambda: count_turns() >= 2 * turns)
        async with self.pause.hold_all():
            await self._see_each_store_all()
            await self._end_server()
            await asyncio.to_thread(self._server.put_copy_back)
            await asyncio.to_thread(self._server.start)
            await self._see_each_ready()
            self.restores.append(Restore(copied_at, time.monotonic()))

    async def has_turns(self, process: Process) -> bool:
        """Return whether turns wait in the process. One that does not answer counts as if."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
                return not _has_stored_all((await http.get(f"{process.base}/metrics")).text)
        except httpx.TransportError:
            return True

    async def _see_each_ready(self) -> None:
        await self._see_each("/readyz", lambda text: '"ok"' in text)

    async def _see_each_store_all(self) -> None:
        # read twice: the number may have been counted before the outage
        for _ in range(2):
            await self._see_each("/metrics", _has_stored_all)

    async def _see_each(self, path: str, is_so: Callable[[str], bool]) -> None:
        newest = ""
        try:
            async with (
                asyncio.timeout(HEALING_TIMEOUT_S),
                httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
            ):
                for number, process in enumerate(self._processes):
                    while process.alive:
                        try:
                            answer = await http.get(f"{process.base}{path}")
                            told = WAITING.findall(answer.text) or answer.text[:300]
                            newest = f"process {number}: {answer.status_code} {told}"
                            if answer.status_code == 200 and is_so(answer.text):
                                break
                        except httpx.TransportError as exc:  # it is being started again
                            newest = f"process {number}: {type(exc).__name__}"
                        await asyncio.sleep(0.05)  # bounded by the time-out above
        except TimeoutError as exc:
            if process.alive and self._has_hosts:
                process.signal(signal.SIGUSR1)
                await asyncio.sleep(TRACEBACK_S)
            raise AssertionError(f"no healing after {HEALING_TIMEOUT_S:g} s: {newest}") from exc

    # each returns the processes that could not reach the store

    async def _black_hole(self, seconds: float) -> Sequence[Process]:
        """One process sends to the store, and nothing comes or goes."""
        process, wire = self._choose_way()
        wire.stall()
        await asyncio.sleep(seconds)
        wire.restore()
        return [process]

    async def _reset_way(self, seconds: float) -> Sequence[Process]:
        """The connections of one process are reset in the middle of something, again and again."""
        process, wire = self._choose_way()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            wire.reset_after(self._dice.randrange(RESET_AFTER_BYTES))
            await asyncio.sleep(seconds / 8)
        wire.restore()
        return [process]

    async def _slow_way_down(self, seconds: float) -> Sequence[Process]:
        _, wire = self._choose_way()
        wire.latency_s = LATENCY_S / 2
        await asyncio.sleep(seconds)
        wire.restore()
        return []

    def _choose_way(self) -> tuple[Process, Wire]:
        return self._dice.choice(list(zip(self._processes, self._wires, strict=True)))

    async def _restart_server(self, _seconds: float) -> Sequence[Process]:
        return await self._stop_server(0.0)

    async def _stop_server(self, seconds: float) -> Sequence[Process]:
        assert self._server
        await self._end_server()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.start)
        return self._processes

    async def _end_server(self) -> None:
        assert self._server
        self.deadlocks += await self._store.count_deadlocks()  # which end with it
        await asyncio.to_thread(self._server.kill)


def _has_stored_all(page: str) -> bool:
    return any(
        line.startswith("om_turns_waiting") and float(line.split()[-1]) == 0
        for line in page.split("\n")
    )


async def _wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TAKING_BACK_TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - a count of turns sends no event
            await asyncio.sleep(0.05)  # bounded by the time-out above


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
