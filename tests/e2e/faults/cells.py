"""Runs the cells of one role, all of them at once, against one proxy, and notes what came of
each."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from om_proxy.app.app import MAX_CHAT_CONNECTIONS, App
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Key, Memory, Message, Observation
from om_proxy.settings.config import parse
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.wire.upstream import AiohttpTransport
from tests.e2e.faults.faults import CELLS, FAULTS, Cell, Content, well
from tests.e2e.faults.places import places
from tests.e2e.raw_upstream import chat_body, serve_app
from tests.e2e.running import Clock
from tests.support.long_forms import IS_LONG
from tests.support.raw_client import RawResponse, ask
from tests.support.upstream_server import Call, run_upstream_server

T = TypeVar("T")

LIMIT = 1.0  # seconds the proxy has for what hangs
MIND_LIMIT = 8.0  # seconds a memory model has, for the whole of its work
AMPLE = 30  # seconds for what does not hang, so that a busy machine fails nothing
SLACK = 10.0  # seconds beyond it after which something hangs, on a busy machine too
BEAT = 0.02  # seconds; as late as that again is no stall
WELL = "well"  # a model with which nothing is wrong, for faults of places that stay as they are
GOOD = "fünf € are five"
AT_ONCE = 32  # cells
HEAVY = (
    "one-line-of-10-MB",
    "gzip-bomb",
)  # by themselves: what the others take shall not be their weight
BY_NAME = {fault.name: fault for fault in FAULTS}
# a memory model's cells; in the short form one of each fault, for a stream or a whole answer
MEMORY_CELLS = (
    CELLS
    if IS_LONG
    else tuple(
        cells[number % len(cells)]
        for number, fault in enumerate(FAULTS)
        for cells in ([cell for cell in CELLS if cell.fault is fault],)
    )
)
PAST_ALL_BACK_OFF = 7 * 3_600.0  # seconds


class Stalls:
    """By how many seconds, altogether, the event loop has come late: what a busy machine adds to
    all that is measured."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __aenter__(self) -> Stalls:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._beating.cancel()
        await asyncio.wait((self._beating,))

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + BEAT
            await asyncio.sleep(BEAT)
            self.seconds += max(0.0, time.monotonic() - due - BEAT)

    def timing(self) -> Callable[[], float]:
        """What then tells the seconds since now, stalls left out."""
        started, stalled = time.monotonic(), self.seconds
        return lambda: time.monotonic() - started - (self.seconds - stalled)


@dataclass
class Site:
    """A proxy, and behind it model servers of which those of `role` fail while they are `ill`."""

    app: App
    port: int
    clock: Clock
    role: str
    stalls: Stalls
    ill: bool = True
    asked: Counter[str] = field(default_factory=Counter)  # calls of memory models, by name

    async def answer(self, call: Call) -> None:
        request = orjson.loads(call.seen.body)
        mind, _, name = request["model"].rpartition("/")
        content = Content(notes(self.asked[name]) if mind else GOOD, bool(request.get("stream")))
        if mind:
            self.asked[name] += 1
        fault = BY_NAME.get(name)
        if not self.ill or fault is None or bool(mind) != (self.role != "actor"):
            await well(content).send(call)
            return
        if fault.streams_only and mind:
            content = Content(content.text, stream=True)  # nobody asked for one, but so it fails
        assert fault.wire is not None
        made = fault.wire(call if fault.ours else content)  # type: ignore[arg-type] # a script where no answer comes
        await (made if fault.ours else made.send(call))  # type: ignore[misc,union-attr] # the same

    async def ask(
        self, thread: str | None, model: str, *texts: str, stream: bool
    ) -> tuple[RawResponse, float]:
        """A request, and the seconds until its end; without one after five, nothing came."""
        named = (b"X-OM-Thread: " + thread.encode(),) if thread else ()
        timing = self.stalls.timing()
        try:
            got = await ask(self.port, chat_body(*texts, model=model, stream=stream), headers=named)
        except TimeoutError:
            got = RawResponse(0, [], b"", False, b"")
        return got, timing()

    def key(self, cell: Cell) -> Key:
        return Key(LOCAL_TENANT, str(cell), str(cell))

    async def memory(self, cell: Cell) -> Memory:
        return await self.app.store.load(self.key(cell))

    async def live(self, cell: Cell) -> list[dict[str, Any]]:
        return [orjson.loads(m.item.raw) for m in await self.app.store.messages(self.key(cell), 0)]

    def leaks(self) -> dict[str, int]:
        """What is held although nobody asks any more: all of it zero."""
        upstream = self.app.upstream
        assert isinstance(upstream._transport, AiohttpTransport)
        return {
            "places": MAX_CHAT_CONNECTIONS - upstream._slots._value,
            "calls": len(upstream._tasks),
            "connections": connections(upstream._transport),
            "connections of memory": connections(self.app._memory_transport),
            "work": len(self.app.background._running) + len(self.app.background._detached),
        }


