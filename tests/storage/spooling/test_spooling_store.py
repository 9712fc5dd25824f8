"""Turns that cannot be written wait in order, are read as if stored, and are stored once when the
store is back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError, UnopenedText
from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.ledger import Account, TurnEntry, add_turn
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.model import Cell, Key, Memory, Message, View, extend_chain, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.spooling.breaker import MAX_FAILURES_IN_A_ROW, PROBE_INTERVAL_S
from om_proxy.storage.spooling.spool_flusher import MAX_RESOURCES_AT_ONCE
from om_proxy.storage.spooling.spooled_turns import SpoolBudget, SpooledResource
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.records import EventPage
from tests.storage.contract import MOVES, Opener, Step, StoreContract
from tests.storage.contract_part import EACH_KIND, keep_part
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.support.faulty_store import Faulty
from tests.support.stopped_process import stand_still

OTHER = Key("tenant", "another", "thread")


@keep_part(*EACH_KIND)
class TestSpoolInFront(StoreContract):
    """The contract with a spool in front of a file: with OM_TEST_LONG=all the whole, else a part."""

    thinned = 3

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_store() -> Store:
            return SpoolingStore(await SqliteStore.open(tmp_path / "memory.db"))

        return open_store


@asynccontextmanager
async def open_spool(
    folder: Path, file: str = "memory.db", **options: Any
) -> AsyncIterator[tuple[SpoolingStore, Faulty]]:
    faulty = Faulty(await SqliteStore.open(folder / file))
    store = SpoolingStore(faulty, **options)
    try:
        yield store, faulty
    finally:
        faulty.refuses = faulty.forgets_to_say = faulty.cannot_be_read = faulty.hangs = False
        await store.close()


def add_messages(memory: Memory, *texts: str) -> Memory:
    """Return the memory with these messages added."""
    for text in texts:
        told = item(text, "user" if text.startswith("u") else "assistant")
        message = Message(memory.next_seq, told, extend_chain(memory.chain, told.fp), 5, 1.0)
        memory = replace(
            memory, tail=(*memory.tail, message), next_seq=memory.next_seq + 1, turn_at=1.0
        )
    return memory


def texts(messages: Sequence[Message]) -> list[str]:
    return [m.item.raw.decode() for m in messages]


async def say(store: Store, key: Key, *more: str) -> Memory:
    before = await store.load(key)
    return await store.commit(before, add_messages(before, *more))


async def list_stored_texts(store: Faulty, key: Key = KEY) -> list[str]:
    """List the texts that another process finds in the file."""
    return texts(await store._store.messages(key, 0))


async def test_a_turn_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    """The next turn is computed from store and spool together. The file holds only the first
    turn."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        first = await say(store, KEY, "u2", "a2")
        second = await say(store, KEY, "u3", "a3")
        assert texts((await store.load(KEY)).tail) == ["u1", "a1", "u2", "a2", "u3", "a3"]
        assert await store.version(KEY) == second.version < 0 > first.version != second.version
        assert texts(await store.messages(KEY, 2)) == ["u2", "a2", "u3", "a3"]
        assert texts(await store.messages_by_seq(KEY, [1, 4])) == ["u1", "a2"]
        assert [m.seq for m in (await store.outline(KEY)).live] == [1, 2, 3, 4, 5, 6]
        assert await list_stored_texts(faulty) == ["u1", "a1"]
        assert store.is_degraded(KEY)
        assert not store.is_degraded(OTHER)


async def test_a_forgetting_waits_for_those_that_are_being_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many turns of others wait."""
    keys = [KEY._replace(resource=str(number)) for number in range(3 * MAX_RESOURCES_AT_ONCE)]
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for key in keys:
            await say(store, key, "u1", "a1")
        faulty.refuses = False
        is_writing, may_write = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            is_writing.set()
            await may_write.wait()

        monkeypatch.setattr(faulty, "_fail_before", hold)
        flushing = asyncio.create_task(store.flusher.flush())
        await is_writing.wait()
        forgetting = asyncio.create_task(store.forget(keys[-1]))
        may_write.set()
        await forgetting
        assert store.spool.resources
        assert not await list_stored_texts(faulty, keys[-1])
        assert await flushing
        assert not await list_stored_texts(faulty, keys[-1])
        assert await list_stored_texts(faulty, keys[-2]) == ["u1", "a1"]


async def test_what_others_stored_behind_it_is_read_once_both_are_merged(tmp_path: Path) -> None:
    """Until then its numbers are those of what waits."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        await say(store, KEY, "u2", "a2")
        await say(faulty._store, KEY, "u3", "a3", "u4", "a4")
        waiting = ["u1", "a1", "u2", "a2"]
        outline = await store.outline(KEY)
        assert [mark.seq for mark in outline.live] == [1, 2, 3, 4]
        assert not outline.superseded
        assert texts(await store.messages(KEY, 0)) == waiting
        assert texts(await store.messages_by_seq(KEY, range(1, 9))) == waiting
        stored = await store.stored_messages(KEY, 0, limit=9)
        assert texts([one.message for one in stored]) == waiting
        faulty.refuses = False
        assert await store.flusher.flush()
        merged = ["u1", "a1", "u3", "a3", "u4", "a4", "u2", "a2"]
        assert texts(await store.messages(KEY, 0)) == merged


