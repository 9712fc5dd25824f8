"""What model calls cost is added up in memory, and written once, whatever the store does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.memory.events.parts import Event
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.token_prices import Usage
from om_proxy.observability import ledger_writer
from om_proxy.observability.facts import Facts, ForgottenMeanwhile, MemoryCallEnded, TurnPriced
from om_proxy.observability.ledger_writer import WRITE_INTERVAL_S, LedgerWriter
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import LedgerBatch, LedgerQuery, LedgerSum
from tests.e2e.running import Clock
from tests.storage.memory_builder import KEY, MemoryBuilder

CALL = Account(calls=1, input=100, cost=5, baseline_cost=7)


class Uncertain(ForwardingStore):
    """A store that fails before a batch is written, or after it, or hangs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refuses = self.forgets_to_say = self.hangs = self.refuses_commits = False

    @property
    def inner(self) -> Store:
        return self._store

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        if self.refuses_commits:
            raise StorageError("database or disk is full")
        return await super().commit(before, after, interrupted, events, began_at)

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses:
            raise StorageError("database or disk is full")
        await super().add_to_ledger(batch)
        if self.forgets_to_say:
            raise StorageError("Input/output error")


@asynccontextmanager
async def writing(folder: Path) -> AsyncIterator[tuple[LedgerWriter, Uncertain, Clock]]:
    store, clock = Uncertain(await SqliteStore.open(folder / "om.db")), Clock()
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    try:
        yield LedgerWriter(store, clock), store, clock
    finally:
        await store.close()


def turn(key: Key = KEY, model: str | None = "gpt-4o") -> TurnPriced:
    return TurnPriced(key, model, "full", CALL)


async def sum_stored(store: Store, by: str = "resource") -> tuple[LedgerSum, ...]:
    return await store.sum_ledger(LedgerQuery(None, by))  # type: ignore[arg-type] # one of the literals


async def count(store: Store) -> int:
    return sum(s.account.calls for s in await sum_stored(store))


async def test_turns_and_memory_calls_are_lines(tmp_path: Path) -> None:
    """Each kind of call has a line; a call of several models has one for each."""
    async with writing(tmp_path) as (writer, store, _):
        facts = Facts()
        writer.subscribe_to(facts)
        facts.emit(turn())
        facts.emit(turn())
        accounts = (("mini", CALL), ("nano", CALL))
        for work in ("observe", "reflect"):
            facts.emit(
                MemoryCallEnded(
                    (KEY,),
                    work,
                    "mini",
                    "failed",
                    1.0,
                    2,
                    Usage(),
                    None,
                    "partial",
                    accounts,  # type: ignore[arg-type] # a list of literals
                )
            )
        facts.emit(ForgottenMeanwhile(KEY))
        assert await sum_stored(store) == ()
        await writer.write()
        found = {
            (s.group, s.who, s.history): s.account.calls for s in await sum_stored(store, "model")
        }
        assert found == {
            (("gpt-4o",), "actor", "full"): 2,
            (("mini",), "observer", "partial"): 1,
            (("mini",), "reflector", "partial"): 1,
            (("nano",), "observer", "partial"): 1,
            (("nano",), "reflector", "partial"): 1,
        }
        await writer.write()
        assert await count(store) == 6


async def find_resources(store: Store) -> list[object]:
    return [s.group[1] for s in await sum_stored(store)]


async def test_a_turn_is_written_after_its_thread(tmp_path: Path) -> None:
    """A turn is priced before it is stored. A write that comes between the two leaves the line of
    a new resource for later, and the line has its name."""
    key = KEY._replace(resource="new")
    async with writing(tmp_path) as (writer, store, clock):
        writer.add_turn(turn(key))
        priced_at = clock.now
        clock.now += 5
        writer.add_turn(turn())
        await writer.write()
        assert await find_resources(store) == [KEY.resource]
        assert writer.as_of() == priced_at
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
        await writer.write()
        assert await find_resources(store) == ["new", KEY.resource]
        assert writer.as_of() == clock.now


async def test_a_line_waits_for_a_turn_that_waits(tmp_path: Path) -> None:
    """While the store cannot be written its turns wait in the process, and the names with them."""
    key = KEY._replace(resource="new")
    async with writing(tmp_path) as (_, inner, clock):
        store = SpoolingStore(inner, retry_s=0.01)
        writer = LedgerWriter(store, clock)
        inner.refuses_commits = True
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
        writer.add_turn(turn(key))
        for _ in range(3):
            await writer.write()
            clock.now += WRITE_INTERVAL_S
        assert await find_resources(inner) == []
        inner.refuses_commits = False
        assert await store.flusher.flush()
        await writer.write()
        assert await find_resources(inner) == ["new"]


async def test_a_line_without_a_thread_waits_once(tmp_path: Path) -> None:
    """Nothing may ever be stored of its thread. It loses its name, and not its figures."""
    async with writing(tmp_path) as (writer, store, clock):
        for resource in ("one", "other"):
            writer.add_turn(turn(KEY._replace(resource=resource)))
        await writer.write()
        await writer.write()
        assert await find_resources(store) == []
        clock.now += WRITE_INTERVAL_S
        await writer.write()
        assert await find_resources(store) == [""]
        assert await count(store) == 2


