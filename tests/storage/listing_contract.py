"""What every store promises about the lists that people page through. `StoreContract` inherits
it."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import RESOURCE_THREAD, Failures, Key, Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.listing import (
    MAX_COUNTED_THREADS,
    ThreadInfo,
    ThreadOrder,
    ThreadPlace,
    ThreadSelection,
    ThreadState,
    find_place,
    is_selected,
)
from tests.engine.recall.stored_conversations import CURRENT_KEY, look_into
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.long_forms import IS_LONG

THREAD_STATES: tuple[ThreadState | None, ...] = (None, *get_args(ThreadState))
ORDERS: tuple[ThreadOrder, ...] = get_args(ThreadOrder)
PREFIXES = (None, "", "a", "ab", "abc", "Hol", "hol", "é", "%", "a_", "\U0010ffff", "\ud7ff", "zz")
NAMES = ("a", "ab", "abc", "b", "é", "a%b", "\U0010ffff", "\ud7ffx")


async def make_threads(store: Store) -> list[Key]:
    """Store threads of two tenants with all kinds of names, titles, states and times."""
    keys = []
    for number, (tenant, resource, thread) in enumerate(
        itertools.product("st", ("a", "ab", "é", "z"), NAMES)
    ):
        key = Key(tenant, resource, thread)
        builder = MemoryBuilder(key).chat(3)
        first = await store.commit(Memory(key=key), builder.memory())
        if number % 3 == 0:
            builder.cover(2)
        changes: dict[str, Any] = {
            "turn_at": None if number % 7 == 0 else 400.0 * (number % 5),
            "title": (None, "Holidays", "abacus", "a\ufffd")[number % 4],
            "failures": Failures(number % 2, 9.0, number % 5 == 4, "observe om_cut_off"),
            "model": "actor",
            "overrides": b'{"observe_at":900}' if number % 2 else None,
        }
        await store.commit(first, replace(builder.memory(first.version), **changes))
        keys.append(key)
    return keys


async def list_pages(
    store: Store, selection: ThreadSelection, limit: int
) -> tuple[list[ThreadInfo], list[int]]:
    """Return a whole list, and how many threads each of its pages held."""
    found: list[ThreadInfo] = []
    sizes: list[int] = []
    after: ThreadPlace | None = None
    while True:
        page = await store.find_threads(selection, after, limit)
        found += page.threads
        sizes.append(len(page.threads))
        if page.end is None:
            return found, sizes
        after = page.end


def expected_list(infos: tuple[ThreadInfo, ...], selection: ThreadSelection) -> list[ThreadInfo]:
    """Return the list as its rules have it: `infos` are all threads, in the order of names."""
    found = [info for info in infos if is_selected(info, selection)]
    if selection.order == "recent":
        found.sort(key=lambda info: (info.active_at, info.row_id), reverse=True)
    return found


async def compare_lists(store: Store, limits: tuple[int, ...]) -> list[int]:
    """Compare every list, in the short form each seventh, with its rules. Return the sizes of all
    pages."""
    infos = await store.threads(None, limit=1_000)
    is_encrypted = (await store.describe()).encrypted
    sizes = []
    selected = itertools.product(
        ("s", None, "nobody"), (None, "ab", "none"), PREFIXES, THREAD_STATES, ORDERS
    )
    for tenant, resource, prefix, state, order in itertools.islice(
        selected, 0, None, 1 if IS_LONG else 7
    ):
        selection = ThreadSelection(tenant, resource, prefix, state, order)
        # nobody finds an encrypted title
        expected = expected_list(infos, selection._replace(searches_titles=not is_encrypted))
        for limit in limits:
            found, page_sizes = await list_pages(store, selection, limit)
            assert found == expected, (selection, limit)
            assert max(page_sizes) <= limit
            sizes += page_sizes
    return sizes


class ListingContract:
    async def test_lists_of_tenants_are_as_their_rules_have_them(self, store: Store) -> None:
        """Each list holds what is selected, once and in order, whatever the size of its pages."""
        keys = await make_threads(store)
        infos = await store.threads(None, limit=1_000)
        assert [info.key for info in infos] == sorted(keys)
        for state in THREAD_STATES:
            kept = expected_list(infos, ThreadSelection(None, state=state))
            assert 0 < len(kept) < len(infos) or state is None
        await compare_lists(store, (5, 100))

    @pytest.mark.parametrize("tenant", ["s", None])
    async def test_titles_of_tenants_are_searched_if_asked(
        self, store: Store, tenant: str | None
    ) -> None:
        """Who may read no text cannot guess a title letter by letter."""
        key = Key("s", "r", "t")
        memory = MemoryBuilder(key).chat(2).memory()
        await store.commit(Memory(key=key), replace(memory, title="Zebra"))
        is_readable = not (await store.describe()).encrypted
        for prefix, found in (("Ze", is_readable), ("Zx", 0), ("t", 1), ("r", 1)):
            selection = ThreadSelection(tenant, prefix=prefix)
            assert len((await store.find_threads(selection)).threads) == found
        hidden = ThreadSelection(tenant, prefix="Ze", searches_titles=False)
        assert (await store.find_threads(hidden)).threads == ()
        named = hidden._replace(prefix="t")
        assert len((await store.find_threads(named)).threads) == 1

    async def test_list_goes_on_where_a_thread_is_gone(self, store: Store) -> None:
        """The place of a thread that was forgotten, or has moved to the top, still is one."""
        keys = [Key("s", "r", name) for name in "abcd"]
        for at, key in enumerate(keys):
            memory = replace(MemoryBuilder(key).chat(1).memory(), turn_at=float(at))
            await store.commit(Memory(key=key), memory)
        for order, left in {"name": "cd", "recent": "a"}.items():
            assert order in ORDERS
            selection = ThreadSelection("s", order=order)
            infos = {i.key.thread: i for i in (await store.find_threads(selection)).threads}
            page = await store.find_threads(selection, find_place(infos["b"]))
            assert "".join(info.key.thread for info in page.threads) == left
        place = find_place(infos["c"])
        await store.forget(keys[2])
        page = await store.find_threads(ThreadSelection("s", order="recent"), place)
        assert [info.key.thread for info in page.threads] == ["b", "a"]

    async def test_conversations_of_one_moment_are_looked_up_once(self, store: Store) -> None:
        """More than 50 pages hold: the answers go on by time, and then behind a conversation."""
        stored = look_into(store)
        keys = [CURRENT_KEY._replace(thread=f"thread {number}") for number in range(53)]
        for key in keys:
            await stored.commit(MemoryBuilder(key).chat(1), turn_at=1_700_000_000.123456)
        shown = await stored.list_pages(limit=1)
        assert shown == [stored.label(key)[:8] for key in reversed(keys)]

    async def test_windows_of_a_line(self, store: Store) -> None:
        """A line has the tokens of the tail, and of the log that the thread reads."""
        builder = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), builder.memory())
        memory = builder.cover(2).cover(2).memory()
        await store.commit(first, memory)
        [info] = (await store.find_threads(ThreadSelection(KEY.tenant))).threads
        assert (info.has_notes, info.pending_tokens) == (True, memory.pending_tokens)
        assert info.log_tokens == memory.log.tokens > 0

    async def test_line_of_a_thread_that_shares_its_log(self, store: Store) -> None:
        """Its notes are those of its resource; the log itself is no line."""
        log_key = resource_key(KEY)
        notes = MemoryBuilder(log_key).chat(4)
        before = await store.commit(Memory(key=log_key), notes.memory())
        log = notes.cover(4).memory(before.version)
        shared = Change(before, log)
        thread = replace(MemoryBuilder().chat(2).memory(), scope="resource")
        await store.commit_shared(Change(Memory(key=KEY), thread), shared)
        [info] = (await store.find_threads(ThreadSelection(KEY.tenant))).threads
        assert (info.key, info.pending_tokens) == (KEY, thread.pending_tokens)
        assert info.log_tokens == log.log.tokens > 0

    async def test_title_of_a_line_changes_with_it(self, store: Store) -> None:
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        for title in ("Docks", None, "Piers"):
            memory = await store.commit(memory, replace(memory, title=title))
            assert (await store.load(KEY)).title == title
            found = (await store.find_threads(ThreadSelection(KEY.tenant, prefix="Pi"))).threads
            is_readable = not (await store.describe()).encrypted
            assert len(found) == (title == "Piers" and is_readable)

    async def test_resources_of_other_tenants(self, store: Store) -> None:
        """A list steps over the resources that only another tenant has."""
        for tenant, resource in (("s", "a"), ("t", "b"), ("s", "c"), ("t", "d")):
            key = Key(tenant, resource, "one")
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
        for tenant, names in (("s", ["a", "c"]), ("t", ["b", "d"])):
            assert [info.resource for info in await store.resources(tenant)] == names
            assert [info.resource for info in await store.resources(tenant, names[0])] == names[1:]

    async def test_resources_of_tenants(self, store: Store) -> None:
        """Resources are listed by name, with the number of their threads and their shared log."""
        await make_threads(store)
        log_key = Key("s", "ab", RESOURCE_THREAD)
        before = Memory(key=log_key)
        await store.commit(before, replace(before, failures=Failures(2, 0.0, False, "reflect x")))
        alone = Key("s", "b", RESOURCE_THREAD)
        await store.commit(Memory(key=alone), Memory(key=alone))
        listed = await store.resources("s")
        assert [(info.tenant, info.resource, info.threads) for info in listed] == [
            ("s", "a", len(NAMES)),
            ("s", "ab", len(NAMES)),
            ("s", "b", 0),
            ("s", "z", len(NAMES)),
            ("s", "é", len(NAMES)),
        ]
        logs = [info.shared_log for info in listed]
        assert [log and log.key for log in logs] == [None, log_key, alone, None, None]
        assert logs[1] is not None
        assert (logs[1].failures, logs[1].cause) == (2, "reflect x")
        assert await store.resources("s", "ab", 2) == listed[2:4]
        assert await store.resources("s", "é") == ()
        assert await store.resources("s", None, 0) == ()
        assert await store.resources("nobody") == ()
        assert [await store.resource("s", info.resource) for info in listed] == list(listed)
        assert await store.resource("t", "b") is None
        assert await store.resource("s", "none") is None

    @pytest.mark.parametrize("more", [0, 1])
    async def test_threads_of_a_resource_are_counted_so_far(self, store: Store, more: int) -> None:
        for number in range(MAX_COUNTED_THREADS + more):
            key = Key("s", "r", f"{number}")
            await store.commit(Memory(key=key), Memory(key=key))
        [info] = await store.resources("s")
        assert (info.threads, info.has_more_threads) == (MAX_COUNTED_THREADS, bool(more))