async def test_it_is_stored_once_and_in_order_when_the_store_is_back(tmp_path: Path) -> None:
    """Nothing waits afterwards, and reads return what is stored."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for n in range(3):
            await say(store, KEY, f"u{n}", f"a{n}")
            await say(store, OTHER, f"u{n}", f"a{n}")
        assert not await store.flusher.flush()
        faulty.refuses = False
        assert await store.flusher.flush()
        told = ["u0", "a0", "u1", "a1", "u2", "a2"]
        assert await list_stored_texts(faulty) == await list_stored_texts(faulty, OTHER) == told
        assert not store.is_degraded(KEY)
        assert await store.version(KEY) > 0
        await say(store, KEY, "u3")
        assert await list_stored_texts(faulty) == [*told, "u3"]


async def test_a_commit_whose_end_nobody_heard(tmp_path: Path) -> None:
    """A commit that was written although it seemed to fail is not written again."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.forgets_to_say = True
        await say(store, KEY, "u2", "a2")
        await say(store, KEY, "u2", "a2")
        assert not await store.flusher.flush()
        faulty.forgets_to_say = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u2", "a2", "u2", "a2"]


async def test_somebody_else_wrote_meanwhile(tmp_path: Path) -> None:
    """Waiting turns are appended after another writer's messages. Messages that the writer stored
    already are not stored twice."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        await say(store, KEY, "u2", "a2")
        await say(store, KEY, "u3", "a3")
        await say(faulty._store, KEY, "u2", "a2", "u9")
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u2", "a2", "u9", "u3", "a3"]
        assert (await store.load(KEY)).count == 7


async def pay(store: Store, cost: int, *more: str) -> None:
    """Store a turn of this cost."""
    before = await store.load(KEY)
    ledger = add_turn(before.ledger, TurnEntry(Account(calls=1, cost=cost)))
    await store.commit(before, replace(add_messages(before, *more), ledger=ledger))


@pytest.mark.parametrize("writers", [1, 2])
async def test_a_waiting_turn_is_paid_for_once(tmp_path: Path, writers: int) -> None:
    """The costs of waiting turns are stored with them, and beside those of another writer."""
    async with open_spool(tmp_path) as (store, faulty):
        await pay(store, 1, "u1", "a1")
        faulty.refuses = True
        await pay(store, 10, "u2", "a2")
        await pay(store, 100, "u3", "a3")
        if writers > 1:
            await pay(faulty._store, 1_000, "u9", "a9")
        faulty.refuses = False
        assert await store.flusher.flush()
        full = (await faulty._store.load(KEY)).ledger.full
        assert (full.calls, full.cost) == ((3, 111) if writers == 1 else (4, 1_111))


async def test_waiting_messages_count_with_their_own_turn(tmp_path: Path) -> None:
    """Waiting messages of a thin client come after another writer's: each stays on its side of the
    ledger."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        before = await store.load(KEY)
        waiting = replace(add_messages(before, "u2", "a2"), style="thin", history_after=2)
        await store.commit(before, waiting)
        await say(faulty._store, KEY, "u9", "a9")
        faulty.refuses = False
        assert await store.flusher.flush()
        memory = await faulty._store.load(KEY)
        assert await list_stored_texts(faulty) == ["u1", "a1", "u9", "a9", "u2", "a2"]
        sides = [memory.history_at(message.seq) for message in memory.tail]
        assert sides == ["full"] * 4 + ["partial"] * 2


async def test_an_uncertain_commit_is_paid_for_once(tmp_path: Path) -> None:
    """A commit that was written although it seemed to fail adds its cost once."""
    async with open_spool(tmp_path) as (store, faulty):
        await pay(store, 1, "u1", "a1")
        faulty.forgets_to_say = True
        await pay(store, 10, "u2", "a2")
        await pay(store, 100, "u3", "a3")
        await store.flusher.flush()
        faulty.forgets_to_say = False
        assert await store.flusher.flush()
        assert (await faulty._store.load(KEY)).ledger.full.cost == 111


