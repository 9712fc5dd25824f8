"""An encrypted Redis tells nobody what it holds."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import redis
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, UnopenedText, WrongMasterKey
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.redis.changes import Applied, Changes
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.listing import ThreadSelection
from tests.storage.faulty_keys import ProcessEnded
from tests.storage.key_rotation_contract import KeyRotationContract, OpenWith
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.redis.test_removal import list_values
from tests.storage.shared_machine import share_log
from tests.storage.sqlite.test_store_sealed_texts import CANARY_WORD, commit_canaries, tell_events
from tests.support.own_redis import OwnRedis, own_redis

MASTER_KEY = bytes(range(32))
KEY_ID = MasterKeys([MASTER_KEY]).newest_id
OTHER_THREAD = KEY._replace(thread="other")
OPTIONS = RedisOptions(timeout_s=30.0)


class Place:
    """The keys of a store, as they stand in the server."""

    def __init__(self, server: redis.Redis, prefix: str) -> None:
        self.server = server
        self.prefix = prefix

    def name(self, part: str, thread: str) -> str:
        [found] = self.server.scan_iter(f"{self.prefix}:{{*}}:{part}:{thread}")
        return str(found.decode())

    def count_keys(self) -> int:
        """Return the number of data keys. What counts them says the same."""
        count = self.server.hlen(f"{self.prefix}:data_keys")
        assert count == self.server.hlen(f"{self.prefix}:named_keys")
        assert sum(map(int, self.server.hvals(f"{self.prefix}:key_counts"))) == count
        return int(count)

    def list_ids(self) -> set[bytes]:
        return {*self.server.hkeys(f"{self.prefix}:data_keys")}

    def list_rows(self) -> set[bytes]:
        return {*self.server.scan_iter(f"{self.prefix}:{{*}}:row:*")}


@pytest.fixture
def place(url: str, prefix: str) -> Iterator[Place]:
    with closing(redis.Redis.from_url(url)) as server:
        yield Place(server, prefix)


@pytest.fixture
async def store(open_with: OpenWith) -> AsyncIterator[RedisStore]:
    return await open_with(MASTER_KEY)


@pytest.fixture
def own() -> Iterator[OwnRedis]:
    with own_redis() as made:
        yield made


async def open_own(server: OwnRedis) -> RedisStore:
    return await RedisStore.open(server.url, OPTIONS, masters=MasterKeys([MASTER_KEY]))


def count_words(server: OwnRedis, *more: bytes) -> int:
    """Return how often the canary stands in the server's files, and under or in its keys."""
    words = (
        CANARY_WORD.encode(),
        CANARY_WORD.encode("utf-16-le"),
        base64.b64encode(CANARY_WORD.encode()),
        *more,
    )
    with closing(redis.Redis.from_url(server.url)) as client:
        values = [value for name in client.scan_iter() for value in list_values(client, name)]
    stored = sum(value.count(word) for value in values for word in words)
    return stored + sum(server.count_in_files(word) for word in words)


async def test_text_is_encrypted_and_titles_cannot_be_searched(own: OwnRedis) -> None:
    """Whoever reads the server's keys, or its log, reads no text, and every text comes back."""
    own.start()
    store = await open_own(own)
    memory = await commit_canaries(store)
    shared = replace(MemoryBuilder(OTHER_THREAD).chat(1).memory(), scope="resource")
    told = replace(shared, other_threads_text=f"they said {CANARY_WORD}")
    await store.commit_shared(Change(Memory(key=OTHER_THREAD), told), None)
    await store.add_events(KEY, tell_events())
    assert count_words(own, await store.secret()) == 0
    assert await store.load(KEY) == memory
    events = (await store.events(None, None, None, 10)).events
    assert sum(event.data.count(CANARY_WORD) for event in events) == 6
    line = next(one for one in await store.threads(KEY.tenant) if one.key == KEY)
    assert (line.title, line.overrides) == (CANARY_WORD, f'"{CANARY_WORD}"'.encode())
    found = await store.find_threads(ThreadSelection(KEY.tenant, prefix=CANARY_WORD[:3]))
    assert found.threads == ()
    await store.close()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((), f"encrypted with the master key {KEY_ID}: set storage.encryption_key"),
        ((bytes(32),), f"another master key, {KEY_ID}"),
    ],
)
async def test_another_key_or_none_is_refused(
    store: RedisStore, open_with: OpenWith, keys: tuple[bytes, ...], said: str
) -> None:
    await store.secret()
    with pytest.raises(WrongMasterKey, match=said):
        await open_with(*keys)


async def test_a_value_that_was_changed_or_moved_stops_its_thread_alone(
    store: RedisStore, place: Place
) -> None:
    """It is never answered with garbage, and the thread can still be listed and forgotten."""
    await commit_canaries(store)
    whole = await commit_canaries(store, OTHER_THREAD)
    texts = place.name("texts", KEY.thread)
    place.server.hset(texts, "9", place.server.hget(texts, "8"))
    for reading in (store.load(KEY), store.messages(KEY, 0), store.messages_by_seq(KEY, [9])):
        with pytest.raises(UnopenedText):
            await reading
    assert await store.load(OTHER_THREAD) == whole
    assert len(await store.threads(KEY.tenant)) == 2
    assert (await store.forget(KEY)).messages == 9


async def end_after_one_script(
    monkeypatch: pytest.MonkeyPatch, forget: object, applies: bool
) -> None:
    """Let the process end behind its script, or before it."""
    apply = Changes.apply

    async def end(changes: Changes) -> Applied:
        if applies:
            assert (await apply(changes)).failed is None
        raise ProcessEnded

    with monkeypatch.context() as patch:
        patch.setattr(Changes, "apply", end)
        with pytest.raises(ProcessEnded):
            await forget  # type: ignore[misc] # a coroutine


