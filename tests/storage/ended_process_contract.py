"""What every server's store promises of a process that ends, or an answer that fails, anywhere in its
work: what is stored can be read, and the same work ends what was begun.

The places are before and after each command that goes to the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from operator import sub
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.values.changes import Change, ResourceWakeup
from tests.storage.event_contract import activation
from tests.storage.key_rotation_contract import OLD, OpenWith, fill, without_version
from tests.storage.memory_builder import KEY

# the class of a store's sessions, and the names of its methods that ask the server
Methods = tuple[type, *tuple[str, ...]]
EACH_END = pytest.mark.parametrize("is_process", [True, False], ids=["process", "error"])


class Ending:
    """Lets the `place`-th command fail, before it is sent or after it was done. `is_process`: so do all
    after it, as if the process had ended: nothing more of it reaches the server."""

    def __init__(
        self, patch: pytest.MonkeyPatch, methods: Methods, place: int, *, is_process: bool
    ) -> None:
        self._left = place
        self._is_process = is_process
        session, *names = methods
        for name in names:
            patch.setattr(session, name, self._wrap(getattr(session, name)))

    def _wrap(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(session: Any, *command: Any) -> Any:
            self._end_here()
            answer = await method(session, *command)
            self._end_here()
            return answer

        return ask

    def _end_here(self) -> None:
        self._left -= 1
        if self._left == 0 or (self._left < 0 and self._is_process):
            raise StorageError("ended")


async def load_all(store: Any, keys: list[Key]) -> dict[Key, Memory]:
    return {key: without_version(await store.load(key)) for key in keys}


async def end_everywhere(
    open_with: Callable[[], Awaitable[Any]],
    work: Callable[[Any], Awaitable[object]],
    check: Callable[[Any], Awaitable[None]],
    methods: Methods,
    *,
    is_process: bool,
) -> int:
    """Begin the work again and again, each time in a process that ends one place later, until one
    comes to its end. Another process reads in between. Return how many these were."""
    reader = store = await open_with()
    for place in itertools.count(1):
        if is_process:
            store = await open_with()
        is_done = False
        with pytest.MonkeyPatch.context() as patch, suppress(StorageError):
            Ending(patch, methods, place, is_process=is_process)
            await work(store)
            is_done = True
        if is_process:
            await store.close()
        await check(reader)
        if is_done:
            return place
    raise AssertionError


class EndedProcessContract:
    """A test of a backend has the fixture `open_with`."""

    methods: Methods
    removal: ModuleType  # forgets a few threads in each transaction

    @EACH_END
    async def test_an_end_while_a_tenant_is_forgotten(
        self, open_with: OpenWith, monkeypatch: pytest.MonkeyPatch, is_process: bool
    ) -> None:
        """As retention and people do it: each thread is whole or gone, and the next run ends it."""
        monkeypatch.setattr(self.removal, "MAX_BATCH_THREADS", 2)
        store = await open_with(OLD)
        keys = await fill(store)
        before = await load_all(store, keys)
        assert RESOURCE_THREAD in {key.thread for key in keys}

        async def forget_all(store: Any) -> None:
            while not (await store.forget_batch(KEY.tenant)).is_last:
                pass

        async def check(store: Any) -> None:
            for key, memory in (await load_all(store, keys)).items():
                wholes = (before[key], Memory(key=key))
                # look-ups that quote others go with them
                said = [message.item for message in memory.tail]
                assert said in [[message.item for message in whole.tail] for whole in wholes]
                assert memory.log in [whole.log for whole in wholes]

        ends = await end_everywhere(
            lambda: open_with(OLD), forget_all, check, self.methods, is_process=is_process
        )
        assert ends > 5
        assert await load_all(store, keys) == {key: Memory(key=key) for key in keys}

    @EACH_END
    async def test_an_end_while_a_thread_and_its_log_are_stored(
        self, open_with: OpenWith, is_process: bool
    ) -> None:
        """At each end both are stored with their events, or nothing is."""
        store = await open_with(OLD)
        keys = await fill(store)
        log_key = next(key for key in keys if key.thread == RESOURCE_THREAD)
        thread_key = next(
            key for key in keys if key[:2] == log_key[:2] and key.thread != RESOURCE_THREAD
        )

        async def read_counts(of: Any) -> tuple[int, int, int]:
            thread, log = await of.load(thread_key), await of.load(log_key)
            page = await of.events(None, [thread_key, log_key], 0, 100)
            return thread.turns, log.turns, len(page.events)

        before = await read_counts(store)

        async def commit(of: Any) -> None:
            changes = []
            for key in (thread_key, log_key):
                memory = await of.load(key)
                after = replace(memory, turns=memory.turns + 1, title="told again")
                changes.append(Change(memory, after, (), [activation("again")]))
            await of.commit_shared(*changes, ResourceWakeup(5.0, 1))

        async def check(of: Any) -> None:
            turns, log_turns, events = map(sub, await read_counts(of), before)
            assert turns == log_turns
            assert events == 2 * turns

        ends = await end_everywhere(
            lambda: open_with(OLD), commit, check, self.methods, is_process=is_process
        )
        assert ends > 3
        assert await read_counts(store) > before
