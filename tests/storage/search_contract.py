"""What every store promises about searching original messages. `StoreContract` inherits it.

A store without an index has `has_index = False`: it reads messages at each search, and finds the
same.
"""

from __future__ import annotations

import asyncio
from random import Random

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.found import Found, FoundPassage, PassageFilter, match_passages
from om_proxy.memory.recall.passages import IndexPlace, cut_passages
from om_proxy.memory.recall.words import query_words
from om_proxy.storage.base import Store
from om_proxy.storage.shared import newest_passages
from om_proxy.storage.sql.session import SqlStore
from om_proxy.storage.values.listing import ThreadPlace
from om_proxy.wire.apis.message_parts import read_indexed_text
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.support.long_forms import IS_LONG

RULES = 7
SECOND = KEY._replace(thread="second")
VOCABULARY = ("quorum", "zeta", "camping", "北京", "delta", "poodle", "violin")


def said(*words: str) -> str:
    return orjson.dumps({"role": "user", "content": " ".join(words)}).decode()


def add_said(thread: MemoryBuilder, *texts: str) -> MemoryBuilder:
    for text in texts:
        thread.say(item(said(text)))
    return thread


async def store_thread(store: Store, thread: MemoryBuilder, turn_at: float = 1.0) -> Memory:
    """Commit the thread as it is now, over what is stored."""
    before = await store.load(thread.key)
    after = replace(thread.memory(before.version, before.row_id), turn_at=turn_at)
    return await store.commit(before, after)


async def index_some(store: Store, key: Key, rules: int = RULES, limit: int = 2) -> bool:
    """Index a few messages. Return whether there were any."""
    read = await store.read_unindexed(key, rules, limit)
    if read is None:
        return False
    passages, place = cut_passages(map(read_indexed_text, read.messages), read.place, read.timezone)
    assert await store.index_passages(key, read, rules, passages, place)
    return True


async def index_all(store: Store, *keys: Key) -> None:
    for key in keys:
        while await index_some(store, key):
            continue


def cut_thread(thread: MemoryBuilder, through: int | None = None) -> list[FoundPassage]:
    messages = [thread.every[seq] for seq in thread.live if through is None or seq <= through]
    passages, _ = cut_passages(map(read_indexed_text, messages), IndexPlace(), None)
    return [FoundPassage(thread.key.thread, passage) for passage in passages]


def compare(found: Found) -> tuple[object, ...]:
    """Return a search without the order of its neighbours, which no one reads."""
    return (*found._replace(neighbours=()), sorted(found.neighbours))


# tenants whose scopes are taken for each other's
MISPLACED = {"a": "nobody", "b": "a"}


async def index_same_names(store: Store) -> Key:
    """Index threads of two tenants with the same names. Return the key of `a`."""
    for tenant in MISPLACED:
        key = KEY._replace(tenant=tenant)
        await store_thread(store, add_said(MemoryBuilder(key), f"quorum {tenant}", "zeta"))
        await index_all(store, key)
    return KEY._replace(tenant="a")


async def misplace_scopes(store: SqlStore) -> None:
    """Write scopes of tenants into the index that are those of others."""
    sql = "UPDATE om.search_scope SET tenant = $2 WHERE tenant = $1"
    for tenant, name in MISPLACED.items():
        await store._write(lambda s, names=(tenant, name): s.execute(sql, *names))


