"""A copy has what its source has, or says what it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from msgspec.structs import replace

from om_proxy.app.store_opening import open_store
from om_proxy.common.errors import StorageError, UnopenedText, UsageError
from om_proxy.management.moving import copying
from om_proxy.management.moving.copying import CopyResult, StoreCopier, read_ledger_day
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import AuditRecord, LedgerBatch, LedgerLine
from om_proxy.storage.whole_threads import list_keys, read_whole_thread
from tests.management.moving.test_importing import export
from tests.storage.canary_threads import read_postgres
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.moving_contract import store_eventful
from tests.storage.redis.test_removal import list_values
from tests.storage.shared_machine import share_log
from tests.storage.sqlite.test_store_sealed_texts import CANARY_WORD, commit_canaries
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

LINE = LedgerLine(KEY.tenant, KEY.resource, 20_000, "m", "actor", "full")


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Store, Store]]:
    first = await SqliteStore.open(":memory:")
    second = await SqliteStore.open(":memory:")
    yield first, second
    await first.close()
    await second.close()


async def fill(store: Store) -> None:
    """Store threads of two tenants, a shared log, sums and records."""
    await share_log(store)
    await store_eventful(store, KEY._replace(thread="eventful"))
    await store_eventful(store, Key("other", "r", "t"))
    lines = {
        LINE: Account(calls=2, cost=5),
        LINE._replace(model="n", day=20_001): Account(calls=1),
        LINE._replace(resource=""): Account(calls=7),
    }
    await store.add_to_ledger(LedgerBatch("w", 1, lines))
    await store.add_audit(
        [AuditRecord(1.0, "cli", KEY.tenant, "forget_thread", "a" * 16, {"messages": 2})] * 2
        + [AuditRecord(2.0, "cli", "other", "edit")]
    )


async def read_all(store: Store) -> list[Any]:
    """Return all that a copy takes along."""
    tenants = (KEY.tenant, "other")
    return [
        await store.secret(),
        await export(store),
        [await read_ledger_day(store, name, day) for name in tenants for day in (20_000, 20_001)],
        sorted({copying._identify(record) for record in await store.audit(None)}),
    ]


async def copy_all(stores: Sequence[Store], **options: Any) -> CopyResult:
    verifies = options.pop("verifies", True)
    return await StoreCopier(*stores, **options).copy(verifies=verifies)


async def test_a_copy_has_everything(stores: tuple[Store, Store]) -> None:
    """And a second copy changes nothing."""
    await fill(stores[0])
    before = await read_all(stores[0])
    result = await copy_all(stores)
    assert result.is_complete
    assert result.threads == 4
    assert await read_all(stores[1]) == before == await read_all(stores[0])
    versions = [await stores[1].version(key) async for key, _ in list_keys(stores[1])]
    again = await copy_all(stores)
    assert again.is_complete
    assert (again.threads, again.messages, again.present_threads) == (0, 0, 4)
    assert [await stores[1].version(key) async for key, _ in list_keys(stores[1])] == versions
    assert await read_all(stores[1]) == before
    assert len(await stores[1].audit(None)) == 3


async def test_threads_under_another_secret_are_refused(stores: tuple[Store, Store]) -> None:
    await fill(stores[0])
    kept = await store_eventful(stores[1])
    with pytest.raises(UsageError, match="under another secret"):
        await copy_all(stores)
    assert [key async for key, _ in list_keys(stores[1])] == [kept.memory.key]


async def test_nothing_is_missed_in_silence(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn, a new thread and a forgotten one after the copy passed them: each is told, and a
    second run copies them."""
    first, second = stores
    keys = [KEY._replace(thread=name) for name in "abc"]
    for key in keys:
        await first.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    new_key = KEY._replace(resource="another")
    add_to_ledger = second.add_to_ledger

    async def meanwhile(batch: LedgerBatch) -> None:
        memory = await first.load(keys[0])
        if not await first.version(new_key):
            await first.commit(memory, replace(memory, turns=memory.turns + 1))
            await first.commit(Memory(key=new_key), Memory(key=new_key))
            await first.forget(keys[2])
        await add_to_ledger(batch)

    await first.add_to_ledger(LedgerBatch("w", 1, {LINE: Account(calls=1)}))
    monkeypatch.setattr(second, "add_to_ledger", meanwhile)
    result = await copy_all(stores, verifies=False)
    assert set(result.changed) == {keys[0], new_key}
    assert result.surplus == [keys[2]]
    assert not result.is_complete
    unhelped = await copy_all(stores)
    assert unhelped.differing == [keys[0]]
    assert unhelped.unequal == [keys[0]]
    updated = await copy_all(stores, updates=True)
    assert (updated.threads, updated.differing, updated.changed) == (1, [], [])
    assert updated.surplus == [keys[2]]
    await second.forget(keys[2])
    assert (await copy_all(stores)).is_complete


