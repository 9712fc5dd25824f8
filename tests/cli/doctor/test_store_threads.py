"""Work that is left to workers, and nobody does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from om_proxy.agents.model_access.completion import build_model_error
from om_proxy.cli.doctor.store import (
    CAUSES_BY_CODE,
    MAX_WAITING_S,
    UNKNOWN_CAUSE,
    examine_due_work,
    explain_cause,
    revive_thread,
)
from om_proxy.common.errors import Conflict, KeysAway, ModelError, StorageError, UnopenedText
from om_proxy.memory.model import Failures, Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from tests.memory.building import KEY, chat
from tests.support.performing import INHERITED, SMALL, open_parts


@pytest.mark.parametrize(
    ("settings", "waited_s", "works"),
    [
        (SMALL, MAX_WAITING_S + 1, False),
        (SMALL, MAX_WAITING_S - 1, True),
        (INHERITED, MAX_WAITING_S + 1, True),
    ],
    ids=["nobody does it", "not yet", "no worker can"],
)
async def test_work_that_waits(settings: str, waited_s: float, works: bool) -> None:
    async with open_parts(settings=settings) as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        (finding,) = await examine_due_work(p.store, memory.due_at + waited_s)
        assert finding.works is works
        assert ("start om-proxy serve --worker" in finding.text) is not works


async def test_work_under_way() -> None:
    """A worker has it."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        await p.store.lease(KEY, "a worker", 100.0)
        (finding,) = await examine_due_work(p.store, memory.due_at + 2 * MAX_WAITING_S)
        assert finding.works


async def test_revived_thread_is_due_now() -> None:
    """Its failures are cleared, and nothing else. A turn that came first stays."""
    async with open_parts() as p:
        held = await p.store_tail(chat(3, 50))
        parked = replace(held, failures=Failures(8, 1e10, True, "observe om_model"), due_at=None)
        parked = await p.store.commit(held, parked)
        assert await p.store.due_threads(1e11, 9) == ()
        store = Overtaken(p.store)
        assert await revive_thread(store, KEY)
        revived = await p.store.load(KEY)
        assert revived == replace(
            parked,
            version=revived.version,
            title="overtaken",
            failures=Failures(),
            due_at=revived.due_at,
        )
        assert await p.store.due_threads(await p.store.clock(), 9) == (KEY,)


class Overtaken(ForwardingStore):
    """A store in which another commit comes before the first one."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.is_overtaken = False

    @property
    def inner(self) -> Store:
        return self._inner

    async def load(self, key: Key) -> Memory:
        memory = await self.inner.load(key)
        if not self.is_overtaken:
            self.is_overtaken = True
            await self.inner.commit(memory, replace(memory, title="overtaken"))
        return memory


@pytest.mark.parametrize("error", [UnopenedText, KeysAway, Conflict])
@pytest.mark.parametrize("key", [KEY, KEY._replace(tenant="another")])
async def test_only_a_readable_thread_is_revived(key: Key, error: type[StorageError]) -> None:
    """A thread that is gone is not made, and one that does not open is left as it is."""
    async with open_parts() as p:
        stored = await p.store_tail(chat(3, 50))
        assert not await revive_thread(Unreadable(p.store, error), key)
        assert await p.store.load(KEY) == stored
        assert await p.store.load(KEY._replace(tenant="another")) == Memory(
            key=KEY._replace(tenant="another")
        )


class Unreadable(ForwardingStore):
    """A store with a thread that cannot be read now."""

    def __init__(self, inner: Store, error: type[StorageError]) -> None:
        self._inner = inner
        self.error = error

    @property
    def inner(self) -> Store:
        return self._inner

    async def load(self, key: Key) -> Memory:
        if key == KEY:
            raise self.error("it cannot be read")
        return await self.inner.load(key)


def model_errors(kind: type[ModelError] = ModelError) -> Iterator[type[ModelError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from model_errors(one)


def test_every_cause_has_its_words() -> None:
    """Every error of a memory model has an explanation."""
    assert {kind.code for kind in model_errors()} == set(CAUSES_BY_CODE)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("observe om_cut_off", ["observing failed", "cut off", "max_output_tokens"]),
        ("reflect om_unusable", ["condensing notes failed", "held no notes"]),
        ("observe om_model 401: check memory.api_key", ["answered 401", "check memory.api_key"]),
        ("observe om_model_busy 503", ["answered 503"]),
        ("", [UNKNOWN_CAUSE]),
        ("observe om_of_tomorrow", [UNKNOWN_CAUSE]),
    ],
)
def test_in_words(stored: str, said: list[str]) -> None:
    """The sentence says what failed, why, and what to do; an unknown cause is called unknown."""
    assert all(text in explain_cause(stored) for text in said)


def test_a_cause_quotes_nobody() -> None:
    """A server's message and code are not stored."""
    error = build_model_error(
        401, code="sk-CANARY", message="the CANARY sings", headers={}, now=0.0
    )
    assert error.cause.startswith("om_model 401: check memory.api_key")
    assert "CANARY" not in error.cause
