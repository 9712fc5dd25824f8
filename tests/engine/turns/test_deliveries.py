"""A lone message sent again: a retry if its reply is known not to have gone out whole, else the
same words once more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import StorageError
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.deliveries import RETRY_WINDOW_S, Deliveries
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.model import Key, Memory
from tests.engine.turns.test_engine import Turns, make_reply, open_turns, user
from tests.memory.building import KEY
from tests.support.performing import Parts


def restarted(p: Parts) -> Turns:
    """The same store under another engine, which remembers nothing of what went out."""
    return Turns(
        p,
        Engine(p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, clock=p.clock),
    )


async def thin(t: Turns, text: str, reply: str, *, delivered: bool) -> str:
    """One turn of a client that sends only its newest message; how it was recognised."""
    opened = await t.open([user(text)])
    committed = await t.engine.close_turn(opened, make_reply(reply))
    if delivered:
        t.engine.record_delivery(opened.opened, committed.reply_seq)
        await t.engine.deliveries.write()
    return opened.opened.case


@pytest.mark.parametrize("after_a_restart", [False, True])
@pytest.mark.parametrize("delivered", [False, True])
async def test_the_same_bytes_again(delivered: bool, after_a_restart: bool) -> None:
    """A reply that never went out whole is answered in its place; behind one that did, the same
    words are a new message."""
    async with open_turns() as t:
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=delivered)
        again = restarted(t.parts) if after_a_restart else t
        case = await thin(again, "ok", "c", delivered=True)
        if delivered:
            assert (case, await t.live()) == ("delta", ["a", "b", "ok", "unseen", "ok", "c"])
        else:
            assert (case, await t.live()) == ("retry", ["a", "b", "ok", "c"])


async def test_a_thread_made_anew_counts_from_the_start() -> None:
    """A delivery of a forgotten thread says nothing of the thread that follows under its name."""
    async with open_turns() as t:
        for word in ("a", "b", "c", "d"):
            await thin(t, word, "so", delivered=True)
        await t.parts.memories.forget(KEY)
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=False)
        assert await thin(t, "ok", "c", delivered=True) == "retry"


async def test_something_said_since() -> None:
    """The same words behind another message are new, whether the reply arrived or not."""
    async with open_turns() as t:
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=False)
        await thin(t, "go on", "c", delivered=True)
        assert await thin(t, "ok", "d", delivered=True) == "delta"
        assert await t.live() == ["a", "b", "ok", "unseen", "go on", "c", "ok", "d"]


async def test_a_minute_later() -> None:
    """No client retries a request a minute after its reply: the same words are a new message
    then."""
    async with open_turns() as t:
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=False)
        t.parts.clock.now += RETRY_WINDOW_S + 1
        assert await thin(t, "ok", "c", delivered=True) == "delta"


async def test_a_thread_from_before() -> None:
    """Nothing is known and nothing superseded where no delivery was ever recorded."""
    async with open_turns() as t:
        for text in ("a", "ok"):
            await thin(t, text, f"{text}!", delivered=False)
        assert await thin(restarted(t.parts), "ok", "c", delivered=False) == "delta"


class Refusing:
    """A store's part for marks, which refuses at first."""

    def __init__(self) -> None:
        self.refuses = True
        self.marks: dict[Key, int] = {}

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        if self.refuses:
            raise StorageError("the disk is full")
        self.marks.update(replies)

    async def delivered_reply(self, key: Key) -> int | None:
        return self.marks.get(key)


async def test_a_retry_has_nothing_to_add() -> None:
    """A reply that is known to have gone out is written once, however often it is asked for
    again."""
    store = Refusing()
    store.refuses = False
    deliveries = Deliveries(store, clock=lambda: 10.0)  # type: ignore[arg-type]  # the part of a store that is asked
    deliveries.record(KEY, 2)
    await deliveries.write()
    store.marks.clear()
    deliveries.record(KEY, 2)
    await deliveries.write()
    assert store.marks == {}


async def test_a_store_that_refuses() -> None:
    """A mark that cannot be written waits; a newer one of the same thread takes its place. This
    process knows meanwhile."""
    store = Refusing()
    deliveries = Deliveries(store, clock=lambda: 10.0)  # type: ignore[arg-type]  # the part of a store that is asked
    deliveries.record(KEY, 2)
    await deliveries.write()
    deliveries.record(KEY, 4)
    await deliveries.write()
    assert store.marks == {}
    assert not await deliveries.is_undelivered(Memory(key=KEY, turn_at=9.0, coverage=4))
    assert await deliveries.is_undelivered(Memory(key=KEY, turn_at=9.0, coverage=6))
    store.refuses = False
    await deliveries.write()
    assert store.marks == {KEY: 4}


async def test_a_thread_that_waits_for_the_store() -> None:
    """Its mark waits with it, and is written by itself once the thread is stored; another thread's
    mark does not wait."""
    store, other, waiting = Refusing(), KEY._replace(thread="other"), {KEY}
    store.refuses = False
    deliveries = Deliveries(store, lambda: 10.0, waiting.__contains__)  # type: ignore[arg-type]  # the part of a store that is asked
    deliveries.record(KEY, 2)
    deliveries.record(other, 4)
    await deliveries.write()
    assert store.marks == {other: 4}
    waiting.clear()
    writing = asyncio.create_task(deliveries.write_forever())
    deliveries.record(other, 6)
    async with asyncio.timeout(30):
        while True:  # bounded by the time-out above
            if KEY in store.marks:
                break
            await asyncio.sleep(0.01)
    writing.cancel()
    assert store.marks == {KEY: 2, other: 6}


async def test_messages_with_other_numbers() -> None:
    """A mark goes with its message. One of a message that has no number any more says nothing."""
    deliveries = Deliveries(Refusing(), lambda: 10.0)  # type: ignore[arg-type]  # the part of a store that is asked
    deliveries.record(KEY, 6)
    deliveries.renumber(KEY, {5: 7, 6: 8})
    assert not await deliveries.is_undelivered(Memory(key=KEY, turn_at=9.0, coverage=8))
    assert await deliveries.is_undelivered(Memory(key=KEY, turn_at=9.0, coverage=10))
    deliveries.renumber(KEY, {9: 10})
    assert not await deliveries.is_undelivered(Memory(key=KEY, turn_at=9.0, coverage=10))
