"""Which tenant and which thread a command is about."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from om_proxy.cli.thread_choice import (
    MAX_LISTED_TENANTS,
    MAX_LISTED_THREADS,
    choose_tenant,
    find_thread,
    read_tenants,
)
from om_proxy.common.errors import NotFound, UsageError
from om_proxy.memory.model import Key
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.canary_threads import store_canary_threads


async def open_with(folder: Path, *keys: Key) -> Store:
    await store_canary_threads(folder / "om.db", *keys)
    return await SqliteStore.open(folder / "om.db")


def name(thread: str, *, resource: str | None = None, tenant: str | None = None) -> Namespace:
    return Namespace(thread=thread, resource=resource, tenant=tenant)


async def test_the_only_tenant_needs_no_name(tmp_path: Path) -> None:
    store = await open_with(tmp_path, Key("local", "r", "t"), Key("local", "s", "u"))
    assert await choose_tenant(store, None) == "local"
    assert await choose_tenant(store, "local") == "local"
    with pytest.raises(NotFound, match=r"no memory of a tenant acme; the store has local$"):
        await choose_tenant(store, "acme")
    await store.close()


async def test_several_tenants_are_listed(tmp_path: Path) -> None:
    """The error names them and the option; a tenant whose name begins another's is its own."""
    names = ["a", "aa", "b"]
    store = await open_with(tmp_path, *(Key(tenant, "r", "t") for tenant in names))
    assert [tenant async for tenant in read_tenants(store, 10)] == names
    with pytest.raises(UsageError, match=r"--tenant; the store has a, aa, b$"):
        await choose_tenant(store, None)
    assert await choose_tenant(store, "aa") == "aa"
    await store.close()


async def test_many_tenants_are_not_all_listed(tmp_path: Path) -> None:
    keys = [Key(f"t{number:02}", "r", "t") for number in range(MAX_LISTED_TENANTS + 2)]
    store = await open_with(tmp_path, *keys)
    with pytest.raises(UsageError, match=r"t19 and others$"):
        await choose_tenant(store, None)
    await store.close()


async def test_an_empty_store_has_no_tenant(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    assert await choose_tenant(store, None) is None
    with pytest.raises(NotFound, match="the store has no threads"):
        await choose_tenant(store, "local")
    await store.close()


async def test_a_thread_is_found_by_its_name(tmp_path: Path) -> None:
    """Its resource and tenant are looked up; the options choose between several."""
    keys = [Key("a", "r", "t"), Key("a", "s", "t"), Key("b", "r", "t"), Key("b", "r", "only")]
    store = await open_with(tmp_path, *keys)
    assert await find_thread(store, name("only")) == keys[3]
    assert await find_thread(store, name("t", resource="s")) == keys[1]
    assert await find_thread(store, name("t", tenant="b")) == keys[2]
    with pytest.raises(UsageError, match="several threads") as several:
        await find_thread(store, name("t"))
    assert len(str(several.value).splitlines()) == 4
    assert "resource s, tenant a" in str(several.value)
    with pytest.raises(NotFound, match=r"of a thread t of resource q and tenant a$"):
        await find_thread(store, name("t", resource="q", tenant="a"))
    await store.close()


async def test_many_threads_of_one_name_are_not_all_listed(tmp_path: Path) -> None:
    keys = [Key("a", f"r{number:02}", "t") for number in range(MAX_LISTED_THREADS + 1)]
    store = await open_with(tmp_path, *keys)
    with pytest.raises(UsageError) as several:
        await find_thread(store, name("t"))
    assert str(several.value).endswith("\n  …")
    assert len(str(several.value).splitlines()) == MAX_LISTED_THREADS + 2
    await store.close()


async def test_a_name_may_be_cut_short(tmp_path: Path) -> None:
    """As long as one thread is meant. With --yes nobody looks at what was found."""
    keys = [Key("5f" * 32, "r", "kitchen-1"), Key("acme", "r", "kit"), Key("acme", "r", "van")]
    store = await open_with(tmp_path, *keys)
    assert await find_thread(store, name("kitchen")) == keys[0]
    assert await find_thread(store, name("kit")) == keys[1]
    assert await find_thread(store, name("ki", tenant="5f5f")) == keys[0]
    with pytest.raises(UsageError, match="several threads begin so"):
        await find_thread(store, name("ki"))
    with pytest.raises(NotFound, match=r"thread kitchne-1 in this store; did you mean kitchen-1"):
        await find_thread(store, name("kitchne-1"))
    with pytest.raises(NotFound):
        await find_thread(store, Namespace(**vars(name("kitchen")), yes=True))
    with pytest.raises(NotFound, match="the store has 5f5f5f5f, acme"):
        await find_thread(store, Namespace(**vars(name("van", tenant="ac")), yes=True))
    await store.close()


async def test_a_tenant_may_be_cut_short(tmp_path: Path) -> None:
    store = await open_with(tmp_path, *(Key(one, "r", "t") for one in ("ab" * 32, "abc", "abd")))
    assert await choose_tenant(store, "abab") == "ab" * 32
    assert await choose_tenant(store, "abc") == "abc"
    with pytest.raises(UsageError, match="several tenants begin with ab: ab"):
        await choose_tenant(store, "ab")
    await store.close()
