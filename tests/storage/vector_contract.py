"""What every store promises about vectors of indexed messages. `StoreContract` inherits it.

A store without an index has `has_index = False`: it keeps none.
"""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.base import Store
from om_proxy.storage.values.listing import ThreadPlace
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.storage.search_contract import (
    RULES,
    SECOND,
    add_said,
    index_all,
    index_some,
    said,
    store_thread,
)

EMBEDDING_MODEL = "model"


def make_vector(key: Key, seq: int) -> bytes:
    return f"{key.tenant} {key.resource} {key.thread} {seq} ".encode() * 40


async def embed_some(
    store: Store, key: Key, model: str = EMBEDDING_MODEL, limit: int = 100
) -> list[int]:
    """Make some vectors. Return the seqs of their messages."""
    read = await store.read_unembedded(key, model, limit)
    vectors = [make_vector(key, each.message.seq) for each in read]
    assert await store.write_vectors(key, read, model, vectors) == len(read)
    return [each.message.seq for each in read]


async def list_vectors(
    store: Store, key: Key, model: str = EMBEDDING_MODEL
) -> list[tuple[str, int]]:
    """Return which messages have a vector, page by page. Each has its own."""
    found: list[StoredVector] = []
    before = None
    while True:
        page = await store.read_vectors(key, model, before, 2)
        found += page.vectors
        before = page.end
        if before is None:
            break
    for each in found:
        assert each.vector == make_vector(key._replace(thread=each.thread), each.seq)
    return [(each.thread, each.seq) for each in found]