async def test_a_thread_that_was_forgotten_meanwhile(tmp_path: Path) -> None:
    """Nothing brings back a thread that this process or another forgot."""
    for here in (True, False):
        async with open_spool(tmp_path) as (store, faulty):
            await say(store, KEY, "u1", "a1")
            faulty.refuses = True
            await say(store, KEY, "u2", "a2")
            await (store if here else faulty._store).forget(KEY)
            faulty.refuses = False
            assert await store.flusher.flush()
            assert await store.load(KEY) == Memory(key=KEY)


def label(key: Key) -> str:
    return f"label of {key.resource} {key.thread}"


def ask(memory: Memory, asked_at: float, question: str, reply: str) -> Memory:
    """Return the memory with a turn of a client that shows its whole history, which took 1 s."""
    count = len(memory.tail)
    asked = replace(add_messages(memory, question, reply), turn_at=asked_at + 1)
    seq, reply_seq = (m.seq for m in asked.tail[-2:])
    new = tuple(replace(m, at=asked_at + 1) for m in asked.tail[-2:])
    view = View(
        count=count + 1,
        digest=f"{asked_at} {question}".encode().ljust(16),
        chain=asked.tail[-2].chain,
        seq=seq,
        end=memory.end,
        reply=reply_seq,
        cells=(Cell("same", 0, count + 1, asked.tail[0].seq, seq),),
        asked_at=asked_at,
    )
    return replace(asked, tail=(*asked.tail[:-2], *new), views=(*asked.views, view), style="full")


async def turn(store: Store, asked_at: float, question: str, reply: str, kept: int = 99) -> Memory:
    """Store a turn that goes on from the first `kept` messages."""
    before = await store.load(KEY)
    shown = replace(before, tail=before.tail[:kept])
    return await store.commit(before, ask(shown, asked_at, question, reply))


@pytest.mark.parametrize("waits_for_row", [True, False])
async def test_a_thread_that_another_process_forgot_in_between(
    tmp_path: Path, waits_for_row: bool
) -> None:
    """What was asked before the forgetting is dropped, also if nothing was stored when it began to
    wait. What was asked after it starts a new thread. Another thread stays."""
    async with open_spool(tmp_path) as (store, faulty):
        told: list[Key] = []
        store.flusher.label, store.flusher.forgotten = label, told.append
        if not waits_for_row:
            await turn(store, 10.0, "u1", "a1")
        faulty.refuses = True
        await turn(store, 20.0, "u2", "a2")
        await say(store, OTHER, "u2", "a2")
        if waits_for_row:
            await turn(faulty._store, 22.0, "u1", "a1")
        gone = Event(24.0, Forgotten(label=label(KEY), forgotten_at="now"))
        await faulty._store.forget(KEY, None, gone)
        await turn(store, 26.0, "u3", "a3")
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u3", "a3"]
        assert told == [KEY]
        assert await list_stored_texts(faulty, OTHER) == ["u2", "a2"]
        assert await store.load(KEY) == await faulty._store.load(KEY)


async def test_a_commit_under_way_while_the_process_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has answered meanwhile: the turn is stored, and the store does not fail."""
    async with open_spool(tmp_path, commit_timeout_s=60.0) as (store, faulty):
        write = faulty._store.commit

        async def write_after_a_stop(*arguments: Any) -> Memory:
            stand_still(120.0)
            await asyncio.sleep(0)
            return await write(*arguments)

        monkeypatch.setattr(faulty._store, "commit", write_after_a_stop)
        await say(store, KEY, "u1", "a1")
        assert not store.is_failing
        assert await list_stored_texts(faulty) == ["u1", "a1"]


async def test_a_thread_that_is_forgotten_while_its_first_turn_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process stored it meanwhile, and forgets it just when the flusher has asked whether
    anybody did."""
    async with open_spool(tmp_path) as (store, faulty):
        store.flusher.label = label
        faulty.refuses = True
        await turn(store, 20.0, "u2", "a2")
        await turn(faulty._store, 22.0, "u1", "a1")
        faulty.refuses = False
        read = faulty._store.events

        async def forget_then(*arguments: Any) -> EventPage:
            page = await read(*arguments)
            monkeypatch.undo()
            gone = Event(24.0, Forgotten(label=label(KEY), forgotten_at="now"))
            await faulty._store.forget(KEY, None, gone)
            return page

        monkeypatch.setattr(faulty._store, "events", forget_then)
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == []


