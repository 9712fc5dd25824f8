"""What every store promises about tenants, beside the rest of the contract. Two of them have
resources and threads of the same names. What is stored for one tenant never reaches the other."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.lifecycle import edits, withdrawal
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change, NoteErasure, ResourceWakeup
from tests.storage.memory_builder import MemoryBuilder

NOW = 5.0


async def shared(
    store: Store, tenant: str, thread: str, wakeup: ResourceWakeup | None = None
) -> Memory:
    """Create a thread of four messages that shares its resource's log, and the shared log."""
    key = Key(tenant, "resource", thread)
    memory = replace(MemoryBuilder(key).chat(4, tenant).memory(), scope="resource", turn_at=NOW)
    before = await store.load(resource_key(key))
    shared_log = Change(before, replace(before, turns=before.turns + 1), ())
    committed, _ = await store.commit_shared(
        Change(Memory(key=key), memory, ()), shared_log, wakeup
    )
    return committed


class TenantContract:
    async def test_backlog_of_a_tenant(self, store: Store) -> None:
        """A shared log's threads are those of its own tenant."""
        mine, _ = [await shared(store, tenant, "t") for tenant in ("a", "b")]
        assert [
            waiting.key for waiting in await store.resource_backlog(resource_key(mine.key))
        ] == [mine.key]
        assert await store.resource_backlog(Key("c", "resource", "")) == ()

    async def test_who_speaks_elsewhere(self, store: Store) -> None:
        """The tails of a resource's other threads are never another tenant's."""
        for tenant in ("a", "b"):
            await shared(store, tenant, "t")
        mine = await shared(store, "a", "u")
        ((key, messages),) = await store.other_thread_tails(mine.key, 10, 10)
        assert key == Key("a", "resource", "t")
        assert all(b"a " in m.item.raw for m in messages)
        assert await store.other_thread_tails(Key("c", "resource", "x"), 10, 10) == ()

    async def test_who_makes_whose_shared_log_due(self, store: Store) -> None:
        """Unobserved messages count for their own tenant's shared log, and make no other one due."""
        first = await shared(store, "a", "t", ResourceWakeup(NOW, 1))
        assert await store.due_threads(NOW, 9) == (resource_key(first.key),)
        tokens = sum(m.framed_tokens for m in first.tail)
        second = await shared(store, "b", "t", ResourceWakeup(NOW, tokens + 1))
        assert await store.due_threads(NOW, 9) == (resource_key(first.key),)
        await shared(store, "b", "u", ResourceWakeup(NOW, tokens + 1))
        assert set(await store.due_threads(NOW, 9)) == {
            resource_key(first.key),
            resource_key(second.key),
        }

    async def test_whose_shared_log_is_made_due(self, store: Store) -> None:
        """Only a tenant's own threads wake its shared log."""
        await shared(store, "b", "t")
        mine = await shared(store, "a", "t", ResourceWakeup(NOW, 1))
        assert await store.due_threads(NOW, 9) == (resource_key(mine.key),)

    async def test_whose_version(self, store: Store) -> None:
        """A commit is checked against its own tenant's version. The same name elsewhere neither causes
        nor hides a conflict."""
        await shared(store, "a", "t")
        await shared(store, "b", "t")
        for tenant in ("a", "b"):
            memory = await store.load(Key(tenant, "resource", "t"))
            changed, _ = await store.commit_shared(
                Change(memory, replace(memory, turns=9), ()), None
            )
            assert await store.load(memory.key) == changed

    async def test_whose_lease(self, store: Store) -> None:
        """A lease on one tenant's thread does not block the other tenant's."""
        keys = [Key(tenant, "resource", "t") for tenant in ("a", "b")]
        for key in keys:
            await store.commit(
                Memory(key=key), replace(MemoryBuilder(key).chat(2).memory(), due_at=NOW)
            )
        assert await store.lease(keys[0], "me", 60)
        assert await store.due_threads(NOW, 9) == (keys[1],)
        assert await store.lease(keys[1], "you", 60)
        assert await store.due_threads(NOW, 9) == ()

    async def test_whose_shared_log_goes(self, store: Store) -> None:
        """A tenant's shared log is removed with its last thread. Another tenant's thread neither keeps
        that log nor loses its own."""
        mine, theirs = [await shared(store, tenant, "t") for tenant in ("a", "b")]
        shared_log = await store.load(resource_key(theirs.key))
        assert (await store.forget(mine.key)).messages == 4
        assert await store.version(resource_key(mine.key)) == 0
        assert await store.load(theirs.key) == theirs
        assert await store.load(shared_log.key) == shared_log

    async def test_who_is_told_no_more(self, store: Store) -> None:
        """Prompts of its own tenant's threads lose the text about a forgotten thread; others keep
        theirs."""
        told = {}
        for tenant in ("a", "b"):
            await shared(store, tenant, "t")
            memory = await shared(store, tenant, "u")
            change = Change(memory, replace(memory, other_threads_text="of t"), ())
            told[tenant], _ = await store.commit_shared(change, None)
        await store.forget(Key("a", "resource", "t"))
        assert (await store.load(told["a"].key)).other_threads_text == ""
        assert await store.load(told["b"].key) == told["b"]

    async def test_whose_notes_are_erased(self, store: Store) -> None:
        """Each tenant's own, whatever names the other one uses."""
        memories = []
        for tenant in ("a", "b"):
            thread = MemoryBuilder(Key(tenant, "resource", "t")).chat(4, tenant)
            before = await store.commit(Memory(key=thread.key), thread.memory())
            memories.append(await store.commit(before, thread.cover(2).memory()))
        for memory in memories:
            [entry] = memory.log.entries
            gone = edits.withdraw_entry(memory, entry.id, 7.5, forget=True)
            assert gone is not None
            erasure = NoteErasure(memory.key, memory.version, (withdrawal.blank(entry),))
            await store.commit_erasing(Change(memory, gone), [erasure])
            erased = [
                not (await store.generations(other.key, 1))[0].entries[0].text for other in memories
            ]
            assert erased == [other.key <= memory.key for other in memories]

    async def test_whose_generations_are_dropped(self, store: Store) -> None:
        """Each tenant's own, whatever names the other one uses."""
        memories = []
        for tenant in ("a", "b"):
            thread = MemoryBuilder(Key(tenant, "resource", "t")).chat(4, tenant)
            memory = await store.commit(Memory(key=thread.key), thread.memory())
            memory = await store.commit(memory, thread.cover(2).memory())
            memories.append(await store.commit(memory, thread.swap_reflection().memory()))
        for memory in memories:
            assert await store.drop_generations(memory.key, memory.version, [0]) == 1
            left = [len(await store.generations(other.key, 1)) for other in memories]
            assert left == [int(other.key > memory.key) for other in memories]
