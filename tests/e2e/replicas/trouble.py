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
from tests.e2e.replicas.history import Outage
from tests.support.own_postgres import OwnPostgres
from tests.support.wire import Wire

OUTAGE_S = (2.0, 6.0)
LATENCY_S = 0.2
RESET_AFTER_BYTES = 40_000
HEALING_TIMEOUT_S = 120.0
PATIENCE_S = 10.0
# what a page of figures says of turns that wait
WAITING = re.compile(r"^om_turns_waiting.*$", re.MULTILINE)
TRACEBACK_S = 1.0  # for a process to say what it is doing


class Trouble:
    """Outages of the store, as one process or all see it. While `calm` is held nothing else happens:
    a process that is killed in an outage takes with it what it could not store, as documented."""

    def __init__(
        self,
        processes: Sequence[Process],
        wires: Sequence[Wire],
        server: OwnPostgres | None,
        dice: random.Random,
        *,
        has_hosts: bool,
    ) -> None:
        """`has_hosts`: whether the processes are started by `host`."""
        self._processes = processes
        self._wires = wires
        self._server = server
        self._dice = dice
        self._has_hosts = has_hosts
        self.calm = asyncio.Lock()
        self.outages: list[Outage] = []
        self.counts: Counter[str] = Counter()
        self.longest_healing_s = 0.0

    async def cause_until(self, ended: asyncio.Event, every_s: float) -> None:
        """Cause one outage after the other, of all kinds in turn."""
        kinds: list[Callable[[float], Awaitable[None]]] = [
            self._black_hole,
            self._reset_way,
            self._slow_way_down,
        ]
        if self._server:
            kinds += [self._restart_server, self._stop_server]
        while True:
            for cause in self._dice.sample(kinds, len(kinds)):
                if await is_set_within(ended, every_s * self._dice.uniform(0.5, 1.5)):
                    return
                async with self.calm:
                    await self._cause(cause)

    async def _cause(self, cause: Callable[[float], Awaitable[None]]) -> None:
        began_at = time.monotonic()
        await cause(self._dice.uniform(*OUTAGE_S))
        restored_at = time.monotonic()
        await self._see_each("/readyz", lambda text: '"ok"' in text)
        self.longest_healing_s = max(self.longest_healing_s, time.monotonic() - restored_at)
        # read twice: the number may have been counted before the outage
        for _ in range(2):
            await self._see_each("/metrics", _has_stored_all)
        self.counts[cause.__name__.strip("_").replace("_", " ")] += 1
        self.outages.append(Outage(began_at, time.monotonic()))

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

    async def _black_hole(self, seconds: float) -> None:
        """One process sends to the store, and nothing comes or goes."""
        wire = self._dice.choice(self._wires)
        wire.stall()
        await asyncio.sleep(seconds)
        wire.restore()

    async def _reset_way(self, seconds: float) -> None:
        """The connections of one process are reset in the middle of something, again and again."""
        wire = self._dice.choice(self._wires)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            wire.reset_after(self._dice.randrange(RESET_AFTER_BYTES))
            await asyncio.sleep(seconds / 8)
        wire.restore()

    async def _slow_way_down(self, seconds: float) -> None:
        wire = self._dice.choice(self._wires)
        wire.latency_s = LATENCY_S / 2
        await asyncio.sleep(seconds)
        wire.restore()

    async def _restart_server(self, _seconds: float) -> None:
        await self._stop_server(0.0)

    async def _stop_server(self, seconds: float) -> None:
        assert self._server
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.start)


def _has_stored_all(page: str) -> bool:
    return any(
        line.startswith("om_turns_waiting") and float(line.split()[-1]) == 0
        for line in page.split("\n")
    )


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