async def test_a_thread_that_was_forgotten_before(tmp_path: Path) -> None:
    """A first turn that was asked after the forgetting is stored."""
    async with open_spool(tmp_path) as (store, faulty):
        store.flusher.label = label
        await turn(store, 10.0, "u1", "a1")
        gone = Event(12.0, Forgotten(label=label(KEY), forgotten_at="now"))
        await store.forget(KEY, None, gone)
        faulty.refuses = True
        await turn(store, 20.0, "u2", "a2")
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u2", "a2"]


async def test_what_was_taken_back_elsewhere(tmp_path: Path) -> None:
    """The waiting turn is stored beside the transcript: nothing of it is lost, and nothing shown."""
    async with open_spool(tmp_path) as (store, faulty):
        await turn(store, 10.0, "u1", "a1")
        faulty.refuses = True
        await turn(store, 20.0, "u2", "a2")
        await turn(faulty._store, 22.0, "u5", "a5")
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u5", "a5"]
        stored = await faulty._store.stored_messages(KEY, 0, limit=99)
        assert texts([one.message for one in stored if one.state != "live"]) == ["u2", "a2"]
        assert await say(store, KEY, "u6")


async def test_a_fork_that_waits_behind_another_writer(tmp_path: Path) -> None:
    """It takes back what others said before it was asked, and what it knew."""
    async with open_spool(tmp_path) as (store, faulty):
        await turn(store, 10.0, "u1", "a1")
        await turn(store, 12.0, "u2", "a2")
        faulty.refuses = True
        await turn(store, 20.0, "u5", "a5", kept=2)
        await turn(faulty._store, 14.0, "u9", "a9")
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u5", "a5"]


async def test_the_same_question_elsewhere(tmp_path: Path) -> None:
    """The text stands once, with the later reply. After a reply that went out, the same words are
    another turn."""

    async def say_alone(store: Store, asked_at: float, question: str, reply: str) -> None:
        before = await store.load(KEY)
        asked = ask(before, asked_at, question, reply)
        seq = asked.views[-1].seq
        lone = replace(asked.views[-1], count=1, cells=(Cell("same", 0, 1, seq, seq),))
        await store.commit(before, replace(asked, views=(*before.views, lone)))

    def find_delivered(key: Key) -> int:
        return delivered_seq

    for delivered_seq, told in ((0, ["u2", "a7"]), (4, ["u2", "a7", "u2", "a2"])):
        async with open_spool(tmp_path, f"{delivered_seq}.db") as (store, faulty):
            store.flusher.delivered_seq = find_delivered
            await turn(store, 10.0, "u1", "a1")
            faulty.refuses = True
            await say_alone(store, 20.0, "u2", "a2")
            await say_alone(faulty._store, 24.0, "u2", "a7")
            faulty.refuses = False
            assert await store.flusher.flush()
            assert await list_stored_texts(faulty) == ["u1", "a1", *told]


async def test_others_that_go_on_while_turns_are_merged(tmp_path: Path) -> None:
    """A merge that another process comes before is made again at once. That is no failure of the
    store."""
    async with open_spool(tmp_path) as (store, faulty):
        await turn(store, 10.0, "u1", "a1")
        faulty.refuses = True
        await say(store, KEY, "u2", "a2")
        await say(faulty._store, KEY, "u7", "a7")
        faulty.refuses = False
        commits, overtaken = 0, faulty._fail_before

        async def overtake() -> None:
            nonlocal commits
            commits += 1
            if 2 <= commits <= 8:  # the first one finds out that another writer came first
                await say(faulty._store, KEY, f"u9{commits}", f"a9{commits}")
            await overtaken()

        faulty._fail_before = overtake  # type: ignore[method-assign]  # a step put before every write
        assert await store.flusher.flush()
        assert commits > 8
        told = await list_stored_texts(faulty)
        assert told[-2:] == ["u2", "a2"]
        assert len(told) == 2 + 2 + 2 * 7 + 2


async def test_a_fork_that_waits(tmp_path: Path) -> None:
    """Messages taken back while nothing could be written are superseded, before the flush and after
    it."""
    async with open_spool(tmp_path) as (store, faulty):
        builder = MemoryBuilder().chat(2)
        whole = await store.commit(Memory(key=KEY), builder.memory())
        faulty.refuses = True
        longer = await store.commit(whole, add_messages(whole, "u3", "a3"))
        forked = add_messages(replace(longer, tail=longer.tail[:1]), "u4")
        await store.commit(longer, forked)
        waiting = await store.outline(KEY)
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await store.outline(KEY) == waiting
        assert [m.seq for m in waiting.live] == [1, 5]
        assert [m.seq for m, _ in waiting.superseded] == [2, 3, 4]