def connections(transport: AiohttpTransport) -> int:
    """In use; 0 where there was none yet."""
    session = transport._session
    return len(session.connector._acquired) if session and session.connector else 0


def notes(turn: int) -> str:
    return f"<observations>\nDate: Nov 14, 2023\n* 🔴 (10:00) The fünf € of round {turn} were paid\n</observations>"


@asynccontextmanager
async def site(folder: Path, role: str) -> AsyncIterator[Site]:
    """`role`: whose model fails: actor, observer or reflector. The memory of model `x` is kept by a
    model of that name."""
    sites: list[Site] = []

    async def answering(call: Call) -> None:
        await sites[0].answer(call)

    async with run_upstream_server(answering) as server, places(server.base) as addresses:
        short = {"connect_timeout": f"{LIMIT}s", "read_timeout": f"{LIMIT}s"}
        ample = {"connect_timeout": f"{AMPLE}s", "read_timeout": f"{AMPLE}s"}
        own = [f for f in FAULTS if role == "actor" and (f.hangs or f.place != "server")]
        named = [
            {"name": f.name, "match": [f.name], "base_url": addresses[f.place], **short}
            for f in own
        ]
        minds = {
            f.name: memory_of(role, f.name, addresses[f.place]) for f in FAULTS if role != "actor"
        }
        minds[WELL] = memory_of(role, WELL, server.base)
        settings = {
            "upstream": [*named, {"name": "server", "base_url": server.base, **ample}],
            "storage": {"url": f"sqlite:///{folder}/om.db"},
            "models": minds,
            "background": {"concurrency": 2 * len(CELLS), "observer_interval": "1h"},
            "telemetry": {"log": "off"},
        }
        clock = Clock()
        app = App(parse(json.dumps(settings)), clock=clock, model_timeout_s=MIND_LIMIT)
        async with serve_app(app) as port, Stalls() as stalls:
            sites.append(Site(app, port, clock, role, stalls))
            assert (
                await ask(port, b"", method="GET", path="/healthz")
            ).status == 200  # it has started
            yield sites[0]


def memory_of(role: str, name: str, address: str) -> dict[str, Any]:
    """Settings of a memory that asks the observer after every long turn, and the reflector from a
    log of 200 tokens on."""
    model = {"model": f"openai/{role}/{name}", "api_base": address, "api_key": "sk-mind"}
    if role == "observer":
        return {**model, "observation": {"message_tokens": 1_000, "buffer_tokens": 100}}
    return {**model, "reflection": {"observation_tokens": 400}}


def groups(every: Sequence[Cell], alone: Collection[str] = ()) -> list[list[Cell]]:
    """The cells that are run at once: those that hang, the others as many as one core has no
    trouble with, those named alone."""
    hanging = [cell for cell in every if cell.fault.hangs]
    by_themselves = [cell for cell in every if cell.fault.name in alone]
    others = [cell for cell in every if cell not in hanging and cell not in by_themselves]
    shares = [others[start : start + AT_ONCE] for start in range(0, len(others), AT_ONCE)]
    return [hanging, *shares, *([cell] for cell in by_themselves)]


async def in_groups(run: Callable[[Cell], Awaitable[T]]) -> dict[str, T]:
    """What `run` gives for each cell."""
    done: dict[str, T] = {}
    for cells in groups(CELLS, HEAVY):
        done |= zip(map(str, cells), await asyncio.gather(*map(run, cells)), strict=True)
    return done


# ── the actor's model fails ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Answered:
    """Once with a thread, once without one."""

    with_thread: RawResponse
    without: RawResponse
    seconds: float  # the longer one of both, without the machine's stalls
    after: list[dict[str, Any]]  # what the thread then holds
    again: RawResponse  # the same request once more, the server being well
    at_last: list[dict[str, Any]]


