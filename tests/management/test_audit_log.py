"""What was done to a memory is recorded, even if the store refuses the record at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.management import audit_log
from om_proxy.management.audit_log import MAX_WAITING_RECORDS, READING_INTERVAL_S, AuditLog
from om_proxy.memory.model import Key
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import AuditRecord
from tests.storage.memory_builder import KEY

TENANT = Key(KEY.tenant, "", "")
RESOURCE = Key(KEY.tenant, KEY.resource, "")


class Refusing(ForwardingStore):
    """A store that keeps records only while `is_away` is False."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False

    @property
    def inner(self) -> Store:
        return self._store

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        if self.is_away:
            raise StorageError("database or disk is full")
        await super().add_audit(records)


class World:
    def __init__(self, store: Store) -> None:
        self.now = 1_800_000_000.0
        self.store = Refusing(store)
        self.audit = AuditLog(self.store, lambda key: f"label of {key.thread}", lambda: self.now)

    async def read(self) -> list[tuple[object, ...]]:
        """Return what is recorded, the oldest first."""
        records = await self.audit.list_records(None, None, 10_000)
        return [(r.at - 1_800_000_000, *r[1:5], dict(r.counts)) for r in reversed(records)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = await SqliteStore.open(":memory:")
    yield World(store)
    await store.close()


async def test_a_record_holds_labels_alone(world: World) -> None:
    await world.audit.record("me", "forget_thread", KEY, {"messages": 3})
    world.now += 1
    await world.audit.record("me", "forget_resource", RESOURCE)
    await world.audit.record("me", "forget_tenant", TENANT)
    assert await world.read() == [
        (0, "me", KEY.tenant, "forget_thread", f"label of {KEY.thread}", {"messages": 3}),
        (1, "me", KEY.tenant, "forget_resource", "label of ", {}),
        (1, "me", KEY.tenant, "forget_tenant", "", {}),
    ]


async def test_a_record_that_is_refused_waits(world: World) -> None:
    """It is logged at once, and written in its place before the next one."""
    world.store.is_away = True
    with capture_logs() as lines:
        await world.audit.record("me", "first", KEY, {"messages": 3})
        await world.audit.record("me", "second", KEY)
    assert [(line["event"], line["what"], line["error"]) for line in lines] == [
        ("audit.unwritten", "first", "StorageError"),
        ("audit.unwritten", "second", "StorageError"),
    ]
    assert lines[0]["log_level"] == "error"
    assert (lines[0]["who"], lines[0]["counts"]) == ("me", {"messages": 3})
    assert KEY.tenant not in str(lines)
    world.store.is_away = False
    world.now += 5
    await world.audit.record("me", "third", KEY)
    await world.audit.record("me", "fourth", KEY)
    assert [(row[0], row[3]) for row in await world.read()] == [
        (0, "first"),
        (0, "second"),
        (5, "third"),
        (5, "fourth"),
    ]


async def test_records_at_once_are_written_once(world: World) -> None:
    await asyncio.gather(*(world.audit.record("me", f"{n}", KEY) for n in range(30)))
    assert sorted(str(row[3]) for row in await world.read()) == sorted(map(str, range(30)))


async def test_so_many_records_wait(world: World) -> None:
    world.store.is_away = True
    for number in range(MAX_WAITING_RECORDS + 5):
        await world.audit.record("me", f"{number}", KEY)
    world.store.is_away = False
    await world.audit.record("me", "last", KEY)
    found = await world.read()
    assert len(found) == MAX_WAITING_RECORDS
    assert found[-1][3] == "last"


async def test_a_reading_is_recorded_once_an_hour(world: World) -> None:
    """For each reader and thread."""
    for later in (0, 1, READING_INTERVAL_S - 1, READING_INTERVAL_S):
        world.now = 1_800_000_000.0 + later
        await world.audit.record_reading("me", "show_notes", KEY)
    await world.audit.record_reading("you", "show_notes", KEY)
    await world.audit.record_reading("me", "list_messages", KEY._replace(thread="other"))
    assert [row[:2] for row in await world.read()] == [
        (0, "me"),
        (READING_INTERVAL_S, "me"),
        (READING_INTERVAL_S, "you"),
        (READING_INTERVAL_S, "me"),
    ]


async def test_a_clock_that_goes_back_hides_no_reading(world: World) -> None:
    await world.audit.record_reading("me", "show_notes", KEY)
    world.now -= 10 * READING_INTERVAL_S
    await world.audit.record_reading("me", "show_notes", KEY)
    assert len(await world.read()) == 2


async def test_the_end_writes_what_waits(world: World) -> None:
    """What the store still refuses is counted in the log."""
    world.store.is_away = True
    await world.audit.record("me", "first", KEY)
    with capture_logs() as lines:
        await world.audit.close()
    assert [(line["event"], line["records"]) for line in lines] == [("audit.lost", 1)]
    world.store.is_away = False
    with capture_logs() as lines:
        await world.audit.close()
    assert lines == []
    assert [record[3] for record in await world.read()] == ["first"]


async def test_the_end_does_not_wait_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "LAST_WRITE_S", 0.01)
    world.store.is_away = True
    await world.audit.record("me", "first", KEY)

    async def hang(records: Sequence[AuditRecord]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.store, "add_audit", hang)
    with capture_logs() as lines:
        await world.audit.close()
    assert [(line["event"], line["error"]) for line in lines] == [("audit.lost", "TimeoutError")]


async def test_records_of_another_database_are_told(world: World) -> None:
    """Their labels mean nothing there. They are counted in the log, once, and never written."""
    world.store.is_away = True
    await world.audit.record("me", "first", KEY)
    await world.audit.record("me", "second", KEY)
    with capture_logs() as lines:
        world.audit.drop_all("OtherDatabase")
        world.audit.drop_all("OtherDatabase")
    assert [(line["event"], line["error"], line["records"]) for line in lines] == [
        ("audit.lost", "OtherDatabase", 2)
    ]
    world.store.is_away = False
    await world.audit.record("me", "third", KEY)
    assert [record[3] for record in await world.read()] == ["third"]


async def test_retired_threads_are_recorded_together(world: World) -> None:
    """By `retention`, in one write; a store that is away gets them later."""
    world.store.is_away = True
    await world.audit.record_retired([(KEY, {"threads": 1})])
    world.store.is_away = False
    await world.audit.record_retired([(RESOURCE, {"threads": 2})])
    assert await world.read() == [
        (0, "retention", KEY.tenant, "forget_thread", f"label of {KEY.thread}", {"threads": 1}),
        (0, "retention", KEY.tenant, "forget_resource", "label of ", {"threads": 2}),
    ]