@pytest.mark.parametrize("resource", [KEY.resource, None])
async def test_forgetting_a_resource_whose_turns_wait(tmp_path: Path, resource: str | None) -> None:
    """Its waiting turns go too, and their replies go on; others wait on."""
    stranger = Key("stranger", KEY.resource, KEY.thread)
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        for key in (KEY, OTHER, stranger):
            await say(store, key, "u2", "a2")
        with pytest.raises(StorageError):
            await store.forget(KEY, (await store.load(KEY)).version)
        assert texts((await store.load(KEY)).tail) == ["u1", "a1", "u2", "a2"]
        with pytest.raises(StorageError):
            await store.observations(KEY, 0, limit=9)
        with pytest.raises(StorageError):
            await store.generation_entries(KEY, 0, limit=9)
        batch = await store.forget_batch(KEY.tenant, resource)
        assert batch.threads == (KEY,)
        await store.wait_until_stored(KEY)
        faulty.refuses = False
        assert await store.flusher.flush()
        left = [key for key in (KEY, OTHER, stranger) if await store.version(key)]
        assert left == ([OTHER, stranger] if resource else [stranger])


@pytest.mark.parametrize("scope", ["thread", "resource", "tenant"])
async def test_a_forgetting_that_fails(tmp_path: Path, scope: str) -> None:
    """It takes no turn that waits: the person is told that nothing was forgotten."""
    async with open_spool(tmp_path) as (store, faulty):
        await say(store, KEY, "u1", "a1")
        faulty.refuses = True
        await say(store, KEY, "u2", "a2")
        faulty.cannot_be_read = True
        with pytest.raises(StorageError):
            await forget(store, scope)
        assert texts((await store.load(KEY)).tail) == ["u1", "a1", "u2", "a2"]
        faulty.refuses = faulty.cannot_be_read = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u2", "a2"]


