"""Threads of any history, of a store of any kind, come back from an export in a store of any kind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.management.moving.test_importing import export, take
from tests.storage.shared_machine import SharedMachine
from tests.storage.store_machine import MACHINE, StoreMachine, texts
from tests.support.long_forms import IS_LONG
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

BACKENDS = ("sqlite", "postgres", "redis")
FEW = settings(MACHINE, max_examples=5, stateful_step_count=20)
MANY = settings(MACHINE, max_examples=60, stateful_step_count=50)

Stores = dict[str, Store]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture
def stores(runner: asyncio.Runner) -> Iterator[Stores]:
    """An empty store of each kind, under one secret."""
    with (
        own_schema(postgres := find_postgres_url()) as schema,
        own_prefix(redis := find_redis_url()) as prefix,
    ):
        opened: Stores = {}
        try:
            opened["sqlite"] = runner.run(SqliteStore.open(":memory:"))
            patient = PostgresOptions(schema, 3, timeout_s=30.0)
            opened["postgres"] = runner.run(PostgresStore.open(postgres, patient))
            opened["redis"] = runner.run(
                RedisStore.open(redis, RedisOptions(prefix, 3, timeout_s=30.0))
            )
            secret = runner.run(opened["sqlite"].secret())
            for kind in BACKENDS[1:]:
                runner.run(opened[kind].adopt_secret(secret))
            yield opened
        finally:
            for store in opened.values():
                runner.run(store.close())


async def check_round_trips(stores: Stores, lines: Sequence[bytes], tenants: Sequence[str]) -> None:
    """Import an export into each store, none of which has its threads. Each exports the same."""
    if not lines:
        return  # every thread was forgotten
    for kind, store in stores.items():
        result = await take(store, lines)
        assert result.present_threads == 0, kind
        assert await export(store) == lines, kind
        for tenant in tenants:
            while not (await store.forget_batch(tenant)).is_last:
                pass
        assert await export(store) == [], kind


class ExportedMachine(StoreMachine):
    """At its end, what the threads have become is exported."""

    stores: Stores

    @initialize(text=texts)
    def begin(self, text: str) -> None:
        """Let no example end without messages, notes and a note that is not active yet."""
        for pick in (0, 3):
            self.turn_to(pick)
            self.say(4, text)
            self.chunk(2, text)
            self.activate(1)
            self.chunk(1, text)

    def teardown(self) -> None:
        lines = self.runner.run(export(self.store))
        super().teardown()  # forgets them
        tenants = sorted({key.tenant for key in self.keys})
        self.runner.run(check_round_trips(self.stores, lines, tenants))


class ExportedSharedMachine(SharedMachine):
    """The same, of threads that share a log."""

    stores: Stores

    def teardown(self) -> None:
        lines = self.runner.run(export(self.s.store))
        tenant = self.s.led.shared_log.key.tenant
        super().teardown()
        self.runner.run(check_round_trips(self.stores, lines, [tenant]))


@pytest.mark.parametrize("origin", BACKENDS)
def test_any_thread_goes_from_any_store_to_any(
    runner: asyncio.Runner, stores: Stores, origin: str
) -> None:
    """`import(export(x)) = x`, byte for byte: between each two kinds of stores, also the same."""
    numbers = itertools.count()

    def machine() -> ExportedMachine:
        made = ExportedMachine(runner, [stores[origin]], None, next(numbers))
        made.stores = stores
        return made

    run_state_machine_as_test(machine, settings=MANY if IS_LONG else FEW)


@pytest.mark.parametrize("origin", BACKENDS)
def test_threads_that_share_a_log_go_from_any_store_to_any(
    runner: asyncio.Runner, stores: Stores, origin: str
) -> None:
    numbers = itertools.count()

    def machine() -> ExportedSharedMachine:
        made = ExportedSharedMachine(runner, [stores[origin]], next(numbers))
        made.stores = stores
        return made

    run_state_machine_as_test(machine, settings=MANY if IS_LONG else FEW)
