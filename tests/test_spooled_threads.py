"""No memory model is asked about a thread whose turns wait for the store: what it would answer
could not be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.model import resource_key
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.engine.turns.test_engine import (
    UNBUFFERED,
    Turns,
    assistant,
    make_chat,
    make_reply,
    request,
    user,
)
from tests.memory.building import KEY, chat
from tests.support.faulty_store import Faulty
from tests.support.performing import SMALL, open_parts

SHARED = SMALL.replace("memory:", "memory:\n  scope: resource")


class FaultyBehindSpool:
    """Opens a file that can be told to fail, behind a spool that nothing flushes but the test."""

    faulty: Faulty

    async def open(self, path: Path | str) -> SpoolingStore:
        self.faulty = Faulty(await SqliteStore.open(path))
        return SpoolingStore(self.faulty)


@asynccontextmanager
async def spooling(settings: str = SMALL) -> AsyncIterator[tuple[Turns, SpoolingStore, Faulty]]:
    opener = FaultyBehindSpool()
    async with open_parts(settings=settings, opener=opener) as p:
        assert isinstance(p.store, SpoolingStore)
        engine = Engine(
            p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, clock=p.clock
        )
        yield Turns(p, engine), p.store, opener.faulty
        opener.faulty.refuses = False


async def test_nothing_is_observed_in_the_background() -> None:
    """Enough has been said for notes, and more: they are made once it is stored, by itself."""
    async with spooling() as (t, store, faulty):
        faulty.refuses = True
        await t.history(4)
        assert (await store.load(KEY)).count == 8
        assert t.parts.models.asked == []
        faulty.refuses = False
        assert await store.flusher.flush()
        assert await store.due_threads(t.parts.clock.now, 10) == (KEY,)
        t.parts.background.wake(KEY)
        await t.parts.background.wait_idle()
        assert (await t.parts.memory()).chunks


async def test_nobody_waits_for_an_observation() -> None:
    """A request that would wait goes out at once, raw or with what there is."""
    async with spooling(UNBUFFERED) as (t, _, faulty):
        await t.turn([user("hello")], "hi")
        faulty.refuses = True
        sent = [user("hello"), assistant("hi"), *make_chat(4)]
        first = await t.open(sent)  # that this thread cannot be stored is found out while it waits
        assert (first.status, first.reason) == ("degraded", "storage")
        second = await t.open(sent)
        assert (second.status, second.reason) == ("degraded", "storage")
        assert t.parts.models.asked == []
        await t.engine.close_turn(second, make_reply("now"))
        assert t.parts.models.asked == []


async def test_a_prompt_that_is_too_long_is_not_shortened() -> None:
    """After the model's own refusal, too: what would be observed then is not stored."""
    async with spooling(SMALL.replace("message_tokens: 1000", "message_tokens: 100000")) as (
        t,
        _,
        faulty,
    ):
        await t.turn([user("hello")], "hi")
        opened = await t.open([user("hello"), assistant("hi"), *make_chat(4)])
        assert t.engine.overflow_recovery.can_shorten(opened, is_caller_verified=True)
        faulty.refuses = True
        assert (await t.engine.overflow_recovery.shorten(opened)).body is None
        assert t.parts.models.asked == []


async def test_threads_that_share_a_log() -> None:
    """What one of them waits with keeps the others from being observed: all their notes go into one
    log."""
    async with spooling(SHARED) as (t, store, faulty):
        shared_log = resource_key(KEY)

        async def says(thread: str, text: str) -> None:
            caller = Caller(KEY._replace(thread=thread), KEY.tenant, scope="resource")
            opened = await t.engine.open_turn(
                caller, request([user(text)]), t.parts.context(), Hints()
            )
            await t.engine.close_turn(opened, make_reply(text))
            await t.parts.background.wait_idle()

        assert await store.lease(shared_log, "another process", 100)
        for message in make_chat(1)[:-1]:
            await says("a", message["content"])
        await store.release(shared_log, "another process")
        faulty.refuses = True
        await says("b", "hello")
        assert t.parts.models.asked == []
        faulty.refuses = False
        assert await store.flusher.flush()
        await says("b", "and then?")
        assert t.parts.models.asked


# ── which replies went out ────────────────────────────────────────────────────────────────────────


async def thin(t: Turns, text: str, reply: str, *, delivered: bool) -> str:
    """One turn of a client that sends only its newest message; how it was recognised."""
    opened = await t.open([user(text)])
    committed = await t.engine.close_turn(opened, make_reply(reply))
    if delivered:
        t.engine.record_delivery(opened.opened, committed.reply_seq)
        await t.engine.deliveries.write()
    return opened.opened.case


async def test_a_thread_that_stands_in_the_spool_alone_keeps_its_mark() -> None:
    """It has no row that could be marked yet. Once it has one, the process after this one knows
    what went out, too."""
    async with spooling() as (t, store, faulty):
        faulty.refuses = True
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=False)
        faulty.refuses = False
        assert await store.flusher.flush()
        await t.engine.deliveries.write()
        assert await faulty.delivered_reply(KEY) == 2
        after = Turns(
            t.parts,
            Engine(
                t.parts.memories,
                t.parts.background,
                BlockRenderer(),
                TokenCounter(),
                b"s" * 32,
                t.parts.clock,
            ),
        )
        assert await thin(after, "ok", "c", delivered=True) == "retry"


@pytest.mark.parametrize("delivered", [True, False])
async def test_what_waited_goes_on_behind_another_writer(delivered: bool) -> None:
    """Its messages have other numbers there, and the mark of its reply goes with them."""
    async with spooling() as (t, store, faulty):
        store.flusher.renumbered = t.engine.deliveries.renumber
        await thin(t, "a", "b", delivered=True)
        stood = await faulty.load(KEY)
        faulty.refuses = True
        await thin(t, "ok", "c", delivered=delivered)
        faulty.refuses = False
        tail = chat(2, 5)
        await faulty.commit(
            stood,
            replace(
                stood,
                tail=(*stood.tail, *(replace(m, seq=m.seq + 2) for m in tail[:4])),
                next_seq=7,
            ),
        )
        assert await store.flusher.flush()
        await t.engine.deliveries.write()
        assert (await store.load(KEY)).end == 8
        assert await faulty.delivered_reply(KEY) == (8 if delivered else 2)
        assert await t.engine.deliveries.is_undelivered(await store.load(KEY)) is not delivered
