"""Processes on one store that lose it in turn, and a client that talks to any of them. It sends its
whole history, and goes on from an earlier message at times; or its last messages, or its newest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import StorageError
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.model import MAX_VIEWS, Memory
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.e2e.running import Clock
from tests.engine.turns.test_engine import (
    Message,
    Turns,
    assistant,
    make_missed,
    make_reply,
    read_forwarded,
    texts,
    user,
)
from tests.memory.building import KEY
from tests.support.faulty_store import Faulty
from tests.support.performing import SMALL, open_parts

PROCESS_COUNT = 3
STEP_COUNT = 40
SEED_COUNT = 6
# nothing becomes active: each prompt is the history, word for word
PATIENT = SMALL.replace("message_tokens: 1000", "message_tokens: 100000")
WITHOUT_CHUNKS = PATIENT.replace("buffer_tokens: 200", "buffer_tokens: false")
WITH_CHUNKS = PATIENT.replace("buffer_tokens: 200", "buffer_tokens: 20")
WITH_NOTES = SMALL.replace(
    "message_tokens: 1000, buffer_tokens: 200", "message_tokens: 60, buffer_tokens: 20"
)


@dataclass
class Process:
    """A process that can lose the store alone."""

    turns: Turns
    faulty: Faulty
    # turns whose memory could not be read
    missed: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def find_store(self) -> None:
        self.faulty.refuses = self.faulty.cannot_be_read = False
        store = self.turns.parts.store
        assert isinstance(store, SpoolingStore)
        assert await store.flusher.flush()
        await store.ping()  # it can be read again
        while self.missed:
            await self.missed.pop(0)()

    def lose_store(self, *, for_reading: bool) -> None:
        self.faulty.refuses, self.faulty.cannot_be_read = True, for_reading


class Opener:
    """Opens a store that can fail, with a spool in front of it."""

    faulty: Faulty

    async def open(self, path: Path | str) -> SpoolingStore:
        self.faulty = Faulty(await SqliteStore.open(path))
        return SpoolingStore(self.faulty, retry_s=1_000.0)  # only when a test says


@asynccontextmanager
async def open_processes(file: Path, settings: str, clock: Clock) -> AsyncIterator[list[Process]]:
    processes = []
    async with AsyncExitStack() as stack:
        for _ in range(PROCESS_COUNT):
            opener = Opener()
            opening = open_parts(settings=settings, path=file, opener=opener, clock=clock)
            parts = await stack.enter_async_context(opening)
            renderer, counter = BlockRenderer(), TokenCounter()
            engine = Engine(
                parts.memories, parts.background, renderer, counter, b"s" * 32, clock=clock
            )
            processes.append(Process(Turns(parts, engine), opener.faulty))
        yield processes
        for process in processes:
            await process.find_store()


@dataclass
class Talker:
    """The client, and what it holds."""

    clock: Clock
    history: list[Message] = field(default_factory=list)
    said_count: int = 0
    stores_ahead: bool = False  # its message is stored before the model is asked

    async def ask(
        self,
        process: Process,
        kept: list[Message],
        found_by: Process | None = None,
        *,
        is_window: bool = False,
    ) -> None:
        """Say something behind `kept`. The prompt is just what is sent, or the original bytes.
        `found_by`: a process that finds the store while the model answers."""
        self.said_count += 1
        self.clock.now += 1
        sent, reply = [*kept, user(f"u{self.said_count}")], f"a{self.said_count}"
        engine = process.turns.engine
        try:
            opened = await process.turns.open(sent)
        except StorageError:
            process.missed.append(partial(self._close_missed, process, sent, reply, self.clock()))
        else:
            if kept and not is_window and opened.body is not None:
                assert texts(read_forwarded(opened))[1:] == texts(sent)
            if self.stores_ahead:
                turn = await engine.committer.store_unanswered(opened.opened)
                opened = replace(opened, opened=turn)
            self.clock.now += 1
            if found_by is not None:
                await found_by.find_store()
            await engine.close_turn(opened, make_reply(reply))
            await process.turns.parts.background.wait_idle()
        self.history = [*(self.history if is_window else kept), sent[-1], assistant(reply)]

    async def _close_missed(
        self, process: Process, sent: list[Message], reply: str, came_at: float
    ) -> None:
        missed = make_missed(process.turns, sent, reply, came_at, ended_at=came_at)
        await process.turns.engine.close_missed(missed)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(SEED_COUNT))
@pytest.mark.parametrize("settings", [WITHOUT_CHUNKS, WITH_CHUNKS], ids=["raw", "chunks"])
async def test_a_history_whose_turns_wait_in_several_processes(
    seed: int, settings: str, tmp_path: Path
) -> None:
    """No prompt tells anything twice, or lacks anything. Once all have the store again, the
    transcript has what the client holds, in its order, and nothing twice."""
    dice, clock = random.Random(seed), Clock()
    async with open_processes(tmp_path / "memory.db", settings, clock) as processes:
        client = Talker(clock)
        for _ in range(STEP_COUNT):
            process, step = dice.choice(processes), dice.random()
            if step < 0.12:
                process.lose_store(for_reading=dice.random() < 0.5)
            elif step < 0.3:
                await process.find_store()
            else:
                kept = client.history
                if len(kept) >= 4 and dice.random() < 0.2:
                    kept = kept[: dice.randrange(1, len(kept) // 2) * 2]
                finds_store = dice.random() < 0.3
                await client.ask(
                    process, kept, dice.choice([process, *processes]) if finds_store else None
                )
        for process in processes:
            await process.find_store()
        for process in processes:
            await client.ask(process, client.history)
        live = await processes[0].turns.live()
        assert len(set(live)) == len(live)
        held = set(texts(client.history))
        assert [text for text in live if text in held] == texts(client.history)


# in the last one, turns that wait meet those of others while a message stands ahead of its reply
@pytest.mark.parametrize("seed", [*range(SEED_COUNT), 9003])
async def test_newest_messages_whose_turns_wait_in_several_processes(
    seed: int, tmp_path: Path
) -> None:
    """The client sends its newest message only. Some are stored ahead of their replies. Once all
    have the store again, the transcript has each message once, and its reply behind it."""
    dice, clock = random.Random(seed), Clock()
    async with open_processes(tmp_path / "memory.db", WITHOUT_CHUNKS, clock) as processes:
        client = Talker(clock)
        for _ in range(STEP_COUNT):
            process, step = dice.choice(processes), dice.random()
            if step < 0.12:
                process.lose_store(for_reading=dice.random() < 0.5)
            elif step < 0.3:
                await process.find_store()
            else:
                client.stores_ahead = dice.random() < 0.5
                finds_store = dice.random() < 0.3
                await client.ask(
                    process, [], dice.choice([process, *processes]) if finds_store else None
                )
        for process in processes:
            await process.find_store()
        live = await processes[0].turns.live()
        said = [f"{who}{number}" for number in range(1, client.said_count + 1) for who in "ua"]
        assert sorted(live) == sorted(said)
        for number in range(1, client.said_count + 1):
            assert live.index(f"u{number}") < live.index(f"a{number}")


@pytest.mark.sample(7)
@pytest.mark.parametrize("window", [2, 3, 6])
@pytest.mark.parametrize("seed", [1, 2, 5])
@pytest.mark.parametrize("settings", [WITHOUT_CHUNKS, WITH_NOTES], ids=["raw", "notes"])
async def test_windows_whose_turns_wait_in_several_processes(
    seed: int, window: int, settings: str, tmp_path: Path
) -> None:
    """The client sends its last messages only. Once all have the store again, the transcript has
    each message once, also where notes cover some of them meanwhile, and prompts tell the rest."""
    dice, clock = random.Random(seed), Clock()
    async with open_processes(tmp_path / "memory.db", settings, clock) as processes:
        client = Talker(clock)
        for _ in range(STEP_COUNT):
            process, step = dice.choice(processes), dice.random()
            if step < 0.12:
                process.lose_store(for_reading=dice.random() < 0.5)
            elif step < 0.3:
                await process.find_store()
            else:
                finds_store = dice.random() < 0.3
                await client.ask(
                    process,
                    client.history[-window:],
                    dice.choice([process, *processes]) if finds_store else None,
                    is_window=True,
                )
        for process in processes:
            await process.find_store()
        live = await processes[0].turns.live()
        said = [f"{who}{number}" for number in range(1, client.said_count + 1) for who in "ua"]
        assert sorted(live) == sorted(said)
        for process in processes:
            sent = [*client.history[-window:], user("now")]
            opened = await process.turns.open(sent)
            shown = sent if opened.body is None else read_forwarded(opened)
            noted_count = opened.opened.reconciled.projected.covered_count
            told = [text for text in texts(shown) if text in (*said, "now")]
            assert sorted(told) == sorted([*live[noted_count:], "now"])


async def test_a_message_stored_ahead_of_its_reply_while_many_turns_are_stored(
    tmp_path: Path,
) -> None:
    """Another process finds the store again meanwhile. The requests that it records leave no record
    of the one whose message stands, and it stands once."""
    async with open_processes(tmp_path / "memory.db", WITHOUT_CHUNKS, Clock()) as (one, other, _):
        client = Talker(one.turns.parts.clock)
        await client.ask(other, [])
        one.lose_store(for_reading=False)
        for _ in range(MAX_VIEWS):
            await client.ask(one, [])
        client.stores_ahead = True
        await client.ask(other, [], found_by=one)
        live = await other.turns.live()
        assert len(live) == len(set(live)) == 2 * client.said_count
        assert live[-1] == f"a{client.said_count}"


async def test_a_message_that_waits_ahead_of_its_reply_and_gets_another_number(
    tmp_path: Path,
) -> None:
    """Another process has stored a turn among those that wait. A turn whose memory could not be read
    is stored behind the message. It stands once."""
    async with open_processes(tmp_path / "memory.db", WITHOUT_CHUNKS, Clock()) as (one, other, _):
        client = Talker(one.turns.parts.clock)
        await client.ask(one, [])
        one.lose_store(for_reading=True)
        await client.ask(one, [])
        one.lose_store(for_reading=False)
        one.faulty.cannot_be_read = False
        await client.ask(one, [])
        await client.ask(other, [])
        await client.ask(one, [])
        client.stores_ahead = True
        await client.ask(one, [], found_by=one)
        live = await other.turns.live()
        assert len(live) == len(set(live)) == 2 * client.said_count


async def forget_thread(process: Process) -> None:
    await process.turns.parts.memories.forget(KEY)


async def forget_resource(process: Process) -> None:
    memories = process.turns.parts.memories
    await memories.forget_all(KEY.tenant, KEY.resource)


async def forget_tenant(process: Process) -> None:
    await process.turns.parts.memories.forget_all(KEY.tenant)


FORGET = pytest.mark.parametrize("forget", [forget_thread, forget_resource, forget_tenant])


@FORGET
@pytest.mark.parametrize("begins_anew", [False, True], ids=["nothing since", "begun anew since"])
async def test_a_first_turn_under_way_while_another_process_forgets_its_name(
    forget: Callable[[Process], Awaitable[None]], begins_anew: bool, tmp_path: Path
) -> None:
    """Nothing was stored that could be forgotten. The turn stores nothing all the same; what was
    asked since is stored, and has the turn not before it."""
    clock = Clock()
    async with open_processes(tmp_path / "memory.db", PATIENT, clock) as (one, other, _):
        opened = await one.turns.open([user("first")])
        clock.now += 1
        await forget(other)
        clock.now += 1
        if begins_anew:
            await other.turns.turn([user("later")], "stored")
        with capture_logs() as logs:
            await one.turns.engine.close_turn(opened, make_reply("too late"))
        assert [entry["event"] for entry in logs] == ["memory.forgotten_meanwhile"]
        if not begins_anew:
            assert await one.turns.parts.memory() == Memory(key=KEY)
            await one.turns.turn([user("later")], "stored")
        assert await one.turns.live() == ["later", "stored"]


@FORGET
@pytest.mark.parametrize("for_reading", [False, True], ids=["not written", "not read either"])
async def test_a_first_turn_that_waits_while_another_process_forgets_its_name(
    forget: Callable[[Process], Awaitable[None]], for_reading: bool, tmp_path: Path
) -> None:
    """The process that holds it finds the store again. Of what waits, only what was asked after the
    forgetting is stored."""
    clock = Clock()
    async with open_processes(tmp_path / "memory.db", PATIENT, clock) as (one, other, _):
        client = Talker(clock)
        one.lose_store(for_reading=for_reading)
        await client.ask(one, [])
        clock.now += 1
        await forget(other)
        clock.now += 1
        if for_reading:
            await client.ask(one, [])
        else:  # its prompt has the turn that waits: the process knows of no forgetting yet
            await one.turns.turn([user("u2")], "a2")
        await one.find_store()
        assert await other.turns.live() == ["u2", "a2"]


@pytest.mark.parametrize("for_reading", [False, True], ids=["not written", "not read either"])
@pytest.mark.parametrize("knows_row", [False, True], ids=["first turn here", "later turn"])
async def test_a_turn_that_waits_while_a_forgetting_fails(
    knows_row: bool, for_reading: bool, tmp_path: Path
) -> None:
    """Its name was noted by another process, and its thread stands: the turn is stored."""
    clock = Clock()
    async with open_processes(tmp_path / "memory.db", WITHOUT_CHUNKS, clock) as (one, other, _):
        client = Talker(clock)
        if knows_row:
            await client.ask(one, [])
        one.lose_store(for_reading=for_reading)
        await client.ask(one, [])
        await other.turns.turn([user("beside")], "told")
        clock.now += 1
        await other.turns.parts.store.note_forgotten(KEY, clock.now)
        clock.now += 1
        await one.find_store()
        live = await other.turns.live()
        said = ["u1", "a1", "u2", "a2"] if knows_row else ["u1", "a1"]
        assert sorted(live) == sorted([*said, "beside", "told"])


async def test_a_first_turn_under_way_while_a_forgetting_fails(tmp_path: Path) -> None:
    """Another process has stored a turn of the thread meanwhile: the thread stands, and both are in
    it."""
    clock = Clock()
    async with open_processes(tmp_path / "memory.db", WITHOUT_CHUNKS, clock) as (one, other, _):
        opened = await one.turns.open([user("first")])
        clock.now += 1
        await other.turns.turn([user("beside")], "told")
        clock.now += 1
        await other.turns.parts.store.note_forgotten(KEY, clock.now)
        clock.now += 1
        await one.turns.engine.close_turn(opened, make_reply("late"))
        assert sorted(await other.turns.live()) == ["beside", "first", "late", "told"]
