"""The part of the store's contract about the ledger by day."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import astuple, replace

from om_proxy.common.errors import StorageError
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.values.records import (
    LEDGER_KEPT_DAYS,
    SECONDS_PER_DAY,
    Grouping,
    LedgerBatch,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)
from tests.storage.memory_builder import KEY, MemoryBuilder

# every figure another one, none of them 0
FIGURES = Account(*range(1, len(Account.__struct_fields__) + 1))
LINE = LedgerLine(KEY.tenant, KEY.resource, 20_000, "gpt-4o", "actor", "full")
THEIRS = LINE._replace(tenant="other tenant")


def times(count: int) -> Account:
    return Account(*(figure * count for figure in astuple(FIGURES)))


def batch(number: int, lines: Mapping[LedgerLine, Account], writer: str = "w") -> LedgerBatch:
    return LedgerBatch(writer, number, lines)


async def sums(
    store: Store, by: Grouping = "resource", tenant: str | None = None, **more: int
) -> tuple[LedgerSum, ...]:
    return await store.sum_ledger(LedgerQuery(tenant, by, **more))  # type: ignore[arg-type] # by name


async def by_resource(store: Store, tenant: str | None = None) -> dict[str, int]:
    """Return how many times the figures stand under each name."""
    found: dict[str, Account] = {}
    for group, _, _, account in await sums(store, tenant=tenant):
        name = "/".join(map(str, group))
        found[name] = found.get(name, EMPTY_ACCOUNT).add(account)
    counts = {name: account.calls for name, account in found.items()}
    assert {name: times(count) for name, count in counts.items()} == found
    return counts


class LedgerContract:
    """Mixed into the contract: `store` is its fixture."""

    async def _with_threads(self, store: Store, *keys: Key) -> None:
        for key in keys:
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())

    async def test_lines_of_the_ledger_add_up(self, store: Store) -> None:
        """Every figure comes back, as often as it was added."""
        assert await sums(store) == ()
        await self._with_threads(store, KEY)
        await store.add_to_ledger(batch(1, {LINE: FIGURES}))
        expected = LedgerSum((KEY.tenant, KEY.resource), "actor", "full", FIGURES)
        assert await sums(store) == (expected,)
        await store.add_to_ledger(batch(2, {LINE: FIGURES}))
        assert await sums(store) == (expected._replace(account=times(2)),)

    async def test_old_lines_of_the_ledger_go(self, store: Store) -> None:
        """Of all tenants, however many there are; the first day that is kept stays."""
        await self._with_threads(store, KEY)
        today = LINE.day + LEDGER_KEPT_DAYS
        kept = {LINE: FIGURES, LINE._replace(day=today): FIGURES}
        old = {
            LINE._replace(tenant=tenant, day=LINE.day - 1, model=f"m{number}"): FIGURES
            for tenant in (KEY.tenant, "other tenant")
            for number in range(1_500)
        }
        await store.add_to_ledger(batch(1, kept | old))
        await store.prune((today + 0.5) * SECONDS_PER_DAY)
        assert [found.group for found in await sums(store, "day")] == [(LINE.day,), (today,)]
        await store.prune((today + 1.0) * SECONDS_PER_DAY)
        assert [found.group for found in await sums(store, "day")] == [(today,)]

    async def test_a_batch_of_the_ledger_is_added_once(self, store: Store) -> None:
        """A batch may be sent again after an error: its writer cannot know that it was added. Two
        writers count apart."""
        await self._with_threads(store, KEY)
        for number in (1, 1, 2, 2, 1):
            await store.add_to_ledger(batch(number, {LINE: FIGURES}))
        assert await by_resource(store) == {f"{KEY.tenant}/{KEY.resource}": 2}
        await store.add_to_ledger(batch(1, {LINE: FIGURES}, "another"))
        assert await by_resource(store) == {f"{KEY.tenant}/{KEY.resource}": 3}

    async def test_a_batch_of_the_ledger_is_added_whole_or_not(self, store: Store) -> None:
        """A line that cannot be written takes the others with it, and the batch may come again."""
        await self._with_threads(store, KEY)
        broken = replace(FIGURES, calls=2**63)
        with pytest.raises(StorageError):
            await store.add_to_ledger(batch(1, {LINE: FIGURES, LINE._replace(model="m"): broken}))
        assert await sums(store) == ()
        await store.add_to_ledger(batch(1, {LINE: FIGURES}))
        assert len(await sums(store)) == 1

    @pytest.mark.parametrize(
        ("by", "groups"),
        [
            ("day", [(20_000,), (20_001,)]),
            ("model", [("",), ("gpt-4o",)]),
            ("resource", [("other tenant", ""), (KEY.tenant, KEY.resource)]),
        ],
    )
    async def test_groups_of_the_ledger(
        self, store: Store, by: Grouping, groups: list[tuple[object, ...]]
    ) -> None:
        """Sums come by group, in order, page by page; kinds of calls stand apart in each."""
        await self._with_threads(store, KEY)
        later = LINE._replace(day=20_001)
        lines = {
            LINE: FIGURES,
            later: FIGURES,
            THEIRS: FIGURES,
            LINE._replace(who="observer", model=""): FIGURES,
            LINE._replace(history="partial"): FIGURES,
        }
        await store.add_to_ledger(batch(1, lines))
        whole = await sums(store, by)
        assert (
            sorted({s.group for s in whole})
            == groups
            == list(dict.fromkeys(s.group for s in whole))
        )
        assert sum(s.account.calls for s in whole) == len(lines)
        assert len({(s.group, s.who, s.history) for s in whole}) == len(whole)
        first = await sums(store, by, limit=1)
        assert first == tuple(s for s in whole if s.group == groups[0])
        rest = await store.sum_ledger(LedgerQuery(None, by, after=first[-1].group))
        assert first + rest == whole

    async def test_days_of_the_ledger(self, store: Store) -> None:
        """Both days belong to the span."""
        await self._with_threads(store, KEY)
        lines = {LINE._replace(day=day): FIGURES for day in range(20_000, 20_005)}
        await store.add_to_ledger(batch(1, lines))
        found = await sums(store, "day", first_day=20_001, last_day=20_003)
        assert [s.group for s in found] == [(20_001,), (20_002,), (20_003,)]
        assert (await sums(store, first_day=20_001, last_day=20_003))[0].account == times(3)
        assert await sums(store, "model", first_day=20_005) == ()

    async def test_the_ledger_of_one_resource_of_tenants(self, store: Store) -> None:
        """Of tenants with a resource of the same name, the named tenant's lines are found."""
        other = KEY._replace(resource="other")
        await self._with_threads(store, KEY, other, KEY._replace(tenant=THEIRS.tenant))
        lines = {LINE: FIGURES, LINE._replace(resource="other"): times(2), THEIRS: times(4)}
        await store.add_to_ledger(batch(1, lines))
        for resource, count in ((KEY.resource, 1), ("other", 2)):
            query = LedgerQuery(KEY.tenant, "resource", resource=resource)
            assert [s.account for s in await store.sum_ledger(query)] == [times(count)]

    async def test_the_ledger_of_one_model(self, store: Store) -> None:
        """Of one resource or all, by whatever; a name of no line finds none."""
        other = KEY._replace(resource="other")
        await self._with_threads(store, KEY, other)
        small, elsewhere = LINE._replace(model="small"), LINE._replace(resource="other")
        lines = {LINE: FIGURES, elsewhere: times(2), small: times(4)}
        await store.add_to_ledger(batch(1, lines))
        for by in ("day", "model"):
            for model, resource, count in (
                (LINE.model, None, 3),
                (LINE.model, "other", 2),
                ("small", None, 4),
                ("", None, None),
            ):
                query = LedgerQuery(None, by, resource=resource, model=model)  # type: ignore[arg-type] # a list of literals
                found = [s.account for s in await store.sum_ledger(query)]
                assert found == ([times(count)] if count else [])

    async def test_the_ledger_of_tenants(self, store: Store) -> None:
        """A tenant reaches no line of another one, whatever it asks by."""
        theirs = KEY._replace(tenant=THEIRS.tenant)
        await self._with_threads(store, KEY, theirs)
        await store.add_to_ledger(batch(1, {LINE: FIGURES, THEIRS: times(2)}))
        for by in ("day", "model", "resource"):
            for tenant, count in ((KEY.tenant, 1), (THEIRS.tenant, 2), ("no one", None)):
                found = await store.sum_ledger(LedgerQuery(tenant, by))  # type: ignore[arg-type] # a list of literals
                assert [s.account for s in found] == ([times(count)] if count else [])

    async def test_a_forgotten_resource_leaves_the_ledger_of_tenants(self, store: Store) -> None:
        """With its last thread, the resource's lines are folded into the nameless one. Another
        tenant's resource of the same name keeps its own, and so does another resource."""
        second = KEY._replace(thread="second")
        theirs, other = KEY._replace(tenant=THEIRS.tenant), KEY._replace(resource="other")
        await self._with_threads(store, KEY, second, theirs, other)
        lines = {
            LINE: FIGURES,
            THEIRS: FIGURES,
            LINE._replace(resource="other"): FIGURES,
            LINE._replace(resource="unknown"): FIGURES,
        }
        await store.add_to_ledger(batch(1, lines))
        named = {f"{KEY.tenant}/{KEY.resource}": 1, f"{KEY.tenant}/other": 1, f"{KEY.tenant}/": 1}
        assert await by_resource(store, KEY.tenant) == named
        await store.forget(KEY)
        assert await by_resource(store, KEY.tenant) == named
        await store.forget(second)
        assert await by_resource(store, KEY.tenant) == {
            f"{KEY.tenant}/other": 1,
            f"{KEY.tenant}/": 2,
        }
        assert await by_resource(store, THEIRS.tenant) == {f"{THEIRS.tenant}/{KEY.resource}": 1}

    @pytest.mark.parametrize("resource", [KEY.resource, None], ids=["a resource", "a tenant"])
    async def test_resources_of_tenants_leave_the_ledger_together(
        self, store: Store, resource: str | None
    ) -> None:
        """Forgetting a whole resource or tenant folds the lines of each of its resources. Of
        tenants each has its own."""
        keys = [KEY._replace(thread=f"t{number}") for number in range(5)]
        await self._with_threads(store, *keys, KEY._replace(tenant=THEIRS.tenant))
        await store.add_to_ledger(batch(1, {LINE: FIGURES, THEIRS: FIGURES}))
        while not (await store.forget_batch(KEY.tenant, resource)).is_last:
            pass
        assert await by_resource(store) == {
            f"{KEY.tenant}/": 1,
            f"{THEIRS.tenant}/{KEY.resource}": 1,
        }

    async def test_no_line_brings_a_forgotten_name_back(self, store: Store) -> None:
        """A process may add what it counted before the thread was forgotten."""
        await self._with_threads(store, KEY)
        await store.forget(KEY)
        await store.add_to_ledger(batch(1, {LINE: FIGURES}))
        assert await by_resource(store) == {f"{KEY.tenant}/": 1}

    async def test_a_resource_of_the_ledger_is_a_tenants_own(self, store: Store) -> None:
        """What another tenant has stored under the name of a resource gives it no name here: of
        tenants each has its own."""
        await self._with_threads(store, KEY._replace(tenant=THEIRS.tenant))
        await store.add_to_ledger(batch(1, {LINE: FIGURES}))
        assert await by_resource(store) == {f"{KEY.tenant}/": 1}

    async def test_the_ledger_is_moved_with_its_tenant(self, store: Store) -> None:
        """All lines of the old tenant are the new one's, added to those that it has; a third
        tenant keeps its own."""
        third = LINE._replace(tenant="third")
        await self._with_threads(store, KEY, KEY._replace(tenant="third"))
        nameless = LINE._replace(resource="gone")
        new_nameless = THEIRS._replace(resource="gone")
        lines = dict.fromkeys((LINE, nameless, new_nameless, third), FIGURES)
        await store.add_to_ledger(batch(1, lines))
        await store.move_tenant(KEY.tenant, THEIRS.tenant, lambda *_: None)
        assert await by_resource(store) == {
            f"{THEIRS.tenant}/{KEY.resource}": 1,
            f"{THEIRS.tenant}/": 2,
            f"third/{KEY.resource}": 1,
        }