@pytest.mark.parametrize("is_batch", [False, True], ids=["thread", "resource"])
async def test_a_key_goes_in_the_step_that_forgets(
    store: RedisStore, place: Place, monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    """Wherever the process ends, no row is without its key, and no key without its row."""
    await commit_canaries(store)
    await commit_canaries(store, Key("t", "kept", "kept"))
    before = place.list_rows(), place.list_ids()

    def forget() -> object:
        return store.forget_batch(KEY.tenant, KEY.resource) if is_batch else store.forget(KEY)

    await end_after_one_script(monkeypatch, forget(), applies=False)
    assert (place.list_rows(), place.list_ids()) == before
    await end_after_one_script(monkeypatch, forget(), applies=True)
    assert (len(place.list_rows()), place.count_keys()) == (1, 1)
    assert len(place.list_ids() & before[1]) == 1


async def test_forgetting_one_thread_gives_the_shared_log_another_key(
    store: RedisStore, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same step. What stays reads as before."""
    shared = await share_log(store)
    log = shared.stored[RESOURCE_THREAD].key
    await store.add_events(log, tell_events())
    row = place.name("row", "")
    before = place.server.hget(row, "keys")
    notes = {entry.text for entry in (await store.load(log)).log.entries}
    await end_after_one_script(monkeypatch, store.forget(shared.stored["A"].key), applies=True)
    after = place.server.hget(row, "keys")
    assert before not in (None, after)
    assert before not in place.list_ids()
    assert after in place.list_ids()
    assert place.count_keys() == len(place.list_rows())
    left = await store.load(log)
    assert {entry.text for entry in left.log.entries} <= notes
    await store.commit(left, replace(left, title="goes on"))


async def test_what_a_prompt_told_of_others_goes_with_its_key(
    store: RedisStore, place: Place
) -> None:
    thread = replace(MemoryBuilder().chat(1).memory(), scope="resource")
    told = replace(thread, other_threads_text="they said")
    memory, _ = await store.commit_shared(Change(Memory(key=KEY), told), None)
    ids = place.list_ids()
    memory, _ = await store.commit_shared(Change(memory, replace(memory, turns=1)), None)
    assert (place.count_keys(), place.list_ids()) == (2, ids)
    assert await store.load(KEY) == memory
    news = replace(memory, other_threads_text="and then")
    memory, _ = await store.commit_shared(Change(memory, news), None)
    assert (place.count_keys(), len(place.list_ids() & ids)) == (2, 1)
    silent = replace(memory, other_threads_text="")
    await store.commit_shared(Change(memory, silent), None)
    assert place.count_keys() == 1
    assert (await store.load(KEY)).other_threads_text == ""


async def test_a_version_that_was_given_out_again_is_no_licence(
    store: RedisStore, place: Place
) -> None:
    """A server that lost its newest commits may give a version out to a state with another key: what
    is computed from the lost one would never open."""
    memory = await commit_canaries(store)
    row = place.name("row", KEY.thread)
    place.server.hset(row, "keys", bytes(16))
    with pytest.raises(Conflict):
        await store.commit(memory, replace(memory, turns=5))


async def test_a_server_that_lost_its_marks_is_marked_again(own: OwnRedis) -> None:
    """As a crash within the first second of an encrypted store may leave it: nobody without the key
    takes it for plain afterwards."""
    own.start()
    store = await open_own(own)
    secret = await store.secret()
    for name in ("encryption", "schema", "secret"):
        own.ask("DEL", f"om:{name}")
    own.kill()
    own.start()
    assert await store.version(KEY) == 0  # a new connection
    memory = await commit_canaries(store)
    with pytest.raises(WrongMasterKey):
        await RedisStore.open(own.url, OPTIONS)
    again = await open_own(own)
    assert (await again.load(KEY), await again.secret()) == (memory, secret)
    await again.close()
    # another server in its place
    own.ask("HSET", "om:encryption", "master", "0123456789ab")
    own.kill()
    own.start()
    with pytest.raises(WrongMasterKey, match="0123456789ab"):
        await store.load(KEY)
    await store.close()


async def test_a_server_that_was_filled_without_the_key_meanwhile_is_refused(own: OwnRedis) -> None:
    """It lost that it is encrypted, and another process took it for plain: nothing of both is mixed."""
    own.start()
    store = await open_own(own)
    own.ask("FLUSHALL")
    plain = await RedisStore.open(own.url, OPTIONS)
    memory = await commit_canaries(plain)
    await plain.close()
    own.kill()
    own.start()
    with pytest.raises(WrongMasterKey, match="is not encrypted"):
        await store.load(KEY)
    await store.close()
    plain = await RedisStore.open(own.url, OPTIONS)
    assert await plain.load(KEY) == memory
    await plain.close()


async def test_a_full_server_can_still_forget(own: OwnRedis) -> None:
    """A thread, and one of a shared log, which gets another key."""
    own.start()
    store = await open_own(own)
    shared = await share_log(store)
    await commit_canaries(store)
    await store.secret()
    own.ask("CONFIG", "SET", "maxmemory", 1)
    assert (await store.forget(KEY)).threads == 1
    assert (await store.forget(shared.stored["A"].key)).threads == 1
    assert (await store.load(shared.stored["B"].key)).version
    await store.close()


class TestRedisKeyRotation(KeyRotationContract):
    """The master key of an encrypted Redis is changed while it is used."""
