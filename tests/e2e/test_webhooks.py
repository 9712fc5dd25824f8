"""Webhooks of real processes: two on one store, which end, are killed and are told other settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from om_proxy.engine.event_feed.envelope import name_hook
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing import loopback
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.crash.findings import leases
from tests.e2e.process import Process
from tests.e2e.test_workers import send_history
from tests.support.free_port import free_port
from tests.support.long_forms import IS_LONG

SECRET, OTHER_SECRET = (
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "whsec_YW5vdGhlciBrZXkgb2YgMjQgYnl0ZXMh",
)
TOLD = "Crate {n} of {who} weighs {n} kilos, is painted red and goes to dock {n} at Quarry. " * 6
TURNS = 8 if IS_LONG else 5
PATIENCE_S = 60.0


@dataclass
class Receiver:
    """A receiver as the contract describes one, which can be away or hang."""

    is_away: bool = False
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[dict[str, Any]] = field(default_factory=list)
    forged: int = 0
    refused: int = 0
    open: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.taken]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await loopback.read_body(receive)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.open += 1
        self.has_news.set()
        try:
            await loopback.send_json(send, await self._answer(headers, body), {})
        finally:
            self.open -= 1

    async def _answer(self, headers: dict[str, str], body: bytes) -> int:
        try:
            Webhook(SECRET).verify(body, headers)
        except WebhookVerificationError:
            self.forged += 1
            return 401
        if self.is_away:
            self.refused += 1
            return 503
        self.taken.append(json.loads(body))
        await self.may_answer.wait()
        return 200

    async def wait_until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached():
                self.has_news.clear()
                await self.has_news.wait()


@dataclass
class Stage:
    """Two processes of one configuration, of which the first one is started, and the receiver."""

    folder: Path
    receiver: Receiver
    processes: list[Process]
    store: SqliteStore
    hook: str
    models: str

    def write_configuration(self, secret: str) -> None:
        for process in self.processes:
            process.config.write_text(
                f"""
                server: {{port: {httpx.URL(process.base).port}}}
                upstream: [{{name: scripted, base_url: "{self.models}/v1", layout: blocks}}]
                storage: {{url: "sqlite:///{self.folder}/om.db"}}
                memory: {{model: openai/scripted-observer, api_base: "{self.models}/v1", api_key: sk-memory,
                          observation: {{message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s}}}}
                telemetry: {{log: "off", webhooks: [{{url: "{self.hook}", secret: "{secret}"}}]}}
                """,
                encoding="utf-8",
            )

    async def play(self, who: str) -> None:
        """Have a conversation. Requests go round the processes that live."""
        history: list[dict[str, str]] = []
        for number in range(TURNS):
            living = [process for process in self.processes if process.alive]
            history.append({"role": "user", "content": TOLD.format(n=number, who=who)})
            answer = await send_history(living[number % len(living)].base, who, history)
            history.append(answer.json()["choices"][0]["message"])

    async def list_ids(self) -> list[str]:
        """Return the ids of all events, once none is under way."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._count_open_cycles():  # noqa: ASYNC110 - other processes end them
                await asyncio.sleep(0.05)
        return [
            str(event.id) for event in (await self.store.events(None, None, None, 9_999)).events
        ]

    async def _count_open_cycles(self) -> int:
        events = (await self.store.events(None, None, None, 9_999)).events
        types = [event.type.rpartition("-")[2] for event in events]
        return types.count("start") - types.count("end") - types.count("failed")

    async def wait_for_all(self) -> None:
        ids = await self.list_ids()
        await self.receiver.wait_until(lambda: len(self.receiver.taken) >= len(ids))
        assert self.receiver.ids == ids

    async def wait_for_hook(self) -> None:
        """Wait until a process has the lease of the hook, and its place is stored."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._has_sender():  # noqa: ASYNC110 - another process stores it
                await asyncio.sleep(0.02)

    async def _has_sender(self) -> bool:
        is_placed = await self.store.webhook_state(name_hook(self.hook)) is not None
        return is_placed and bool(self.list_holders())

    def list_holders(self) -> list[str]:
        held = leases(self.folder / "om.db")
        return [lease.holder for lease in held if lease.key.resource == "webhook"]

    async def expire_lease(self) -> None:
        """Do what 100 s would do."""
        for lease in leases(self.folder / "om.db"):
            await self.store.lease(lease.key, lease.holder, 0)


@asynccontextmanager
async def set_stage(folder: Path, secret: str = SECRET) -> AsyncIterator[Stage]:
    receiver = Receiver()
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            serve_on_loopback(ScriptedServer(), lifespan="off")
        )
        hooks = await stack.enter_async_context(serve_on_loopback(receiver, lifespan="off"))
        processes = [Process(folder / f"om-{n}.yaml", free_port()) for n in range(2)]
        store = await SqliteStore.open(folder / "om.db")
        stack.push_async_callback(store.close)
        stage = Stage(folder, receiver, processes, store, f"{hooks}/hook?key=canary", models)
        stage.write_configuration(secret)
        try:
            await processes[0].start()
            yield stage
        finally:
            receiver.may_answer.set()
            for process in processes:
                if process.alive:
                    await process.kill()


@pytest.mark.slow
async def test_every_event_once_over_restarts_and_processes(tmp_path: Path) -> None:
    """While the receiver is away, while the sender ends in the middle of a request, and while the
    sender is killed: whoever sends, all events come, in order, none twice."""
    async with set_stage(tmp_path) as stage:
        first, second = stage.processes
        receiver = stage.receiver
        await stage.wait_for_hook()  # the first process holds the lease
        await second.start()
        await stage.play("both")
        await stage.wait_for_all()

        receiver.is_away = True
        await stage.play("away")
        await receiver.wait_until(lambda: receiver.refused > 0)
        if IS_LONG:
            for process in (first, second):
                assert await process.terminate() == 0
                await process.start()
            await stage.play("restarted")
            receiver.is_away = False
            await stage.wait_for_all()

        # one after the other is the sender, and is told to end while a request is under way
        receiver.may_answer.clear()
        receiver.is_away = False
        await stage.play("ending")
        await receiver.wait_until(lambda: receiver.open == 1)
        ending = [asyncio.create_task(process.terminate()) for process in (first, second)]
        await asyncio.sleep(0.2)  # both have the signal; a sender waits for its answer
        receiver.may_answer.set()
        assert await asyncio.gather(*ending) == [0, 0]
        assert stage.list_holders() == []
        await first.start()
        await stage.wait_for_hook()
        await second.start()
        await stage.wait_for_all()

        await first.kill()
        assert len(stage.list_holders()) == 1
        await stage.expire_lease()
        await stage.play("killed")
        await stage.wait_for_all()
        assert receiver.forged == 0


@pytest.mark.slow
async def test_a_wrong_secret_is_mended_while_serving(tmp_path: Path) -> None:
    """The receiver refuses what is signed with another secret. No request waits for that, and once
    the secret is right, every event comes."""
    async with set_stage(tmp_path, OTHER_SECRET) as stage:
        receiver = stage.receiver
        await stage.wait_for_hook()
        await stage.play("refused")
        await receiver.wait_until(lambda: receiver.forged > 0)
        assert receiver.taken == []
        stage.write_configuration(SECRET)
        await stage.wait_for_all()


@pytest.mark.slow
async def test_a_receiver_that_hangs_holds_up_nothing(tmp_path: Path) -> None:
    """Every request is answered while the first event waits for its answer, and the process ends
    when it is told to. Then the event comes again: nobody said that it was taken."""
    async with set_stage(tmp_path) as stage:
        receiver = stage.receiver
        receiver.may_answer.clear()
        await stage.wait_for_hook()
        await stage.play("hanging")
        await receiver.wait_until(lambda: receiver.open == 1)
        assert len(receiver.taken) == 1
        assert await stage.processes[0].terminate() == 0
        receiver.may_answer.set()
        first_id = receiver.ids[0]
        receiver.taken.clear()
        await stage.processes[1].start()
        await stage.wait_for_all()
        assert receiver.ids[0] == first_id