async def actor_cells(folder: Path) -> tuple[dict[str, Answered], dict[str, int]]:
    async with site(folder, "actor") as here:
        first = await in_groups(partial(fail_once, here))
        await here.app.background.wait_idle()
        after = {str(cell): await here.live(cell) for cell in CELLS}
        here.ill = False
        again = await in_groups(partial(recover, here))
        await here.app.background.wait_idle()
        done = {}
        for name, cell in zip(map(str, CELLS), CELLS, strict=True):
            one, other, seconds = first[name]
            done[name] = Answered(
                one, other, seconds, after[name], again[name], await here.live(cell)
            )
        return done, here.leaks()


async def fail_once(here: Site, cell: Cell) -> tuple[RawResponse, RawResponse, float]:
    both = (
        here.ask(thread, cell.fault.name, "How many?", stream=cell.stream)
        for thread in (str(cell), None)
    )
    (one, took), (other, took_too) = await asyncio.gather(*both)
    return one, other, max(took, took_too)


async def recover(here: Site, cell: Cell) -> RawResponse:
    """From the same server, over the connections that are left of what went before."""
    got, _ = await here.ask(str(cell), WELL, "How many?", stream=cell.stream)
    return got


# ── a memory model fails ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Remembered:
    chats: tuple[RawResponse, ...]  # every request of the cell
    longest: float  # seconds, of a request; without the machine's stalls
    # seconds until the failing work of a group of cells was given up, the longest; the same
    work: float
    before: Memory  # the failure
    failed: Memory  # after it
    calls: tuple[
        int, int
    ]  # of the memory model: after the failure, and after another turn in the back-off
    at_last: Memory  # after a turn with a model that is well


SAID = (
    "The deploy window for the ferry service is nine minutes wide, and the ticket is OPS-{n}. " * 8
)


async def memory_cells(folder: Path, role: str) -> tuple[dict[str, Remembered], dict[str, int]]:
    async with site(folder, role) as here:
        talks = {str(cell): Talk(here, cell) for cell in MEMORY_CELLS}

        async def all_say(model: Callable[[Cell], str] = lambda cell: cell.fault.name) -> float:
            longest = 0.0
            for cells in groups(MEMORY_CELLS):
                await asyncio.gather(*(talks[str(cell)].say(model(cell)) for cell in cells))
                timing = here.stalls.timing()
                await here.app.background.wait_idle()
                longest = max(longest, timing())
            return longest

        here.ill = False
        if role == "reflector":
            await all_say()
            await asyncio.gather(*(talk.grow() for talk in talks.values()))
        before = {name: await here.memory(talk.cell) for name, talk in talks.items()}
        here.asked.clear()
        here.ill = True
        work = await all_say()
        failed = {name: await here.memory(talk.cell) for name, talk in talks.items()}
        calls = Counter(here.asked)
        await all_say()
        calls_then = Counter(here.asked)
        here.ill = False
        here.clock.now += PAST_ALL_BACK_OFF
        if role == "reflector":
            await asyncio.gather(*(talk.grow() for talk in talks.values()))
        await all_say(lambda cell: WELL if cell.fault.wire is None else cell.fault.name)
        return {
            name: Remembered(
                tuple(talk.answers),
                talk.longest,
                work,
                before[name],
                failed[name],
                (calls[talk.cell.fault.name], calls_then[talk.cell.fault.name]),
                await here.memory(talk.cell),
            )
            for name, talk in talks.items()
        }, here.leaks()


class Talk:
    """A client that keeps its history in the thread of one cell."""

    def __init__(self, here: Site, cell: Cell) -> None:
        self.cell = cell
        self.answers: list[RawResponse] = []
        self.longest = 0.0
        self._here = here

    async def say(self, model: str) -> None:
        text = SAID.format(n=len(self.answers))
        got, took = await self._here.ask(str(self.cell), model, text, stream=self.cell.stream)
        self.answers.append(got)
        self.longest = max(self.longest, took)

    async def grow(self) -> None:
        """Add an entry of 300 tokens to the log, over the messages there are, as an observer would
        have made it."""
        await self._here.app.chat._engine._memories.update(
            self._here.key(self.cell), partial(add_log_entry, self._here.clock())
        )


def add_log_entry(now: float, memory: Memory) -> Memory:
    newest: Message = memory.tail[-1]
    entry = Observation(
        id=0, after=memory.coverage, last=newest.seq, chain=newest.chain, text="* 🔴 (10:00) " + "paid five times " * 99,
        tokens=300, source_tokens=300, at=now, task=None, suggestion=None, title=None, model="m",
    )  # fmt: skip
    buffered = transitions.add_chunk(memory, entry)
    return transitions.activate_chunks(buffered, ids=[buffered.chunks[-1].id], now=now)


def roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]
