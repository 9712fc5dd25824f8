"""What every store promises about forgetting at a person's request, about the records of it, and
about reading everything of a thread. `StoreContract` inherits it."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.listing import ThreadSelection
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    RECEIPTS_KEPT_S,
    AuditRecord,
    ForgetResult,
    StoredReceipt,
)
from tests.storage.memory_builder import KEY, MemoryBuilder

NOW = 1_800_000_000.0
RECEIPT = StoredReceipt("r1", NOW, "s", "thread", "label", ForgetResult(1, 2, 3, 4, 5))


async def add_threads(
    store: Store, tenant: str, resource: str, count: int, raw: bytes | None = None
) -> list[Key]:
    """Store threads that share their resource's log, and the log. `raw`: of each message."""
    keys = []
    for number in range(count):
        key = Key(tenant, resource, f"thread {number}")
        memory = replace(MemoryBuilder(key).chat(3).memory(), scope="resource")
        if raw is not None:
            tail = [replace(m, item=replace(m.item, raw=raw)) for m in memory.tail]
            memory = replace(memory, tail=tuple(tail))
        log = await store.load(resource_key(key))
        shared = Change(log, replace(log, turns=log.turns + 1, title="notes"))
        await store.commit_shared(Change(Memory(key=key), memory), shared)
        keys.append(key)
    return keys


async def forget_all(store: Store, tenant: str, resource: str | None) -> ForgetResult:
    result = ForgetResult()
    for _ in range(100):
        batch = await store.forget_batch(tenant, resource)
        assert batch.result.threads == len(batch.threads), "it lists what it removes"
        result = result.add(batch.result)
        if batch.is_last:
            return result
    raise AssertionError("it never ends")


