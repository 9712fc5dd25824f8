"""The leases of a process, beside the scheduler's tests of them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.background.leases import Leases
from om_proxy.memory.model import Key
from om_proxy.storage.base import Store

KEY = Key("a", "r", "t")


class SlowStore:
    """A store whose statement goes on though its caller left, as PostgreSQL's does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.done: list[str] = []
        self._error = error

    async def lease(self, _key: Key, _holder: str, _seconds: float) -> bool:
        self.is_asked.set()
        await self.may_answer.wait()
        self.done.append("taken")
        if self._error:
            raise self._error
        return True

    async def release(self, _key: Key, _holder: str) -> None:
        self.done.append("released")


@pytest.mark.parametrize("error", [None, StorageError("cut")], ids=["taken", "failed"])
async def test_a_lease_is_given_back_after_it_was_taken(error: Exception | None) -> None:
    """Its caller left while the statement was under way. Otherwise the lease would stand for as
    long as that of a process that crashed."""
    store = SlowStore(error)
    leases = Leases(cast(Store, store), lambda: 0.0)
    acquiring = asyncio.create_task(leases.acquire(KEY))
    await store.is_asked.wait()
    acquiring.cancel()
    await asyncio.wait({acquiring})
    releasing = asyncio.create_task(leases.release(KEY))
    await asyncio.sleep(0)
    store.may_answer.set()
    await releasing
    assert store.done == ["taken", "released"]