class SearchContract:
    has_index = True

    async def _two_threads(self, store: Store) -> list[FoundPassage]:
        """Store and index two threads of one resource. Return their passages, the newest last."""
        first = add_said(MemoryBuilder(), "quorum zeta", "beta", "camping", "zeta", "delta 北京市")
        second = add_said(MemoryBuilder(SECOND), "zeta", "quorum " * 200, "violin")
        await store_thread(store, first, 1.0)
        await store_thread(store, second, 2.0)
        await index_all(store, KEY, SECOND)
        return cut_thread(first) + cut_thread(second)

    async def test_search_index(self, store: Store) -> None:
        """However many messages a resource has, all that are indexed are found."""
        if not self.has_index:
            return
        assert (await store.describe()).has_index
        await store_thread(store, add_said(MemoryBuilder(KEY), *["quorum"] * 3))
        assert (await store.find_passages(KEY, ["quorum"])).messages == 0
        await index_all(store, KEY)
        found = await store.find_passages(KEY, ["quorum"])
        assert (found.messages, found.unread) == (3, 0)

    async def test_search_newest_2000(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store without an index reads so many messages; the others are told."""
        if self.has_index:
            return
        assert not (await store.describe()).has_index
        assert newest_passages.NEWEST_MESSAGES == 2_000
        monkeypatch.setattr(newest_passages, "NEWEST_MESSAGES", 2)
        await store_thread(store, add_said(MemoryBuilder(KEY), *["quorum"] * 3))
        found = await store.find_passages(KEY, ["quorum"])
        assert (found.messages, found.unread) == (2, 1)

    async def test_a_search_finds_what_matches(self, store: Store) -> None:
        """Passages of all threads of the resource, as `match_passages` chooses them."""
        passages = await self._two_threads(store)
        for words in (["quorum"], ["zeta", "violin", "nothing"], ["北京"], ["1970"], []):
            for limit in (1, 2, 1_000):
                found = await store.find_passages(KEY, words, limit=limit)
                assert compare(found) == compare(match_passages(passages, words, limit=limit))
        at = passages[2].passage.at
        for chosen_by in (
            PassageFilter(thread="second"),
            PassageFilter(before=at),
            PassageFilter(after=at),
            PassageFilter(roles=("user", "tool")),
            PassageFilter(thread="second", roles=("assistant",)),
        ):
            found = await store.find_passages(KEY, ["zeta", "quorum"], chosen_by)
            expected = match_passages(passages, ["zeta", "quorum"], chosen_by)
            assert compare(found) == compare(expected)

    async def test_other_tenants_change_nothing_of_a_search(self, store: Store) -> None:
        """Not the passages, not the counts, whatever the others say and whoever asks."""
        passages = await self._two_threads(store)
        strangers = [
            Key("other", KEY.resource, KEY.thread),
            Key(KEY.tenant, "other", KEY.thread),
        ]
        for number, key in enumerate(strangers):
            await store_thread(store, add_said(MemoryBuilder(key), "quorum stranger", "zeta"))
            assert (await store.find_passages(KEY, ["zeta"])).unread == 0
            await index_all(store, key)
            own = await store.find_passages(key, ["stranger"])
            assert (len(own.matches), own.messages) == (1, 2), number
        for words in (["quorum", "zeta"], ["stranger"]):
            found = await store.find_passages(KEY, words)
            assert compare(found) == compare(match_passages(passages, words))
        nobody = await store.find_passages(Key("other", "other", "none"), ["zeta", "quorum"])
        assert nobody == Found(0, {"zeta": 0, "quorum": 0}, (), ())

    async def test_random_searches_find_only_what_the_tenant_stores(self, store: Store) -> None:
        """Two tenants have the same names. A search of one finds what its own passages alone give,
        so its scores do not change by what the other stores meanwhile. OM_TEST_LONG=all: 10,000
        searches."""
        count = 10_000 if IS_LONG else 40
        random = Random(11)
        own = MemoryBuilder(KEY._replace(tenant="a"))
        other = MemoryBuilder(KEY._replace(tenant="b"))
        for thread in (own, other):
            await store_thread(store, add_said(thread, *map(self._make_text, [random] * 12)))
            await index_all(store, thread.key)
        passages = cut_thread(own)
        for number in range(count):
            if number % (count // 4) == 0:
                add_said(other, f"secret {self._make_text(random)}")
                await store_thread(store, other)
                await index_all(store, other.key)
            words = random.sample([*VOCABULARY[:3], *VOCABULARY[4:], "secret"], 2)
            found = await store.find_passages(own.key, query_words(" ".join(words)))
            expected = match_passages(passages, query_words(" ".join(words)))
            assert compare(found) == compare(expected), words

    @staticmethod
    def _make_text(random: Random) -> str:
        return " ".join(random.choices(VOCABULARY, k=random.randrange(1, 9)))

    async def test_what_is_taken_back_is_not_found(self, store: Store) -> None:
        """Superseded messages are not found, interrupted ones never, revived ones again."""
        thread = add_said(MemoryBuilder(), "quorum", "zeta", "camping", "delta")
        before = await store_thread(store, thread)
        await index_all(store, KEY)
        thread.supersede([3, 4])
        interrupted = thread.interrupt_reply(item(said("violin")))
        add_said(thread, "poodle")
        after = replace(thread.memory(before.version, before.row_id), turn_at=1.0)
        await store.commit(before, after, [interrupted])
        found = await store.find_passages(KEY, ["camping", "violin"])
        assert found.matches == ()
        assert found.unread == int(self.has_index)
        await index_all(store, KEY)
        words = ["quorum", "camping", "violin", "poodle"]
        found = await store.find_passages(KEY, words)
        assert compare(found) == compare(match_passages(cut_thread(thread), words))
        await store_thread(store, thread.revive(4))
        await index_all(store, KEY)
        found = await store.find_passages(KEY, words)
        assert compare(found) == compare(match_passages(cut_thread(thread), words))

    async def test_what_is_forgotten_is_not_found(self, store: Store) -> None:
        passages = await self._two_threads(store)
        await store.forget(KEY)
        kept = [each for each in passages if each.thread == "second"]
        found = await store.find_passages(KEY, ["zeta", "camping"])
        assert compare(found) == compare(match_passages(kept, ["zeta", "camping"]))
        while not (await store.forget_batch(KEY.tenant)).is_last:
            continue
        assert await store.find_passages(KEY, ["zeta"]) == Found(0, {"zeta": 0}, (), ())
        assert (await store.check_index())[:2] == (0, 0)

    async def test_a_moved_tenant_is_searched_under_its_new_name(self, store: Store) -> None:
        passages = await self._two_threads(store)
        await store.move_tenant(KEY.tenant, "renamed", lambda *_: None)
        assert not (await store.find_passages(KEY, ["zeta"])).messages
        renamed = [key._replace(tenant="renamed") for key in (KEY, SECOND)]
        await index_all(store, *renamed)
        found = await store.find_passages(renamed[0], ["zeta"])
        assert compare(found) == compare(match_passages(passages, ["zeta"]))

    async def test_the_index_holds_the_live_messages(self, store: Store) -> None:
        """Up to `indexed_to`, whatever turns, forks, undos, forgetting and indexing came in which
        order."""
        random = Random(3)
        thread = MemoryBuilder()
        for _ in range(60):
            step = random.random()
            if step < 0.35:
                add_said(thread, random.choice(VOCABULARY), random.choice(VOCABULARY))
                await store_thread(store, thread)
            elif step < 0.55 and len(thread.live) > 2:
                cut = random.randrange(1, len(thread.live))
                thread.supersede(thread.live[cut:])
                add_said(thread, random.choice(VOCABULARY))
                await store_thread(store, thread)
            elif step < 0.6:
                await store.forget(KEY)
                thread = MemoryBuilder()
            else:
                await index_some(store, KEY, limit=random.choice((1, 2, 50)))
            found = await store.find_passages(KEY, list(VOCABULARY))
            through = None
            if self.has_index:
                read = await store.read_unindexed(KEY, RULES, 50)
                through = read.place.indexed_to if read else None
            expected = match_passages(cut_thread(thread, through), list(VOCABULARY))
            assert compare(found)[:-2] == compare(expected._replace(unread=found.unread))[:-2]
            assert found.messages + found.unread == len(thread.live)
        assert (await store.check_index()).faults == ()

    # ── the index itself ──

    async def test_only_what_was_read_of_a_tenant_is_indexed(self, store: Store) -> None:
        """Passages of a thread that changed since, or was forgotten, are not written."""
        thread = add_said(MemoryBuilder(), "quorum", "zeta")
        await store_thread(store, thread)
        read = await store.read_unindexed(KEY, RULES, 10)
        if not self.has_index:
            assert read is None
            return
        assert read is not None
        assert read.is_last
        passages, place = cut_passages(map(read_indexed_text, read.messages), read.place, None)
        await store_thread(store, thread.supersede([2]))
        assert not await store.index_passages(KEY, read, RULES, passages, place)
        await store.forget(KEY)
        assert not await store.index_passages(KEY, read, RULES, passages, place)
        await store_thread(store, add_said(MemoryBuilder(), "new"))
        assert not await store.index_passages(KEY, read, RULES, passages, place)
        assert (await store.find_passages(KEY, ["quorum"])).messages == 0
        assert await store.read_unindexed(Key("no", "no", "no"), RULES, 10) is None
        other = KEY._replace(tenant="other")
        assert await store.read_unindexed(other, RULES, 10) is None
        assert not await store.index_passages(other, read, RULES, passages, place)

    async def test_newer_rules_make_the_index_anew(self, store: Store) -> None:
        """Meanwhile everything is found, by older rules or by newer ones."""
        await self._two_threads(store)
        if not self.has_index:
            return
        version = await store.version(KEY)
        for _ in range(4):
            assert await index_some(store, KEY, RULES + 1)
            found = await store.find_passages(KEY, ["quorum", "beta", "camping", "delta"])
            assert [each.passage.seq for each in found.matches if each.thread == "thread"] != []
            assert (found.messages, found.unread) == (8, 0)
            assert (await store.check_index()).faults == ()
            if await store.read_unindexed(KEY, RULES + 1, 1) is None:
                break
        assert await store.read_unindexed(KEY, RULES + 1, 1) is None
        assert await store.version(KEY) == version
        await store.outdate_index()
        assert len((await store.unindexed_threads(RULES + 1, 10.0)).threads) == 2
        await store.drop_index()
        assert (await store.find_passages(KEY, ["quorum"])).messages == 0
        assert (await store.check_index())[:2] == (0, 0)

    async def test_searches_go_on_while_the_index_is_made_anew(self, store: Store) -> None:
        """Each finds everything, whichever batch is under way; no passage stands twice."""
        await self._two_threads(store)
        if not self.has_index:
            return
        words = ["quorum", "zeta", "camping"]
        expected = self._list_places(await store.find_passages(KEY, words))
        await store.outdate_index()

        async def make_anew() -> None:
            for key in (KEY, SECOND):
                while await index_some(store, key, limit=1):
                    continue

        making = asyncio.create_task(make_anew())
        while not making.done():
            found = await store.find_passages(KEY, words)
            assert (found.messages, found.unread) == (8, 0)
            assert self._list_places(found) == expected
        await making
        assert (await store.check_index()).faults == ()

    @staticmethod
    def _list_places(found: Found) -> list[tuple[str, int, int]]:
        return sorted((each.thread, *each.passage[:2]) for each in found.matches)

    async def test_what_the_index_lacks_is_listed_by_tenant(self, store: Store) -> None:
        """The latest active first, page by page; a thread without messages lacks none."""
        keys = [Key("st"[number % 2], "r", f"thread {number}") for number in range(5)]
        for number, key in enumerate(keys):
            await store_thread(store, add_said(MemoryBuilder(key), "quorum"), float(number))
        await store_thread(store, MemoryBuilder(Key("s", "r", "empty")), 1.5)
        await index_all(store, keys[3])
        for limit in (1, 2, 100):
            found: list[Key] = []
            after: ThreadPlace | None = None
            while True:
                page = await store.unindexed_threads(RULES, 4.0, after, limit)
                found += [info.key for info in page.threads]
                after = page.end
                if after is None:
                    break
            expected = [keys[2], keys[1], keys[0]] if self.has_index else []
            assert found == expected
        listed = await store.unindexed_of_resource(RULES, keys[0], 3)
        lacking = [keys[4], keys[2], keys[0]] if self.has_index else []
        assert [info.key for info in listed] == lacking
        assert await store.unindexed_of_resource(RULES, Key("s", "other", ""), 2) == ()
