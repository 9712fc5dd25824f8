"""Clients that go on talking while the disk is in trouble; what they were told is held against what
is stored when all is over."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from starlette.types import Receive, Scope, Send

from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.disk.troubles import Full, Locked, Shimmed, Trouble, small_file_system
from tests.e2e.process import Process
from tests.support.free_port import free_port

KINDS = ("full-shim", "full", "lock", "eio", "fsync")
PACE_S = 0.25  # between two turns of a client
RECOVERY_S = 60.0

CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: echo, base_url: "{echo}/v1"}}]
storage: {{url: "sqlite:///{database}"}}
memory: {{observation: {{message_tokens: 1000000}}}}
telemetry: {{log: json}}
"""


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """A model server that says what it was asked last, and how many messages it was sent."""
    body, more = b"", True
    while more:
        got = await receive()
        body, more = body + got.get("body", b""), got.get("more_body", False)
    messages = orjson.loads(body)["messages"]
    reply = {"role": "assistant", "content": f"re {messages[-1]['content']}"}
    said = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}],
    }
    head = [(b"content-type", b"application/json"), (b"x-prompt-messages", b"%d" % len(messages))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": orjson.dumps(said)})


class Shown(Process):
    """A proxy in an environment of its own, whose log is kept."""

    def __init__(self, config: Path, port: int, environment: dict[str, str], log: Path) -> None:
        super().__init__(config, port)
        self._environment, self._log = environment, log

    async def start(self, within: float = 60.0) -> None:
        assignments = [f"{name}={value}" for name, value in self._environment.items()]
        serve = f'exec env {" ".join(assignments)} {_python()} -m om_proxy serve --config "{self.config}" 2>"{self._log}"'
        await self._started("sh", "-c", serve, within=within)
        assert self.alive, self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [
            orjson.loads(line)
            for line in self._log.read_bytes().splitlines()
            if line.startswith(b"{")
        ]
        return [event for event in lines if event.get("event") == name]


def _python() -> str:
    import sys

    return f'"{sys.executable}"'


@dataclass
class Answer:
    """One acknowledged turn."""

    began: float
    seconds: float
    status: str
    prompt_messages: int
    expected_messages: int


@dataclass
class Client:
    """`thin` sends only its newest message."""

    thread: str
    thin: bool
    history: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    async def turn(self, http: httpx.AsyncClient) -> None:
        asked = {"role": "user", "content": f"{self.thread} says {len(self.history) // 2:05d}"}
        sent = [asked] if self.thin else [*self.history, asked]
        began, moment = time.monotonic(), time.time()
        headers = {"x-om-thread": self.thread}
        answer = await http.post(
            "/v1/chat/completions", json={"model": "m", "messages": sent}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        seconds = time.monotonic() - began
        self.history += [asked, answer.json()["choices"][0]["message"]]
        said = f"{answer.headers['x-om-status']}/{answer.headers.get('x-om-reason', '')}"
        prompt = int(answer.headers["x-prompt-messages"])
        self.answers.append(Answer(moment, seconds, said, prompt, len(self.history) - 1))


@dataclass
class Report:
    kind: str
    acknowledged: int = 0  # messages
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    longest_hold_s: float = 0.0
    longest_hold_open_s: float = 0.0  # of requests that began after the breaker had opened
    undeclared: int = 0  # receipts that told of no trouble after the breaker had opened
    short_prompts: int = 0  # that lacked a turn
    ready_during: set[str] = field(
        default_factory=set
    )  # what readyz said after the breaker had opened
    ready_after: str = ""

    @property
    def is_sound(self) -> bool:
        return (
            not (self.lost or self.doubled or self.out_of_order or self.undeclared)
            and self.ready_after == "ok"
        )


@asynccontextmanager
async def troubled_proxy(folder: Path, kind: str) -> AsyncIterator[tuple[Shown, Trouble, Path]]:
    with ExitStack() as kept:
        where = (
            kept.enter_context(small_file_system(folder / "small")) if kind == "full" else folder
        )
        database = where / "om.db"
        trouble: Trouble
        match kind:
            case "full":
                trouble = Full(where)
            case "lock":
                trouble = Locked(database)
            case _:
                trouble = Shimmed(folder, {"full-shim": "n", "eio": "e", "fsync": "f"}[kind])
        async with serve_on_loopback(echo, lifespan="off") as upstream:
            port, config = free_port(), folder / "om.yaml"
            config.write_text(CONFIGURATION.format(port=port, echo=upstream, database=database))
            process = Shown(config, port, trouble.environment, folder / "log")
            await process.start()
            try:
                yield process, trouble, database
            finally:
                trouble.end()
                if process.alive:
                    await process.terminate()


async def outage(
    folder: Path, kind: str, seconds: float | None, clients: int = 4, turns: int = 3
) -> Report:
    """`seconds` of trouble; None: until the breaker has opened and every client has had `turns`
    more."""
    talking = [Client(f"{kind}-{n}", thin=n % 2 == 0) for n in range(clients)]
    report = Report(kind)
    async with troubled_proxy(folder, kind) as (process, trouble, database):
        async with httpx.AsyncClient(base_url=process.base, trust_env=False, timeout=60) as http:
            await _all_speak(talking, http, turns)
            trouble.begin()
            if seconds is None:
                opened = await _until_open(process, talking, http, reads_fail=kind == "eio")
                report.ready_during.add(await _ready(http))
                await _all_speak(talking, http, turns)
            else:
                opened = await _speak_for(seconds, process, talking, http, report)
            ended = time.time()
            trouble.end()
            report.ready_after = await _recovered(http)
            await _all_speak(talking, http, turns)
        assert await process.terminate() == 0
        await _judge(report, database, talking, opened, ended)
    return report


async def _all_speak(talking: list[Client], http: httpx.AsyncClient, turns: int) -> None:
    async def speak(client: Client) -> None:
        for _ in range(turns):
            await client.turn(http)

    await asyncio.gather(*map(speak, talking))


async def _until_open(
    process: Shown, talking: list[Client], http: httpx.AsyncClient, *, reads_fail: bool
) -> float:
    """Talk until the process knows that its store fails. Where reads fail, nothing may be written
    at all."""
    async with asyncio.timeout(90):
        while not process.events("storage.breaker_open"):
            if reads_fail and await _ready(http) == "degraded":
                break
            await _all_speak(talking, http, 1)
            await asyncio.sleep(PACE_S)
    return time.time()


async def _speak_for(
    seconds: float, process: Shown, talking: list[Client], http: httpx.AsyncClient, report: Report
) -> float:
    until, opened = time.monotonic() + seconds, float("inf")

    async def speak(client: Client) -> None:
        while time.monotonic() < until:
            await client.turn(http)
            await asyncio.sleep(PACE_S)

    async def look() -> None:
        nonlocal opened
        while time.monotonic() < until - 1:
            await asyncio.sleep(0.5)
            # what cannot be read is not even tried to be written
            is_known = process.events("storage.breaker_open") or process.events("memory.bypassed")
            if opened == float("inf") and is_known:
                opened = time.time()
            if opened < time.time():
                report.ready_during.add(await _ready(http))

    await asyncio.gather(look(), *map(speak, talking))
    return opened


async def _ready(http: httpx.AsyncClient) -> str:
    return str((await http.get("/readyz")).json()["status"])


async def _recovered(http: httpx.AsyncClient) -> str:
    until = time.monotonic() + RECOVERY_S
    while True:
        status = await _ready(http)
        if status == "ok" or time.monotonic() > until:
            return status
        await asyncio.sleep(0.2)


async def _judge(
    report: Report, database: Path, talking: list[Client], opened: float, ended: float
) -> None:
    store = await SqliteStore.open(database)
    for client in talking:
        found = await store.messages(Key(LOCAL_TENANT, client.thread, client.thread), 0)
        held = [orjson.loads(m.item.raw)["content"] for m in found]
        meant = [m["content"] for m in client.history]
        report.acknowledged += len(meant)
        report.lost += len(set(meant) - set(held))
        report.doubled += sum(times - 1 for times in Counter(held).values())
        once = list(dict.fromkeys(held))
        report.out_of_order += sum(
            a != b for a, b in zip(once, [m for m in meant if m in set(held)], strict=False)
        )
        for answer in client.answers:
            report.longest_hold_s = max(report.longest_hold_s, answer.seconds)
            report.short_prompts += answer.prompt_messages < answer.expected_messages
            if opened <= answer.began and answer.began + answer.seconds < ended:
                report.longest_hold_open_s = max(report.longest_hold_open_s, answer.seconds)
                report.undeclared += answer.status != "degraded/storage"
    await store.close()