async def forget(store: Store, scope: str) -> None:
    if scope == "thread":
        await store.forget(KEY)
    else:
        await store.forget_batch(KEY.tenant, KEY.resource if scope == "resource" else None)


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_first_turn_that_is_being_stored_when_its_thread_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """It does not bring the thread back."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        await say(store, KEY, "u1", "a1")
        faulty.refuses = False
        is_begun, may_end, write = asyncio.Event(), asyncio.Event(), faulty._store.commit

        async def write_later(*arguments: Any) -> Memory:
            is_begun.set()
            await may_end.wait()
            return await write(*arguments)

        monkeypatch.setattr(faulty._store, "commit", write_later)
        flushing = asyncio.create_task(store.flusher.flush())
        await is_begun.wait()
        forgetting = asyncio.create_task(forget(store, scope))
        await asyncio.wait((forgetting,), timeout=0.05)
        may_end.set()
        await asyncio.gather(flushing, forgetting)
        assert await list_stored_texts(faulty) == []
        assert await store.load(KEY) == Memory(key=KEY)


WAITING: dict[str, Sequence[Step]] = MOVES | {
    "a fork of notes that waits": (
        lambda t: t.chat(4),
        lambda t: t.cover(2).chat(2, "again"),
        lambda t: t.supersede([4]).chat(2, "instead"),
        lambda t: t.cover(3).chat(1),
        lambda t: t.supersede([2, 3]).chat(1, "otherwise"),
    )
}


@pytest.mark.parametrize("steps", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("stored_count", range(4))
async def test_waiting_turns_are_read_as_if_stored(
    tmp_path: Path, steps: Sequence[Step], stored_count: int
) -> None:
    """Whatever the turns that wait have changed, every read of messages answers as it will once
    they are stored."""
    async with open_spool(tmp_path) as (store, faulty):
        builder, memory = MemoryBuilder(), Memory(key=KEY)
        for number, step in enumerate(steps):
            faulty.refuses = number >= stored_count
            step(builder)
            interrupted = [builder.interrupt_reply(item(f"bro {number}", "assistant"))]
            memory = await store.commit(memory, builder.memory(memory.version), interrupted)
        for _ in range(2):
            assert await store.stored_messages(KEY, 0, limit=99) == builder.stored()
            live = tuple(builder.every[seq] for seq in builder.live)
            assert await store.messages(KEY, 0) == live
            assert await store.messages(KEY, 1, 3) == tuple(m for m in live if 1 < m.seq <= 3)
            assert await store.messages(KEY, 0, limit=2) == live[:2]
            assert await store.outline(KEY) == builder.outline()
            assert await store.stored_messages(KEY, 2, 5, limit=2) == builder.stored()[2:4]
            faulty.refuses = False
            assert await store.flusher.flush()


async def test_a_log_that_is_shared(tmp_path: Path) -> None:
    """Thread and shared log wait together and are written together. Another thread of the resource
    sees the waiting messages."""
    async with open_spool(tmp_path) as (store, faulty):
        shared_log = Memory(key=resource_key(KEY))
        thread = replace(Memory(key=KEY), scope="resource")
        faulty.refuses = True
        written, log = await store.commit_shared(
            Change(Memory(key=KEY), add_messages(thread, "u1", "a1")),
            Change(shared_log, shared_log),
        )
        assert log is not None
        assert log.version < 0 > written.version
        again, _ = await store.commit_shared(
            Change(written, add_messages(written, "u2", "a2")), Change(log, log)
        )
        other = KEY._replace(thread="other")
        assert [(k, texts(m)) for k, m in await store.other_thread_tails(other, 3, 2)] == [
            (KEY, ["u2", "a2"])
        ]
        assert log_sharing.is_consistent(
            log_sharing.attach_log(await store.load(KEY), await store.load(resource_key(KEY)), "x")
        )
        assert store.is_degraded(other)
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u2", "a2"]
        assert await store.version(resource_key(KEY)) > 0 < await store.version(KEY)
        with pytest.raises(Conflict):
            await store.commit_shared(Change(again, add_messages(again, "u3")), None)


async def test_a_change_from_a_state_that_stands_no_more(tmp_path: Path) -> None:
    """A change from an outdated state is a Conflict, as in the store."""
    async with open_spool(tmp_path) as (store, faulty):
        first = await say(store, KEY, "u1")
        faulty.refuses = True
        await store.commit(first, add_messages(first, "u2"))
        with pytest.raises(Conflict):
            await store.commit(first, add_messages(first, "u3"))


async def test_five_failures_open_the_breaker(tmp_path: Path) -> None:
    """After five failures only the flush tries the store, and no reply waits. Before that, a reply
    waits until its turn is stored."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for n in range(5):
            await say(store, KEY._replace(resource=f"r{n}"), "u1")
        tried = faulty.tried
        for n in range(20):
            await say(store, KEY._replace(resource=f"s{n}"), "u1")
        assert faulty.tried == tried == 5
        await store.wait_until_stored(KEY._replace(resource="r0"))
        assert store.is_degraded(OTHER)
        await store.flusher.flush()
        assert faulty.tried == 6
        faulty.refuses = False
        assert await store.flusher.flush()
        assert not store.is_degraded(OTHER)
        assert await list_stored_texts(faulty, KEY._replace(resource="s19")) == ["u1"]