class RecordsContract:
    async def test_forgetting_what_has_changed_conflicts(self, store: Store) -> None:
        """The version is compared where the thread is removed. Nothing is removed with another."""
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        second = await store.commit(first, replace(first, turns=1))
        with pytest.raises(Conflict):
            await store.forget(KEY, first.version)
        assert await store.load(KEY) == second
        assert (await store.forget(KEY, second.version)).messages == 2
        assert await store.forget(KEY, second.version) == ForgetResult()

    @pytest.mark.parametrize("whole_tenant", [False, True], ids=["resource", "tenant"])
    async def test_everything_of_a_resource_reaches_its_end(
        self, store: Store, whole_tenant: bool
    ) -> None:
        """Threads, shared logs and leases are gone; another resource's and tenant's stay."""
        gone = await add_threads(store, "s", "r", 7)
        if whole_tenant:
            gone += await add_threads(store, "s", "q", 4)
            alone = Key("s", "only a log", RESOURCE_THREAD)
            await store.commit(Memory(key=alone), Memory(key=alone))
        stay = await add_threads(store, "t", "r", 2)
        if not whole_tenant:
            stay += await add_threads(store, "s", "r2", 2)
        for key in (*gone, Key("s", "r", "leased only"), *stay):
            assert await store.lease(key, "me", 60)
        before = [await store.load(key) for key in (*stay, *map(resource_key, stay))]
        result = await forget_all(store, "s", None if whole_tenant else "r")
        assert (result.threads, result.messages) == (len(gone), 3 * len(gone))
        for key in (*gone, *map(resource_key, gone)):
            assert await store.load(key) == Memory(key=key)
        assert await store.lease(Key("s", "r", "leased only"), "you", 60)
        assert await store.lease(gone[0], "you", 60)
        assert not await store.lease(stay[0], "you", 60)
        assert [await store.load(key) for key in (*stay, *map(resource_key, stay))] == before
        left = (await store.find_threads(ThreadSelection("s"))).threads
        assert {info.key for info in left} == {key for key in stay if key.tenant == "s"}
        assert await forget_all(store, "s", None if whole_tenant else "r") == ForgetResult()

    async def test_batch_of_one_tenants_thread_prompts_tell_nothing_of_it(
        self, store: Store
    ) -> None:
        """Whatever stops the calls, no prompt tells of a thread that a batch has removed."""
        count = 120
        keys = await add_threads(store, "s", "r", count)
        for key in sorted(keys)[-2:]:
            thread = await store.load(key)
            change = Change(thread, replace(thread, other_threads_text="of thread 0"))
            await store.commit_shared(change, None)
        batch = await store.forget_batch("s", "r")
        assert batch.threads
        assert not batch.is_last
        left = (await store.find_threads(ThreadSelection("s"), limit=count)).threads
        assert {info.key for info in left} == set(keys) - set(batch.threads)
        assert {(await store.load(info.key)).other_threads_text for info in left} == {""}
        forgotten = batch.result.threads
        assert forgotten + (await forget_all(store, "s", "r")).threads == count

    async def test_work_in_flight_brings_no_forgotten_resource_back(self, store: Store) -> None:
        [key] = await add_threads(store, "s", "r", 1)
        thread, log = await store.load(key), await store.load(resource_key(key))
        await forget_all(store, "s", "r")
        for attempt in (
            store.commit_shared(Change(thread, replace(thread, turns=9)), None),
            store.commit_shared(Change(Memory(key=key), thread), Change(log, log)),
        ):
            with pytest.raises(Conflict):
                await attempt
        assert await store.resource("s", "r") is None

    # ── records ──

    async def test_audit_of_tenants(self, store: Store) -> None:
        """Records come back as they were, the newest first, with growing ids, a tenant's own."""
        records = [
            AuditRecord(NOW + n, f"who {n}", "st"[n % 2], "forget_thread", f"label {n}", {"n": n})
            for n in range(7)
        ]
        await store.add_audit(records[:3])
        await store.add_audit([])
        await store.add_audit(records[3:])
        found = await store.audit(None)
        assert [record._replace(id=0) for record in found] == records[::-1]
        ids = [record.id for record in found]
        assert ids == sorted(set(ids), reverse=True)
        mine = await store.audit("s")
        assert [record.at - NOW for record in mine] == [6, 4, 2, 0]
        assert await store.audit("s", mine[1].id, 1) == mine[2:3]
        assert await store.audit("nobody") == ()

    async def test_a_record_of_a_clock_far_ahead_removes_none(self, store: Store) -> None:
        """What is old is for the pruning to say: a command may run by another clock."""
        ahead_s = 2 * AUDIT_KEPT_S + RECEIPTS_KEPT_S
        await store.add_audit([AuditRecord(NOW, "who", "s", "old")])
        await store.add_audit([AuditRecord(NOW + ahead_s, "command", "s", "ahead")])
        assert [record.what for record in await store.audit("s")] == ["ahead", "old"]
        ahead = RECEIPT._replace(id="r2", at=NOW + ahead_s)
        await store.add_receipt(RECEIPT)
        await store.add_receipt(ahead)
        assert [await store.receipt(id_, NOW) for id_ in ("r1", "r2")] == [RECEIPT, ahead]

    async def test_records_are_pruned_by_age(self, store: Store) -> None:
        """Nothing has to be written for old records and receipts to go, however many there are."""
        old, kept = AuditRecord(NOW, "who", "s", "old"), AuditRecord(NOW + 1, "who", "s", "kept")
        await store.add_audit([old] * 2_500)
        await store.add_audit([kept])
        await store.prune(NOW + AUDIT_KEPT_S)
        assert len(await store.audit("s", limit=9_000)) == 2_501
        await store.prune(NOW + AUDIT_KEPT_S + 0.5)
        assert [record.what for record in await store.audit("s")] == ["kept"]
        later = RECEIPT._replace(id="r2", at=NOW + 1)
        await store.add_receipt(RECEIPT)
        await store.add_receipt(later)
        await store.prune(NOW + RECEIPTS_KEPT_S + 0.5)
        assert [await store.receipt(id_, NOW) for id_ in ("r1", "r2")] == [None, later]

    async def test_audit_outlives_what_it_is_about(self, store: Store) -> None:
        await add_threads(store, "s", "r", 1)
        await store.add_audit([AuditRecord(NOW, "who", "s", "x")])
        await store.add_receipt(RECEIPT)
        await forget_all(store, "s", None)
        assert len(await store.audit("s")) == 1
        assert await store.receipt("r1", NOW) == RECEIPT

    async def test_records_move_with_their_tenant(self, store: Store) -> None:
        """They get the labels that their threads have there. Records about what is forgotten keep
        theirs; those of other tenants stay."""
        secret = await store.secret()
        [key] = await add_threads(store, "s", "r", 1)
        keys = (key, resource_key(key), key._replace(thread="forgotten"))
        labels = [label_thread(secret, one) for one in keys]
        at_new = [label_thread(secret, one._replace(tenant="new")) for one in keys]
        expected = (*at_new[:2], labels[2], "")
        for number, label in enumerate((*labels, "")):
            await store.add_audit([AuditRecord(NOW + number, "who", "s", "x", label, {"n": 1})])
            receipt = RECEIPT._replace(id=f"r{number}", label=label)
            await store.add_receipt(receipt)
        await store.add_audit([AuditRecord(NOW, "who", "other", "x", labels[0])])
        await store.add_receipt(RECEIPT._replace(id="theirs", tenant="other", label=labels[0]))
        before = await store.audit("s")
        await store.move_tenant("s", "new", lambda *_: None)
        assert await store.audit("s") == ()
        moved = await store.audit("new")
        assert tuple(record.label for record in reversed(moved)) == expected
        assert [r._replace(tenant="s", label="") for r in moved] == [
            r._replace(label="") for r in before
        ]
        for number, label in enumerate(expected):
            receipt = RECEIPT._replace(id=f"r{number}", tenant="new", label=label)
            assert await store.receipt(f"r{number}", NOW) == receipt
        [theirs] = await store.audit("other")
        assert theirs.label == labels[0]
        found = await store.receipt("theirs", NOW)
        assert found is not None
        assert (found.tenant, found.label) == ("other", labels[0])

    async def test_audit_is_read_page_by_page_across_a_move(self, store: Store) -> None:
        """The records of both tenants and later ones: each once, the newest first."""
        for tenant in ("s", "new", "s"):
            await store.add_audit([AuditRecord(NOW, "who", tenant, tenant)] * 2)
        await store.move_tenant("s", "new", lambda *_: None)
        await store.add_audit([AuditRecord(NOW, "who", "new", "later")] * 2)
        read: list[AuditRecord] = []
        while page := await store.audit("new", read[-1].id if read else None, 3):
            read += page
        assert [record.what for record in read] == [
            *("later", "later", "s", "s"),
            *("new", "new", "s", "s"),
        ]
        ids = [record.id for record in read]
        assert ids == sorted(set(ids), reverse=True)

    async def test_receipt(self, store: Store) -> None:
        """A receipt is read by its id, for a while."""
        await store.add_receipt(RECEIPT)
        later = RECEIPT._replace(id="r2", at=NOW + RECEIPTS_KEPT_S, label="other")
        await store.add_receipt(later)
        assert await store.receipt("r1", NOW + RECEIPTS_KEPT_S) == RECEIPT
        assert await store.receipt("r1", NOW + RECEIPTS_KEPT_S + 1) is None
        assert await store.receipt("r2", NOW) == later
        assert await store.receipt("r3", NOW) is None

    async def test_pending_bytes_of_a_receipt_are_gone_when_they_are(self, store: Store) -> None:
        pending = RECEIPT.result._replace(database="pending", log="pending")
        await store.add_receipt(RECEIPT._replace(result=pending))
        assert await store.receipt("r1", NOW) == RECEIPT

    # ── everything of a thread ──

    async def test_notes_of_all_generations_page_by_page(self, store: Store) -> None:
        thread = MemoryBuilder().chat(12)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        for step in (
            lambda: thread.cover(2).cover(2),
            thread.swap_reflection,
            lambda: thread.cover(2).chunk(1).chunk(1),
            lambda: thread.supersede([12]).chat(1),
            thread.swap_reflection,
        ):
            step()
            memory = await store.commit(memory, thread.memory(memory.version))
        logs = [*thread.generations(99)]
        if thread.generation not in {log.number for log in logs}:
            logs = [(thread.generation, thread.log), *logs]
        expected = {o.id: (o, "log") for _, log in logs for o in log}
        expected |= {o.id: (o, "chunk") for o in thread.chunks}
        found = await store.observations(KEY, 0, limit=99)
        assert found == tuple(expected[id_] for id_ in sorted(expected))
        assert len(found) > 3
        for after, limit in itertools.product((0, 2, 99), (0, 2)):
            page = tuple(stored for stored in found if stored.entry.id > after)[:limit]
            assert await store.observations(KEY, after, limit=limit) == page
        generations = await store.generation_entries(KEY, -1, limit=99)
        assert generations == tuple(
            (number, tuple(o.id for o in log)) for number, log in sorted(logs) if log
        )
        assert len(generations) == 3
        assert await store.generation_entries(KEY, generations[0].number, limit=1) == (
            generations[1],
        )