async def test_the_end_waits_for_no_thread(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, store, _):
        writer.add_turn(turn(KEY._replace(resource="never stored")))
        await writer.write()
        assert await count(store) == 0
        await writer.close()
        assert await count(store) == 1


async def test_a_day_ends_at_midnight_utc(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, store, clock):
        for now in (86_400 * 20_000 - 0.5, 86_400 * 20_000 + 0.5):
            clock.now = now
            writer.add_turn(turn())
        await writer.write()
        assert [s.group for s in await sum_stored(store, "day")] == [(19_999,), (20_000,)]


@pytest.mark.parametrize("fault", ["refuses", "forgets_to_say"])
async def test_a_write_that_fails_is_told_once(tmp_path: Path, fault: str) -> None:
    """The same batch is sent again until its end is known, and what comes meanwhile follows it.
    The log says so once."""
    async with writing(tmp_path) as (writer, store, _):
        setattr(store, fault, True)
        with capture_logs() as logs:
            for _ in range(3):
                writer.add_turn(turn())
                await writer.write()
        assert [line["event"] for line in logs] == ["ledger.unwritten"]
        setattr(store, fault, False)
        await writer.write()
        assert await count(store) == 3


async def test_a_write_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up and tried again; requests go on counting meanwhile."""
    async with writing(tmp_path) as (writer, store, _):
        store.hangs = True
        writer.add_turn(turn())
        with monkeypatch.context() as patch:
            patch.setattr(ledger_writer, "WRITE_TIMEOUT_S", 0.01)
            await writer.write()
        writer.add_turn(turn())
        store.hangs = False
        await writer.write()
        assert await count(store) == 2


async def test_as_of(tmp_path: Path) -> None:
    """The figures are complete up to the first call that is not written."""
    async with writing(tmp_path) as (writer, store, clock):
        assert writer.as_of() == clock.now
        store.refuses = True
        first = clock.now
        writer.add_turn(turn())
        clock.now += 5
        writer.add_turn(turn())
        assert writer.as_of() == first
        await writer.write()
        clock.now += 5
        writer.add_turn(turn())
        assert writer.as_of() == first
        store.refuses = False
        await writer.write()
        assert writer.as_of() == clock.now


async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is away, further lines are merged: first they lose resource and model, then
    the tenant. No call is lost."""
    monkeypatch.setattr(ledger_writer, "MAX_WAITING_LINES", 4)
    async with writing(tmp_path) as (writer, store, clock):
        for number in range(30):
            writer.add_turn(turn(Key(f"t{number}", "r", "t"), f"m{number}"))
        assert len(writer._lines) <= 9
        writer.add_turn(turn(Key("t0", "r", "t"), "m0"))
        assert writer._lines[next(iter(writer._lines))].calls == 2
        await writer.write()
        clock.now += WRITE_INTERVAL_S  # nothing is stored of these threads
        await writer.write()
        assert await count(store) == 31
        tenants = [s.group[0] for s in await sum_stored(store)]
        assert "" in tenants
        assert {("other",)} < {s.group for s in await sum_stored(store, "model")}


@pytest.mark.parametrize(
    ("model", "name"),
    [(None, ""), ("gpt-4o", "gpt-4o"), ("a\ud800b", "a?b"), ("é" * 300, "é" * 200)],
)
async def test_names_of_models(tmp_path: Path, model: str | None, name: str) -> None:
    """Clients name models: whatever they write can be stored."""
    async with writing(tmp_path) as (writer, store, _):
        writer.add_turn(turn(model=model))
        await writer.write()
        assert [s.group for s in await sum_stored(store, "model")] == [(name,)]


async def test_the_end_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is written once more. What cannot be is named."""
    async with writing(tmp_path) as (writer, store, _):
        writer.add_turn(turn())
        with capture_logs() as logs:
            await writer.close()
        assert (await count(store), logs) == (1, [])
        monkeypatch.setattr(ledger_writer, "LAST_WRITE_S", 0.01)
        store.hangs = True
        writer.add_turn(turn())
        with capture_logs() as logs:
            await writer.close()
        assert [(line["event"], line["lines"]) for line in logs] == [("ledger.lost", 1)]


async def test_lines_of_another_database_are_told(tmp_path: Path) -> None:
    """What waits and what a call under way adds later is counted in the log. None is written."""
    async with writing(tmp_path) as (writer, store, clock):
        store.refuses = True
        writer.add_turn(turn())
        await writer.write()
        writer.add_turn(turn(model="another"))
        writer.add_turn(turn(KEY._replace(resource="new")))
        with capture_logs() as logs:
            writer.drop_all("OtherDatabase")
            writer.add_turn(turn())
            writer.drop_all("OtherDatabase")
        assert [(line["event"], line["lines"]) for line in logs] == [
            ("ledger.lost", 3),
            ("ledger.lost", 1),
        ]
        store.refuses = False
        await writer.close()
        assert await count(store) == 0
        assert writer.as_of() == clock.now