@pytest.mark.parametrize("trouble", ["raises", "hangs"])
async def test_one_that_can_never_be_written_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The oldest turn fails each time, for a reason that nobody foresaw: the others are stored."""
    monkeypatch.setattr("om_proxy.storage.spooling.spool_flusher.FLUSH_TIMEOUT_S", 0.05)
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        keys = [KEY._replace(resource=f"r{n}") for n in range(3)]
        for key in keys:
            await say(store, key, "u1")
        faulty.refuses = False
        commit = faulty.commit

        async def refuse_the_oldest(before: Memory, *others: Any) -> Memory:
            if before.key == keys[0]:
                if trouble == "hangs":
                    await asyncio.Event().wait()
                raise StorageError("these rows cannot be written")
            return await commit(before, *others)

        monkeypatch.setattr(faulty, "commit", refuse_the_oldest)
        async with asyncio.timeout(60):  # a busy machine takes several tries within that limit
            while [key for key in keys if store.spool.find_resource(key)] != keys[:1]:
                assert not await store.flusher.flush()
        monkeypatch.undo()
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty, keys[0]) == ["u1"]


async def test_a_reply_waits_for_the_second_try(tmp_path: Path) -> None:
    """A short fault delays the reply: its turn is in the file before the reply ends."""
    async with open_spool(tmp_path, retry_s=0.01) as (store, faulty):
        flushing = asyncio.create_task(store.flusher.flush_forever())
        faulty.refuses = True
        await say(store, KEY, "u1")
        waiting = asyncio.create_task(store.wait_until_stored(KEY))
        await asyncio.sleep(0)
        assert not waiting.done()
        faulty.refuses = False
        await waiting
        assert await list_stored_texts(faulty) == ["u1"]
        flushing.cancel()


async def test_a_reply_whose_turn_waits_on_once_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The breaker let all replies go on, and closed with the first turn that was stored. No reply
    waits for the others, nor does the process turn round and round."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for n in range(MAX_FAILURES_IN_A_ROW):
            await say(store, KEY._replace(resource=f"r{n}"), "u1")
        looks, find = count(), store.spool.find_resource

        def find_a_few_times(key: Key) -> SpooledResource | None:
            assert next(looks) < 1_000
            return find(key)

        monkeypatch.setattr(store.spool, "find_resource", find_a_few_times)
        last = KEY._replace(resource=f"r{MAX_FAILURES_IN_A_ROW - 2}")
        faulty.refuses = False
        stored, waited = faulty._fail_before, list[Key]()

        async def wait_for_the_last() -> None:
            if not waited and not store._breaker.is_open:
                waited.append(last)
                await store.wait_until_stored(last)
            await stored()

        faulty._fail_before = wait_for_the_last  # type: ignore[method-assign]  # a step put before every write
        assert await store.flusher.flush()
        assert waited == [last]


async def test_a_commit_that_hangs(tmp_path: Path) -> None:
    """A commit that hangs is given up in time, and its turn waits. If the commit was written late,
    the turn is not stored twice."""
    async with open_spool(tmp_path, commit_timeout_s=0.05) as (store, faulty):
        faulty.hangs = True
        await say(store, KEY, "u1", "a1")
        await say(store, KEY, "u2", "a2")
        faulty.hangs = False
        late = await faulty._store.load(KEY)
        await faulty._store.commit(late, add_messages(late, "u1", "a1"))
        assert await store.flusher.flush()
        assert await list_stored_texts(faulty) == ["u1", "a1", "u2", "a2"]


class Unreadable(Faulty):
    """A store that counts how often it is asked."""

    asked = 0

    async def refresh(self, held: Memory) -> Memory:
        self.asked += 1
        return await super().refresh(held)


async def test_a_store_that_fails_to_be_read_five_times(tmp_path: Path) -> None:
    """From then on no request waits for it, but one a second, which finds out once it is back."""
    now = 100.0
    faulty = Unreadable(await SqliteStore.open(tmp_path / "memory.db"))
    store = SpoolingStore(faulty, clock=lambda: now)
    held = await say(store, KEY, "u1", "a1")
    faulty.cannot_be_read = True
    for _ in range(10):
        with pytest.raises(StorageError):
            await store.refresh(held)
    assert faulty.asked == MAX_FAILURES_IN_A_ROW
    assert store.is_failing
    with pytest.raises(StorageError, match="does not answer"):
        await store.load(KEY)
    now += PROBE_INTERVAL_S
    for _ in range(3):
        with pytest.raises(StorageError):
            await store.refresh(held)
    assert faulty.asked == MAX_FAILURES_IN_A_ROW + 1
    faulty.cannot_be_read = False
    with pytest.raises(StorageError, match="does not answer"):
        await store.refresh(held)
    now += PROBE_INTERVAL_S
    assert await store.refresh(held) is held
    assert await store.load(KEY) == held
    assert not store.is_failing
    await store.close()


async def test_a_probe_that_succeeds_lets_all_read(tmp_path: Path) -> None:
    """As the one for readiness does."""
    async with open_spool(tmp_path, clock=lambda: 100.0) as (store, faulty):
        faulty.cannot_be_read = True
        for _ in range(MAX_FAILURES_IN_A_ROW):
            with pytest.raises(StorageError):
                await store.load(KEY)
        faulty.cannot_be_read = False
        await store.ping()
        assert await store.load(KEY) == Memory(key=KEY)


async def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    """The store is degraded from the first failed read until the next success. Waiting turns can
    still be read."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        await say(store, KEY, "u1")
        faulty.cannot_be_read = True
        assert texts((await store.load(KEY)).tail) == ["u1"]
        with pytest.raises(StorageError):
            await store.load(OTHER)
        assert store.is_degraded(OTHER)
        faulty.cannot_be_read = False
        await store.version(OTHER)
        assert not store.is_degraded(OTHER)


async def test_the_oldest_give_way(tmp_path: Path) -> None:
    """Above the budget the oldest resource loses its turns, and the log names its thread. The
    others are kept."""
    budget = SpoolBudget(30_000)
    async with open_spool(tmp_path, budget=budget) as (store, faulty):
        named: list[Key] = []

        def label(key: Key) -> str:
            named.append(key)
            return "label"

        store.spool.name_for_log = label
        faulty.refuses = True
        await say(store, OTHER, "u" * 5_000)
        for n in range(4):
            await say(store, KEY, f"u{n}" + "x" * 2_000)
        assert named == [OTHER]
        assert budget.held_bytes <= 30_000
        faulty.refuses = False
        assert await store.flusher.flush()
        assert len(await list_stored_texts(faulty)) == 4
        assert await list_stored_texts(faulty, OTHER) == []
        assert budget.held_bytes == 0


