"""A process that ends, or an answer that fails, anywhere in work on a Redis leaves a store that can be
read, and the same work ends what it began.

A script happens as a whole, so the places are before and after each command that goes to the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from om_proxy.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.encryption.conversion import encrypt_memories
from om_proxy.storage.redis import removal
from om_proxy.storage.redis.log_rewriting import LogRewriter
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.store import RedisStore
from tests.storage.conversion_contract import OLD, OpenWith, fill, without_version
from tests.storage.memory_builder import KEY


@pytest.fixture(autouse=True)
def no_rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's rewriting asks the server beside the work."""
    monkeypatch.setattr(LogRewriter, "start", lambda _: None)


class Ending:
    """Lets the `place`-th command fail, before it is sent or after it was done. `is_process`: so do all
    after it, as if the process had ended: nothing more of it reaches the server."""

    def __init__(self, patch: pytest.MonkeyPatch, place: int, *, is_process: bool) -> None:
        self._left = place
        self._is_process = is_process
        for name in ("call", "_call_some"):
            patch.setattr(Session, name, self._wrap(getattr(Session, name)))

    def _wrap(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(session: Session, *command: Any) -> Any:
            self._end_here()
            answer = await method(session, *command)
            self._end_here()
            return answer

        return ask

    def _end_here(self) -> None:
        self._left -= 1
        if self._left == 0 or (self._left < 0 and self._is_process):
            raise StorageError("ended")


async def load_all(store: RedisStore, keys: list[Key]) -> dict[Key, Memory]:
    return {key: without_version(await store.load(key)) for key in keys}


async def end_everywhere(
    open_with: Callable[[], Awaitable[RedisStore]],
    work: Callable[[RedisStore], Awaitable[object]],
    check: Callable[[RedisStore], Awaitable[None]],
    *,
    is_process: bool,
) -> int:
    """Begin the work again and again, each time in a process that ends one place later, until one
    comes to its end. Return how many these were."""
    for place in itertools.count(1):
        store = await open_with()
        is_done = False
        with pytest.MonkeyPatch.context() as patch, suppress(StorageError):
            Ending(patch, place, is_process=is_process)
            await work(store)
            is_done = True
        await check(await open_with())
        if is_done:
            return place
    raise AssertionError


@pytest.mark.parametrize("is_process", [True, False], ids=["process", "error"])
async def test_an_end_while_texts_are_encrypted(open_with: OpenWith, is_process: bool) -> None:
    """Every memory reads as before at each end, and the next run encrypts what is left."""
    plain = await open_with()
    keys = await fill(plain)
    before = await load_all(plain, keys)
    await open_with(OLD, begins_encryption=True)

    async def check(store: RedisStore) -> None:
        assert await load_all(store, keys) == before

    ends = await end_everywhere(
        lambda: open_with(OLD), encrypt_memories, check, is_process=is_process
    )
    assert ends > 5
    assert await encrypt_memories(await open_with(OLD)) == 0


@pytest.mark.parametrize("is_process", [True, False], ids=["process", "error"])
async def test_an_end_while_a_tenant_is_forgotten(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch, is_process: bool
) -> None:
    """As retention and people do it: each thread is whole or gone, and the next run ends it."""
    monkeypatch.setattr(removal, "MAX_BATCH_THREADS", 2)
    store = await open_with(OLD)
    keys = await fill(store)
    before = await load_all(store, keys)

    async def forget_all(store: RedisStore) -> None:
        while not (await store.forget_batch(KEY.tenant)).is_last:
            pass

    async def check(store: RedisStore) -> None:
        for key, memory in (await load_all(store, keys)).items():
            whole_or_gone = (before[key], Memory(key=key))
            assert [m.item for m in memory.tail] in [
                [m.item for m in w.tail] for w in whole_or_gone
            ]
            assert memory.log in [whole.log for whole in whole_or_gone]

    ends = await end_everywhere(lambda: open_with(OLD), forget_all, check, is_process=is_process)
    assert ends > 5
    assert await load_all(store, keys) == {key: Memory(key=key) for key in keys}
    assert RESOURCE_THREAD in {key.thread for key in keys}
