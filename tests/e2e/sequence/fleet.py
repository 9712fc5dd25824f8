"""Processes of om-proxy on one store and one clock, and a client whose requests go round them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from om_proxy.cli.demo.play import Client, Message, ReplyWithReceipt
from om_proxy.cli.demo.stage import STORY_MESSAGE_TOKENS, STORY_OBSERVATION_TOKENS
from om_proxy.cli.demo.story import Story
from om_proxy.testing.scripted import OBSERVER, REFLECTOR
from tests.e2e.process import Process
from tests.e2e.sequence.launcher import IDLE_PATH, TIME
from tests.support.free_port import free_port

LAUNCHER = Path(__file__).with_name("launcher.py")
THREAD = "van-planner"

# Only what a request wakes is done: a process that looks for due work by itself would do it at a
# moment that no test knows.
CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "{store}"}}
memory:
  api_base: "{models}/v1"
  api_key: sk-memory
  observation: {{model: openai/{observer}, message_tokens: {message_tokens}, block_timeout: 60s}}
  reflection: {{model: openai/{reflector}, observation_tokens: {observation_tokens}}}
background: {{observer_interval: 1h}}
telemetry: {{log: "off"}}
"""


class ClockedProcess(Process):
    """`om-proxy serve` behind launcher.py."""

    def __init__(self, config: Path, port: int, clock: Path) -> None:
        super().__init__(config, port)
        self._clock = clock

    async def start(self, within: float = 60.0) -> None:
        command = (sys.executable, str(LAUNCHER), str(self._clock))
        await self._started(*command, "serve", "--config", str(self.config), within=within)
        assert self.alive


class Fleet:
    """The processes, and the clock that they share."""

    def __init__(self, processes: Sequence[ClockedProcess], clock: Path) -> None:
        self.processes = processes
        self._clock = clock
        self._turns = count()

    def set_time(self, now: float) -> None:
        with self._clock.open("r+b", buffering=0) as file:
            file.write(TIME.pack(now))

    def choose(self) -> ClockedProcess:
        """Return the process whose turn it is; one that is dead is passed over."""
        while True:
            process = self.processes[next(self._turns) % len(self.processes)]
            if process.alive:
                return process

    async def wait_idle(self, http: httpx.AsyncClient) -> None:
        for process in self.processes:
            if process.alive:
                (await http.get(process.base + IDLE_PATH)).raise_for_status()


@asynccontextmanager
async def run_fleet(
    folder: Path, store: str, models: str, now: float, size: int
) -> AsyncIterator[Fleet]:
    """Run so many processes until the block ends."""
    clock = folder / "clock"
    clock.write_bytes(TIME.pack(now))
    processes = []
    for number in range(size):
        config = folder / f"om-{number}.yaml"
        config.write_text(
            CONFIGURATION.format(
                port=(port := free_port()),
                models=models,
                store=store,
                observer=OBSERVER,
                reflector=REFLECTOR,
                message_tokens=STORY_MESSAGE_TOKENS,
                observation_tokens=STORY_OBSERVATION_TOKENS,
            ),
            encoding="utf-8",
        )
        processes.append(ClockedProcess(config, port, clock))
    try:
        await processes[0].start()  # which makes the schema
        await asyncio.gather(*(process.start() for process in processes[1:]))
        yield Fleet(processes, clock)
    finally:
        for process in processes:
            if process.alive:
                await process.kill()


class TravellingClient(Client):
    """The demo's client, which sends each request to another process. The next request waits until
    memory's work after the last one is done, so that one order is possible."""

    def __init__(self, http: httpx.AsyncClient, story: Story, fleet: Fleet) -> None:
        super().__init__(http, story.tools, {"x-om-thread": THREAD})
        self._fleet = fleet

    async def complete(self, messages: Sequence[Message]) -> ReplyWithReceipt:
        self._http.base_url = httpx.URL(f"{self._fleet.choose().base}/v1")
        reply = await super().complete(messages)
        await self._fleet.wait_idle(self._http)
        return reply

    async def ask(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Send a request of a person's to the admin API."""
        url = f"{self._fleet.choose().base}/om/v1/threads/{THREAD}{path}"
        answer = await self._http.request(method, url, json=body)
        assert answer.is_success, answer.text
        await self._fleet.wait_idle(self._http)
