"""No memory model is asked about a thread whose turns wait for the store: what it would answer could not be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.catalogue import Catalogue
from om_proxy.engine import Engine
from om_proxy.memory.identity import Caller
from om_proxy.memory.model import hub_of
from om_proxy.memory.transcript import Hints
from om_proxy.prompt import Prompts
from om_proxy.storage.spool import SpoolingStore
from om_proxy.storage.sqlite import SqliteStore
from tests.memory.building import KEY, chat
from tests.support.faulty_store import Faulty
from tests.support.performing import SMALL, parts
from tests.test_engine import UNBUFFERED, Turns, assistant, request, said, talk, user

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
    async with parts(settings=settings, opened=opener) as p:
        assert isinstance(p.store, SpoolingStore)
        engine = Engine(p.memories, p.background, Prompts(), Catalogue(), b"s" * 32, clock=p.clock)
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
        assert await store.flush()
        assert await store.due(t.parts.clock.now, 10) == (KEY,)
        t.parts.background.wake(KEY)
        await t.parts.background.wait_idle()
        assert (await t.parts.memory()).chunks


async def test_nobody_waits_for_an_observation() -> None:
    """A request that would wait goes out at once, raw or with what there is."""
    async with spooling(UNBUFFERED) as (t, _, faulty):
        await t.turn([user("hello")], "hi")
        faulty.refuses = True
        sent = [user("hello"), assistant("hi"), *talk(4)]
        first = await t.open(sent)  # that this thread cannot be stored is found out while it waits
        assert (first.status, first.reason) == ("degraded", "storage")
        second = await t.open(sent)
        assert (second.status, second.reason) == ("degraded", "storage")
        assert t.parts.models.asked == []
        await t.engine.close_turn(second, said("now"), accepted=True)
        assert t.parts.models.asked == []


async def test_a_prompt_that_is_too_long_is_not_shortened() -> None:
    """After the model's own refusal, too: what would be observed then is not stored."""
    async with spooling(SMALL.replace("message_tokens: 1000", "message_tokens: 100000")) as (t, _, faulty):
        await t.turn([user("hello")], "hi")
        opened = await t.open([user("hello"), assistant("hi"), *talk(4)])
        assert t.engine.fitting.can_shorten(opened, accepted=True)
        faulty.refuses = True
        assert not await t.engine.fitting.shorten(opened)
        assert t.parts.models.asked == []


async def test_threads_that_share_a_log() -> None:
    """What one of them waits with keeps the others from being observed: all their notes go into one log."""
    async with spooling(SHARED) as (t, store, faulty):
        hub = hub_of(KEY)

        async def says(thread: str, text: str) -> None:
            caller = Caller(KEY._replace(thread=thread), KEY.tenant, scope="resource")
            opened = await t.engine.open_turn(caller, request([user(text)]), t.parts.call(), Hints())
            await t.engine.close_turn(opened, said(text), accepted=True)
            await t.parts.background.wait_idle()

        assert await store.lease(hub, "another process", 100)
        for message in talk(1)[:-1]:
            await says("a", message["content"])
        await store.release(hub, "another process")
        faulty.refuses = True
        await says("b", "hello")
        assert t.parts.models.asked == []
        faulty.refuses = False
        assert await store.flush()
        await says("b", "and then?")
        assert t.parts.models.asked


# ── which replies went out ───────────────────────────────────────────────────────────────────────────────────────────


async def thin(t: Turns, text: str, reply: str, *, delivered: bool) -> str:
    """One turn of a client that sends only its newest message; how it was recognised."""
    opened = await t.open([user(text)])
    await t.engine.close_turn(opened, said(reply), accepted=True)
    if delivered:
        t.engine.note_delivery(opened)
        await t.engine.deliveries.write()
    return opened.case


async def test_a_thread_that_stands_in_the_spool_alone_keeps_its_mark() -> None:
    """It has no row that could be marked yet. Once it has one, the process after this one knows what went out, too."""
    async with spooling() as (t, store, faulty):
        faulty.refuses = True
        await thin(t, "a", "b", delivered=True)
        await thin(t, "ok", "unseen", delivered=False)
        faulty.refuses = False
        assert await store.flush()
        await t.engine.deliveries.write()
        assert await faulty.delivered(KEY) == 2
        after = Turns(
            t.parts, Engine(t.parts.memories, t.parts.background, Prompts(), Catalogue(), b"s" * 32, t.parts.clock)
        )
        assert await thin(after, "ok", "c", delivered=True) == "retry"


@pytest.mark.parametrize("delivered", [True, False])
async def test_what_waited_goes_on_behind_another_writer(delivered: bool) -> None:
    """Its messages have other numbers there, and the mark of its reply goes with them."""
    async with spooling() as (t, store, faulty):
        store.renumbered = t.engine.deliveries.renumber
        await thin(t, "a", "b", delivered=True)
        stood = await faulty.load(KEY)
        faulty.refuses = True
        await thin(t, "ok", "c", delivered=delivered)
        faulty.refuses = False
        tail = chat(2, 5)
        await faulty.commit(
            stood, replace(stood, tail=(*stood.tail, *(replace(m, seq=m.seq + 2) for m in tail[:4])), next_seq=7)
        )
        assert await store.flush()
        await t.engine.deliveries.write()
        assert (await store.load(KEY)).end == 8
        assert await faulty.delivered(KEY) == (8 if delivered else 2)
        assert await t.engine.deliveries.is_undelivered(await store.load(KEY)) is not delivered
