"""An encrypted SQLite file tells nobody what it holds."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import UnopenedText, WrongMasterKey
from om_proxy.memory.events.parts import Event, ThreadUpdate
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Pin
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.listing import ThreadSelection
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.shared_machine import share_log

MASTER_KEY = bytes(range(32))


CANARY_WORD = "canary"
KEY_ID = MasterKeys([MASTER_KEY]).newest_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "om.db"


async def open_store(file: Path, *keys: bytes) -> SqliteStore:
    return await SqliteStore.open(file, masters=MasterKeys(keys) if keys else None)


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_store(file, MASTER_KEY)
    yield opened
    await opened.close()


def count_canaries(file: Path, *more: bytes) -> int:
    words = (
        CANARY_WORD.encode(),
        CANARY_WORD.encode("utf-16-le"),
        base64.b64encode(CANARY_WORD.encode()),
        *more,
    )
    texts = [each.read_bytes() for each in file.parent.glob(f"{file.name}*")]
    return sum(text.count(word) for text in texts for word in words)


def say_everywhere(key: Key, **more: Any) -> MemoryBuilder:
    """Return a thread with the canary in every text that a store keeps of it."""
    builder = MemoryBuilder(key).chat(9, CANARY_WORD).cover(3).cover(2).chunk(2).keep_reflection()
    note = {
        "text": f"* {CANARY_WORD} note",
        "task": CANARY_WORD,
        "suggestion": CANARY_WORD,
        "title": CANARY_WORD,
    }
    builder.log = tuple(replace(entry, **note) for entry in builder.log)
    builder.chunks = tuple(replace(entry, **note) for entry in builder.chunks)
    assert builder.reflection
    del note["title"]
    builder.reflection = replace(builder.reflection, **note)
    builder.more = {"title": CANARY_WORD, "overrides": f'"{CANARY_WORD}"'.encode()} | more
    return builder


def tell_events() -> list[Event]:
    update = ThreadUpdate(
        record_id="",
        thread_id="",
        cycle_id="c",
        new_title=CANARY_WORD,
        old_title=CANARY_WORD,
        timestamp="",
    )
    return [activation("c", CANARY_WORD), Event(2.0, update)]


def run_sql(file: Path, sql: str, *parameters: Any) -> list[Any]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return connection.execute(sql, parameters).fetchall()


async def commit_canaries(store: Store, key: Key = KEY) -> Memory:
    builder = say_everywhere(key)
    first = await store.commit(Memory(key=key), MemoryBuilder(key).chat(9, CANARY_WORD).memory())
    after = builder.memory(first.version, first.row_id)
    pins = (Pin(1, CANARY_WORD, 1, 1.0, "admin"),)
    after = replace(after, log=replace(after.log, pins=pins))
    return await store.commit(first, after, events=tell_events())


async def test_text_is_encrypted_and_titles_cannot_be_searched(
    store: SqliteStore, file: Path
) -> None:
    """Whoever reads the file reads no text, and every text comes back."""
    memory = await commit_canaries(store)
    secret = await store.secret()
    assert count_canaries(file, secret) == 0
    assert await store.load(KEY) == memory
    assert CANARY_WORD in memory.log.entries[0].text
    events = (await store.events(None, None, None, 10)).events
    assert sum(event.data.count(CANARY_WORD) for event in events) == 3
    [line] = await store.threads(KEY.tenant)
    assert (line.title, line.overrides) == (CANARY_WORD, f'"{CANARY_WORD}"'.encode())
    found = await store.find_threads(ThreadSelection(KEY.tenant, prefix=CANARY_WORD[:3]))
    assert found.threads == ()


async def test_the_canaries_would_be_found(file: Path) -> None:
    """Without encryption the scan finds them."""
    store = await open_store(file)
    await commit_canaries(store)
    assert count_canaries(file) > 20
    await store.close()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((), f"encrypted with the master key {KEY_ID}: set storage.encryption_key"),
        ((bytes(32),), f"another master key, {KEY_ID}"),
    ],
)
async def test_another_key_or_none_is_refused(
    store: SqliteStore, file: Path, keys: tuple[bytes, ...], said: str
) -> None:
    await store.secret()
    with pytest.raises(WrongMasterKey, match=said):
        await open_store(file, *keys)


async def test_a_file_that_is_not_encrypted_is_refused_with_a_key(file: Path) -> None:
    """It stays as it is, and goes on without a key."""
    plain = await open_store(file)
    memory = await commit_canaries(plain)
    await plain.close()
    with pytest.raises(WrongMasterKey, match="om-proxy store copy FROM TO --verify"):
        await open_store(file, MASTER_KEY)
    plain = await open_store(file)
    assert await plain.load(KEY) == memory
    await plain.close()


async def test_a_value_that_does_not_open_stops_its_thread_alone(
    store: SqliteStore, file: Path
) -> None:
    """It is never answered with garbage, and the thread can still be listed and forgotten."""
    other = KEY._replace(thread="other")
    await commit_canaries(store)
    whole = await commit_canaries(store, other)
    sql = """UPDATE message SET raw = CAST(substr(raw, 1, length(raw) - 1)
        || CASE substr(raw, -1) WHEN x'00' THEN x'01' ELSE x'00' END AS BLOB)
        WHERE thread_id = (SELECT id FROM thread WHERE thread = ?)"""
    run_sql(file, sql, KEY.thread)
    for reading in (store.load(KEY), store.messages(KEY, 0), store.messages_by_seq(KEY, [1])):
        with pytest.raises(UnopenedText):
            await reading
    run_sql(file, "UPDATE thread SET title = x'01' WHERE thread = ?", KEY.thread)
    assert await store.load(other) == whole
    assert [line.title for line in await store.threads(None)] == [CANARY_WORD, None]
    assert (await store.forget(KEY)).messages == 9


@pytest.mark.parametrize("source", ["thread", "other"])
async def test_a_message_that_was_moved_does_not_open(
    store: SqliteStore, file: Path, source: str
) -> None:
    """Neither within its thread nor from another thread."""
    await commit_canaries(store)
    await commit_canaries(store, KEY._replace(thread="other"))
    sql = """UPDATE message SET raw = (SELECT raw FROM message WHERE seq = 8
        AND thread_id = (SELECT id FROM thread WHERE thread = ?))
        WHERE seq = 9 AND thread_id = (SELECT id FROM thread WHERE thread = ?)"""
    run_sql(file, sql, source, KEY.thread)
    with pytest.raises(UnopenedText):
        await store.load(KEY)


async def test_a_forgotten_thread_takes_its_key_along(store: SqliteStore, file: Path) -> None:
    other = KEY._replace(thread="other")
    await commit_canaries(store)
    await commit_canaries(store, other)
    assert len(store._keys) == 2
    await store.forget(KEY)
    stored = run_sql(file, "SELECT data_key.id FROM data_key JOIN thread ON key_id = data_key.id")
    assert len(stored) == run_sql(file, "SELECT count(*) FROM data_key")[0][0] == 1
    assert len(store._keys) == 1
    await store.forget_batch(KEY.tenant)
    assert run_sql(file, "SELECT count(*) FROM data_key") == [(0,)]


async def test_forgetting_one_thread_gives_the_shared_log_another_key(
    store: SqliteStore, file: Path
) -> None:
    """A copy of the file that was made before opens with no key that is left."""
    shared = await share_log(store)
    log = shared.stored[RESOURCE_THREAD].key
    [(before,)] = run_sql(file, "SELECT key_id FROM thread WHERE thread = ''")
    notes = (await store.load(log)).log.entries
    await store.forget(shared.stored["A"].key)
    [(after,)] = run_sql(file, "SELECT key_id FROM thread WHERE thread = ''")
    assert before != after
    assert run_sql(file, "SELECT count(*) FROM data_key WHERE id = ?", before) == [(0,)]
    left = (await store.load(log)).log.entries
    assert {entry.text for entry in left} <= {entry.text for entry in notes}
    await store.commit(await store.load(log), replace(await store.load(log), title="goes on"))


async def test_what_a_prompt_told_of_others_goes_with_its_key(
    store: SqliteStore, file: Path
) -> None:
    thread = replace(MemoryBuilder().chat(1).memory(), scope="resource")
    told = replace(thread, other_threads_text=f"they said {CANARY_WORD}")
    memory, _ = await store.commit_shared(Change(Memory(key=KEY), told), None)
    keys = run_sql(file, "SELECT count(*) FROM data_key")
    again, _ = await store.commit_shared(Change(memory, replace(memory, turns=1)), None)
    assert run_sql(file, "SELECT count(*) FROM data_key") == keys == [(2,)]
    assert await store.load(KEY) == again
    news = replace(again, other_threads_text="and then")
    again, _ = await store.commit_shared(Change(again, news), None)
    assert run_sql(file, "SELECT count(*) FROM data_key") == [(2,)]
    silent, _ = await store.commit_shared(
        Change(again, replace(again, other_threads_text="")), None
    )
    assert run_sql(file, "SELECT count(*) FROM data_key") == [(1,)]
    assert (await store.load(KEY)).other_threads_text == "" == silent.other_threads_text


async def test_another_process_finds_the_key_of_a_thread_that_it_did_not_load(
    store: SqliteStore, file: Path
) -> None:
    memory = await commit_canaries(store)
    other = await open_store(file, MASTER_KEY)
    after = await other.commit(memory, replace(memory, turns=5))
    assert await store.load(KEY) == after
    await other.add_events(KEY, tell_events())
    assert len((await store.events(None, [KEY], None, 10)).events) == 4
    await other.close()
