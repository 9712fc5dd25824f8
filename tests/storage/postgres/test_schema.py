"""The schema is brought up to date while processes of the release before serve on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from om_proxy.errors import StorageError
from om_proxy.memory.model import Key
from om_proxy.message_index import MessageIndex
from om_proxy.storage.postgres.schema import apply_next_migration
from om_proxy.storage.postgres.session import SchemaNames, Session
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.postgres.before_0009 import OlderStore, list_newer_migrations, open_older
from tests.storage.search_contract import add_said, store_thread

KEYS = [KEY._replace(thread=name) for name in "abcd"]
ROUND_COUNT = 3


@pytest.fixture
def options(schema: str) -> PostgresOptions:
    # patient: a machine that tests many things at once may take seconds for one statement
    return PostgresOptions(prefix=schema, connections=5, timeout_s=30.0)


@pytest.fixture(autouse=True)
def newer_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The migrations of the index are the newest ones."""
    monkeypatch.setattr("om_proxy.storage.postgres.schema.list_migrations", list_newer_migrations)


@pytest.fixture
async def older(url: str, options: PostgresOptions) -> AsyncIterator[OlderStore]:
    async with open_older(url, options) as store:
        yield store


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Another client of the server."""
    made = await asyncpg.connect(url)
    yield made
    await made.close()


class Threads:
    """Threads that go on at any of the stores. Each message has a word of its own, and names the
    store that indexes it."""

    def __init__(self) -> None:
        self.threads = {key: MemoryBuilder(key) for key in KEYS}
        self.indexed_words: dict[PostgresStore, set[str]] = {}  # by who indexed them
        self._word_count = 0

    async def take_turn(self, key: Key, at: PostgresStore, indexed_at: PostgresStore) -> None:
        """Take the newest message back, say three more, and index them. A fork takes passages out of
        the index."""
        thread = self.threads[key]
        if thread.live:
            taken_back = thread.every[thread.live[-1]].item.raw.decode()
            thread.supersede(thread.live[-1:])
            for words in self.indexed_words.values():
                words -= {word for word in words if word in taken_back}
        words = [f"w{self._word_count + number}w" for number in range(3)]
        self._word_count += len(words)
        await store_thread(at, add_said(thread, *(f"{word} quorum" for word in words)))
        assert await MessageIndex(indexed_at).index_thread(key) == len(words)
        self.indexed_words.setdefault(indexed_at, set()).update(words)

    async def take_round(self, stores: list[PostgresStore]) -> None:
        """One turn of each thread, all at once. Any store may take it, and another may index it."""
        await asyncio.gather(
            *(
                self.take_turn(key, stores[number % len(stores)], stores[number // 2 % len(stores)])
                for number, key in enumerate(KEYS)
            )
        )

    async def check_stored(self, store: PostgresStore) -> None:
        """Nothing is lost, and the index fits what is stored."""
        for key, thread in self.threads.items():
            assert await store.messages(key, 0) == tuple(thread.every[seq] for seq in thread.live)
        assert (await store.check_index()).faults == ()


async def list_found(store: PostgresStore, words: set[str]) -> set[str]:
    """Return the words of which the store finds the message."""
    found = await store.find_passages(KEY, sorted(words))
    return words & {word for match in found.matches for word in match.passage.words}


async def test_both_releases_serve_while_one_replaces_the_other(
    url: str, options: PostgresOptions, older: OlderStore
) -> None:
    """A newer process finds what any of them has indexed. An older one finds what older ones have
    indexed, and is told that all is indexed: docs/spec/storage.md, Schema and releases."""
    threads = Threads()
    await threads.take_round([older])
    newer, _ = await asyncio.gather(
        PostgresStore.open(url, options),
        _take_rounds(threads, [older]),
    )
    try:
        for _ in range(ROUND_COUNT):
            await threads.take_round([older, newer])
            await threads.take_round([newer, older])
        async with open_older(url, options) as started_later:  # the way back
            await threads.take_round([newer, started_later])
            for store in (older, newer, started_later):
                await threads.check_stored(store)
            by_newer = threads.indexed_words.pop(newer)
            by_older = set().union(*threads.indexed_words.values())
            assert by_newer
            assert by_older
            assert await list_found(newer, by_newer | by_older) == by_newer | by_older
            for store in (older, started_later):
                assert await list_found(store, by_newer | by_older) == by_older
    finally:
        await newer.close()


async def _take_rounds(threads: Threads, stores: list[PostgresStore]) -> None:
    for _ in range(ROUND_COUNT):
        await threads.take_round(stores)


async def test_turns_go_on_while_a_migration_waits_for_its_lock(
    url: str, options: PostgresOptions, older: OlderStore, connection: asyncpg.Connection
) -> None:
    """It gives up after 2 s, so that no turn waits behind it for longer; the next start goes on."""
    threads = Threads()
    await threads.take_round([older])
    holder = connection.transaction()
    await holder.start()
    await connection.execute(f'LOCK TABLE "{options.prefix}".passage IN ROW EXCLUSIVE MODE')
    opening = asyncio.create_task(PostgresStore.open(url, options))
    await threads.take_round([older])
    with pytest.raises(StorageError, match="a transaction of somebody holds a table"):
        await opening
    await threads.take_round([older])
    await holder.rollback()
    newer = await PostgresStore.open(url, options)
    try:
        await threads.take_round([older, newer])
        await threads.check_stored(newer)
    finally:
        await newer.close()


async def test_searches_and_turns_go_on_while_the_words_are_indexed(
    url: str, options: PostgresOptions, older: OlderStore, connection: asyncpg.Connection
) -> None:
    """Migration 0010 holds no lock that a search or a new message waits for, however long it takes.
    If its process ends in the middle, nothing of it is left, and the next start makes the index."""
    threads = Threads()
    await threads.take_round([older])
    words = threads.indexed_words[older]
    session = Session(connection, SchemaNames(options.prefix))
    async with connection.transaction():
        assert await apply_next_migration(session, options.prefix)
    await connection.execute("BEGIN")
    assert await apply_next_migration(session, options.prefix)
    fork = asyncio.create_task(threads.take_turn(KEYS[0], older, older))  # waits for the lock
    others = MemoryBuilder(KEY._replace(thread="begun meanwhile"))
    for _ in range(ROUND_COUNT):
        await store_thread(older, add_said(others, "zeta"))
        assert await list_found(older, words) == words
    assert not fork.done()
    connection.terminate()
    await fork
    newer = await PostgresStore.open(url, options)
    try:
        assert await MessageIndex(newer).index_thread(others.key) == ROUND_COUNT
        words = {"zeta", *threads.indexed_words[older]}
        assert await list_found(newer, words) == words
        await threads.check_stored(newer)
    finally:
        await newer.close()