class VectorContract:
    has_index = True

    async def _index_two(self, store: Store) -> None:
        first = add_said(MemoryBuilder(), "quorum", "zeta " * 200, "beta")
        await store_thread(store, first, 1.0)
        await store_thread(store, add_said(MemoryBuilder(SECOND), "camping"), 2.0)
        await index_all(store, KEY, SECOND)

    async def test_each_indexed_message_gets_a_vector(self, store: Store) -> None:
        await self._index_two(store)
        if not self.has_index:
            assert await store.read_unembedded(KEY, EMBEDDING_MODEL, 9) == ()
            assert (await store.unembedded_threads(EMBEDDING_MODEL, 9.0)).threads == ()
            assert await list_vectors(store, KEY) == []
            return
        read = await store.read_unembedded(KEY, EMBEDDING_MODEL, 9)
        assert [each.message.seq for each in read] == [1, 2, 3]
        assert [each.before and each.before.seq for each in read] == [None, 1, 2]
        assert [each.length for each in read] == [1, 200, 1]
        assert [each.before_length for each in read] == [0, 1, 200]
        assert await embed_some(store, KEY, limit=2) == [1, 2]
        assert await embed_some(store, KEY) == [3]
        assert await embed_some(store, KEY) == []
        assert await embed_some(store, SECOND) == [1]
        places = [("second", 1), ("thread", 3), ("thread", 2), ("thread", 1)]
        assert await list_vectors(store, KEY) == places
        at = await store.read_vectors_at(
            KEY, EMBEDDING_MODEL, [("thread", 3), ("second", 1), ("none", 1)]
        )
        assert sorted((each.thread, each.seq, each.role) for each in at) == [
            ("second", 1, "user"),
            ("thread", 3, "user"),
        ]
        assert (await store.check_index())[3] == 4

    async def test_another_model_makes_all_anew(self, store: Store) -> None:
        await self._index_two(store)
        await embed_some(store, KEY)
        assert await embed_some(store, KEY, "new", 2) == ([1, 2] if self.has_index else [])
        assert await list_vectors(store, KEY, "new") == (
            [("thread", 2), ("thread", 1)] if self.has_index else []
        )
        assert await list_vectors(store, KEY) == ([("thread", 3)] if self.has_index else [])

    async def test_vectors_go_with_their_messages(self, store: Store) -> None:
        """With what is taken back, indexed anew, forgotten or dropped."""
        if not self.has_index:
            return
        thread = add_said(MemoryBuilder(), "quorum", "zeta", "beta")
        await store_thread(store, thread)
        await index_all(store, KEY)
        await embed_some(store, KEY)
        await store_thread(store, thread.supersede([2, 3]))
        assert await list_vectors(store, KEY) == [("thread", 1)]
        await store_thread(store, thread.say(item(said("new"))))
        await index_all(store, KEY)
        assert await embed_some(store, KEY) == [4]
        await store.outdate_index()
        while await index_some(store, KEY, RULES + 1):
            continue
        assert await list_vectors(store, KEY) == []
        await embed_some(store, KEY)
        await store.forget(KEY)
        assert await list_vectors(store, KEY) == []
        assert (await store.check_index())[1:] == (0, (), 0)
        await self._index_two(store)
        await embed_some(store, KEY)
        await store.drop_index()
        assert (await store.check_index())[1:] == (0, (), 0)

    async def test_only_what_was_read_of_a_tenant_gets_a_vector(self, store: Store) -> None:
        """A thread that was forgotten meanwhile gets none, even if its passages have their numbers
        again; nor do messages that were taken back."""
        if not self.has_index:
            return
        thread = add_said(MemoryBuilder(), "quorum", "zeta")
        await store_thread(store, thread)
        await index_all(store, KEY)
        read = await store.read_unembedded(KEY, EMBEDDING_MODEL, 9)
        vectors = [b"1", b"2"]
        other = KEY._replace(tenant="other")
        assert await store.read_unembedded(other, EMBEDDING_MODEL, 9) == ()
        assert await store.write_vectors(other, read, EMBEDDING_MODEL, vectors) == 0
        await store_thread(store, add_said(MemoryBuilder(other), "quorum", "zeta"))
        await index_all(store, other)
        assert await store.write_vectors(other, read, EMBEDDING_MODEL, vectors) == 0
        await store_thread(store, thread.supersede([2]))
        assert await store.write_vectors(KEY, read, EMBEDDING_MODEL, vectors) == 1
        await store.forget(KEY)
        await store_thread(store, add_said(MemoryBuilder(), "another"))
        await index_all(store, KEY)
        assert await store.write_vectors(KEY, read, EMBEDDING_MODEL, vectors) == 0
        assert await store.read_vectors(KEY, EMBEDDING_MODEL) == ((), None)

    async def test_other_tenants_vectors_are_not_read(self, store: Store) -> None:
        await self._index_two(store)
        for key in (Key("other", KEY.resource, KEY.thread), Key(KEY.tenant, "other", KEY.thread)):
            await store_thread(store, add_said(MemoryBuilder(key), "stranger", "zeta"))
            await index_all(store, key)
            await embed_some(store, key)
            expected = [("thread", 2), ("thread", 1)] if self.has_index else []
            assert await list_vectors(store, key) == expected
            at = await store.read_vectors_at(key, EMBEDDING_MODEL, [("thread", 1)])
            assert [each.vector for each in at] == [make_vector(key, 1)] * self.has_index
        assert await list_vectors(store, KEY) == []
        assert await store.read_vectors_at(KEY, EMBEDDING_MODEL, [("thread", 1)]) == ()

    async def test_threads_without_vectors_are_listed_by_tenant(self, store: Store) -> None:
        """The latest active first, page by page."""
        keys = [Key("st"[number % 2], "r", f"thread {number}") for number in range(5)]
        for number, key in enumerate(keys):
            await store_thread(store, add_said(MemoryBuilder(key), "quorum"), float(number))
            await index_all(store, key)
        await embed_some(store, keys[3])
        await embed_some(store, keys[1], "another")
        for limit in (1, 2, 100):
            found: list[Key] = []
            after: ThreadPlace | None = None
            while True:
                page = await store.unembedded_threads(EMBEDDING_MODEL, 4.0, after, limit)
                found += [info.key for info in page.threads]
                after = page.end
                if after is None:
                    break
            assert found == ([keys[2], keys[1], keys[0]] if self.has_index else [])