async def test_threads_whose_shared_log_cannot_be_read(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named and left out, since their notes stand there. Other threads are copied."""
    first, second = stores
    await share_log(first)
    shared = {key async for key, _ in list_keys(first)}
    alone = Key("other", "r", "t")
    await store_eventful(first, alone)
    load = first.load

    async def refuse_logs(key: Key) -> Memory:
        if key.thread == RESOURCE_THREAD:
            raise UnopenedText("a stored value cannot be decoded")
        return await load(key)

    monkeypatch.setattr(first, "load", refuse_logs)
    result = await copy_all(stores)
    assert set(result.unreadable) == shared
    assert (result.changed, result.unequal, result.is_complete) == ([], [], False)
    assert [key async for key, _ in list_keys(second)] == [alone]


@pytest.mark.parametrize("cut", range(6))
async def test_an_interrupted_copy_goes_on(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """Cut before any write: what is there is whole, and a second run does the rest."""
    first, second = stores
    monkeypatch.setattr(copying, "THREADS_AT_ONCE", 1)
    await fill(first)
    before = await read_all(first)
    writes = 0

    def cut_before(write: Any) -> Any:
        async def perform(*arguments: Any, **named: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes > cut:
                raise ConnectionError("killed")
            return await write(*arguments, **named)

        return perform

    for name in ("restore", "add_to_ledger", "add_audit"):
        monkeypatch.setattr(second, name, cut_before(getattr(second, name)))
    with pytest.raises(ConnectionError):
        await copy_all(stores)
    monkeypatch.undo()
    assert (await copy_all(stores)).is_complete
    assert await read_all(second) == before


async def test_sums_that_the_target_has_counted_itself_stay(stores: tuple[Store, Store]) -> None:
    first, second = stores
    await fill(first)
    await copy_all(stores)
    await second.add_to_ledger(LedgerBatch("own", 1, {LINE: Account(calls=9)}))
    await first.add_to_ledger(LedgerBatch("w", 2, {LINE: Account(calls=1)}))
    await copy_all(stores)
    assert (await read_ledger_day(second, KEY.tenant, 20_000))[LINE] == Account(calls=11, cost=5)


async def test_a_chain_of_copies_ends_where_it_began(tmp_path: Any) -> None:
    """Store to store to store; `tests/e2e` does it between kinds of stores."""
    chain = [await SqliteStore.open(tmp_path / f"{number}.db") for number in range(3)]
    try:
        await fill(chain[0])
        for pair in pairwise(chain):
            assert (await copy_all(pair)).is_complete
        assert await read_all(chain[2]) == await read_all(chain[0])
    finally:
        for store in chain:
            await store.close()


async def test_sums_of_a_tenant_without_threads_come_along(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a forgotten tenant cost stays known; a target that loses it is told."""
    first, second = stores
    await fill(first)
    await first.add_to_ledger(
        LedgerBatch("w2", 1, {LINE._replace(tenant="other"): Account(calls=3)})
    )
    for key in [key async for key, _ in list_keys(first)]:
        await first.forget(key)
    before = await read_all(first)
    assert sum(account.calls for day in before[2] for account in day.values()) == 13

    async def lose(batch: LedgerBatch) -> None:
        assert batch.lines

    with monkeypatch.context() as patch:
        patch.setattr(second, "add_to_ledger", lose)
        result = await copy_all(stores)
    assert result.lacking_sums == sum(map(len, before[2]))
    assert not result.is_complete
    assert (await copy_all(stores)).is_complete
    assert await read_all(second) == before


async def test_when_background_work_looks_next_is_no_difference(
    stores: tuple[Store, Store],
) -> None:
    """A server of the source moves it without a turn."""
    first, second = stores
    memory = MemoryBuilder().chat(3).memory()
    stored = await first.commit(Memory(key=KEY), memory)
    assert (await copy_all(stores)).is_complete
    whole = await read_whole_thread(second, KEY)
    assert whole
    moved = replace(whole.memory, due_at=5.0)
    await second.restore(whole._replace(memory=moved), moved.version)
    assert (await second.load(KEY)).due_at == 5.0 != stored.due_at
    again = await copy_all(stores)
    assert again.is_complete
    assert again.present_threads == 1


async def test_an_update_keeps_the_row_of_the_same_thread(stores: tuple[Store, Store]) -> None:
    """A turn that is under way at the target goes on. Another thread of the name is another row: a
    turn that began on the forgotten one must not join it."""
    first, second = stores
    builder = MemoryBuilder()
    stored = await first.commit(Memory(key=KEY), builder.chat(2).memory())
    await copy_all(stores)
    copied = await second.load(KEY)
    await first.commit(stored, replace(builder.chat(2).memory(), version=stored.version))
    await copy_all(stores, updates=True)
    updated = await second.load(KEY)
    assert updated.row_id == copied.row_id
    assert updated.version > copied.version
    assert updated.next_seq == copied.next_seq + 2
    assert await second.refresh(copied) == updated
    whole = await read_whole_thread(first, KEY, 7.0)
    assert whole is not None
    await first.forget(KEY)
    await first.restore(whole._replace(memory=replace(whole.memory, title="begun anew")))
    await copy_all(stores, updates=True)
    assert (await second.load(KEY)).title == "begun anew"
    assert (await second.load(KEY)).row_id != updated.row_id


# ── into an encrypted store ──

MASTER_KEY = "A" * 43


class Place(NamedTuple):
    """Where a new store goes."""

    url: str
    prefix: str | None
    read: Callable[[], Awaitable[bytes]]  # all that it stores

    async def open(self, key: str | None = None) -> Store:
        prefix = {} if self.prefix is None else {"prefix": self.prefix}
        return await open_store(
            StorageSettings(url=self.url, encryption_key=key, timeout="30s", **prefix)
        )

    async def find(self, words: Sequence[bytes]) -> set[bytes]:
        """Return which of these words the database has as they are."""
        stored = await self.read()
        assert stored
        return {word for word in words if word in stored}


@asynccontextmanager
async def open_all(*places: Place, key: str | None = None) -> AsyncIterator[list[Store]]:
    """Open the stores, the last one with this master key."""
    async with AsyncExitStack() as stack:
        opened = []
        for place in places:
            opened.append(await place.open(key if place is places[-1] else None))
            stack.push_async_callback(opened[-1].close)
        yield opened


def list_places(folder: Path, schemas: Sequence[str], prefixes: Sequence[str]) -> dict[str, Any]:
    """Return two places for stores of each kind."""
    postgres, redis_url = find_postgres_url(), find_redis_url()

    def of_file(file: Path) -> Place:
        def read() -> bytes:
            return b"".join(one.read_bytes() for one in folder.glob(f"{file.name}*"))

        return Place(f"sqlite:///{file}", None, partial(asyncio.to_thread, read))

    def of_schema(schema: str) -> Place:
        async def read() -> bytes:
            cells = await read_postgres(postgres, schema)
            values = [value for column in cells.values() for value in column]
            return b"".join(one if isinstance(one, bytes) else str(one).encode() for one in values)

        return Place(postgres, schema, read)

    def of_prefix(prefix: str) -> Place:
        async def read() -> bytes:
            with closing(redis.Redis.from_url(redis_url)) as server:
                names = [*server.scan_iter(f"{prefix}:*")]
                return b"".join(value for name in names for value in list_values(server, name))

        return Place(redis_url, prefix, read)

    return {
        "sqlite": [of_file(folder / name) for name in ("plain.db", "encrypted.db")],
        "postgres": [of_schema(schema) for schema in schemas],
        "redis": [of_prefix(prefix) for prefix in prefixes],
    }


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Place]]:
    """Two places of one kind."""
    postgres, redis_url = find_postgres_url(), find_redis_url()
    with (
        own_schema(postgres) as schema,
        own_schema(postgres) as other_schema,
        own_prefix(redis_url) as prefix,
        own_prefix(redis_url) as other_prefix,
    ):
        made = list_places(tmp_path, (schema, other_schema), (prefix, other_prefix))
        yield made[request.param]


async def test_a_plain_store_is_encrypted_by_a_copy(places: list[Place]) -> None:
    """This is how a filled store gets a master key. The copy is equal and holds no text as it is;
    the plain store refuses the key, and stays as it was."""
    async with open_all(places[0]) as [plain]:
        await fill(plain)
        await commit_canaries(plain, KEY._replace(thread="of words"))
        thread = await plain.load(KEY._replace(thread="eventful"))
        told = replace(thread, other_threads_text=f"they said {CANARY_WORD}")
        await plain.commit(thread, told)
        before = await read_all(plain)
    secret, *_ = before
    assert {CANARY_WORD.encode(), secret} <= await places[0].find([CANARY_WORD.encode(), secret])
    with pytest.raises(StorageError, match="the database is not encrypted"):
        await places[0].open(MASTER_KEY)
    async with open_all(places[0], places[1], key=MASTER_KEY) as stores:
        assert (await copy_all(stores)).is_complete
        assert await read_all(stores[0]) == before == await read_all(stores[1])
    assert await places[1].find([CANARY_WORD.encode(), secret]) == set()
    async with open_all(places[1], key=MASTER_KEY) as [encrypted]:
        assert await read_all(encrypted) == before