async def test_one_that_is_given_up_while_all_are_stored(tmp_path: Path) -> None:
    """The other turns are stored even if one resource is dropped meanwhile: an error here would
    silently end the task that stores them."""
    late = Key("tenant", "late", "thread")
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for key in (KEY, OTHER, late):
            await say(store, key, "u1")
        faulty.refuses = False
        before = faulty._fail_before

        async def before_writing() -> None:
            if (
                resource_key(KEY) not in store.spool.resources
                and resource_key(late) in store.spool.resources
            ):
                store.spool.drop(resource_key(late), "Stopped")
            await before()

        faulty._fail_before = before_writing  # type: ignore[method-assign]  # a step put before every write
        assert await store.flusher.flush()
        assert [await list_stored_texts(faulty, key) for key in (KEY, OTHER, late)] == [
            ["u1"],
            ["u1"],
            [],
        ]


async def test_two_flushes_at_once_store_each_turn_once(tmp_path: Path) -> None:
    """They take turns, some resources at a time, and one of them tells of it."""
    keys = [KEY._replace(resource=str(number)) for number in range(3 * MAX_RESOURCES_AT_ONCE)]
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        for key in keys:
            await say(store, key, "u1", "a1")
        faulty.refuses, faulty.tried = False, 0
        with structlog.testing.capture_logs() as lines:
            flushes = [asyncio.create_task(store.flusher.flush()) for _ in range(2)]
            assert await asyncio.gather(*flushes) == [True, True]
        assert [line["event"] for line in lines] == ["storage.recovered"]
        assert faulty.tried == len(keys)
        for key in keys:
            assert await list_stored_texts(faulty, key) == ["u1", "a1"]


async def test_the_end_of_the_process(tmp_path: Path) -> None:
    """Turns that can be written at the end of the process are written."""
    async with open_spool(tmp_path) as (store, faulty):
        faulty.refuses = True
        await say(store, KEY, "u1")
        faulty.refuses = False
        await store.close()
    reopened = await SqliteStore.open(tmp_path / "memory.db")
    assert texts(await reopened.messages(KEY, 0)) == ["u1"]
    await reopened.close()


FAULTS = st.sampled_from(
    ["refuses", "forgets_to_say", "well", "flush", "flush twice", "other writes"]
)


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(FAULTS, min_size=1, max_size=25))
def test_whatever_happens_each_turn_is_stored_once_and_in_order(
    plan: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The promise holds for any run of faults, flushes and turns of another process."""

    async def run() -> None:
        async with open_spool(tmp_path_factory.mktemp(os.urandom(4).hex())) as (store, faulty):
            meant: list[str] = []
            for n, what in enumerate(plan):
                faulty.refuses, faulty.forgets_to_say = what == "refuses", what == "forgets_to_say"
                if what == "flush":
                    await store.flusher.flush()
                elif what == "flush twice":
                    await asyncio.gather(store.flusher.flush(), store.flusher.flush())
                elif what == "other writes":
                    await say(faulty._store, KEY, f"other{n}")
                else:
                    try:
                        await say(store, KEY, f"u{n}", f"a{n}")
                    except Conflict:
                        await say(store, KEY, f"u{n}", f"a{n}")
                    meant += [f"u{n}", f"a{n}"]
                    assert [
                        t for t in texts((await store.load(KEY)).tail) if not t.startswith("other")
                    ] == meant
            faulty.refuses = faulty.forgets_to_say = False
            assert await store.flusher.flush()
            assert [
                t for t in await list_stored_texts(faulty) if not t.startswith("other")
            ] == meant
            assert sum(
                t.startswith("other") for t in await list_stored_texts(faulty)
            ) == plan.count("other writes")

    asyncio.run(run())


async def test_a_thread_that_does_not_open_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers, so no breaker counts it."""
    async with open_spool(tmp_path) as (spool, faulty):
        other = KEY._replace(thread="other")
        await say(spool, other, "hello")

        async def refuse(key: Key) -> Memory:
            if key == KEY:
                raise UnopenedText("its value was changed")
            return await type(faulty).load(faulty, key)

        monkeypatch.setattr(faulty, "load", refuse)
        for _ in range(MAX_FAILURES_IN_A_ROW + 1):
            with pytest.raises(UnopenedText):
                await spool.load(KEY)
        assert texts((await spool.load(other)).tail) == ["hello"]
