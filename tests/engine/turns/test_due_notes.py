"""A request that waits for an observation: once for each call, and not for one that cannot be
stored."""

from __future__ import annotations

import asyncio

from om_proxy.common.running_time import Deadline
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from tests.engine.turns.test_engine import (
    LONG,
    UNBUFFERED,
    assistant,
    make_chat,
    make_reply,
    open_turns,
    read_forwarded,
    request,
    texts,
    user,
)
from tests.memory.building import KEY
from tests.support.performing import HeldAnswer


class RecordedDeadline(Deadline):
    """Notes by how much it was extended."""

    def __init__(self, extensions: list[float]) -> None:
        super().__init__(60.0)
        self._extensions = extensions

    def extend(self, seconds: float) -> None:
        self._extensions.append(seconds)


async def test_a_call_that_hangs_is_waited_for_once() -> None:
    """Inspection R3: 8 of 8 requests waited 20 s each for the same call that hung. Later ones go
    raw at once, and commit nothing before."""
    held = HeldAnswer()
    patient = UNBUFFERED.replace("block_timeout: 5s", "block_timeout: 20ms")
    async with open_turns(held, settings=patient) as t:
        await t.turn([user("hello")], "hi")
        history, waits = [user("hello"), assistant("hi"), *make_chat(4)], list[float]()
        for number in range(8):
            opened = await t.engine.open_turn(
                Caller(KEY, KEY.tenant, "on"),
                request(history),
                t.parts.context(),
                Hints(),
                RecordedDeadline(waits),
            )
            assert (opened.status, opened.reason) == ("raw", "observer-late")
            await t.engine.close_turn(opened, make_reply(f"answer {number}"))
            history += [assistant(f"answer {number}"), user(f"and {number}?")]
        assert waits == [0.02]
        await asyncio.wait_for(held.asked.wait(), 30)  # a busy machine asks later
        assert len(t.parts.models.asked) == 1
        held.go.set()
        await t.parts.background.wait_idle()
        assert (await t.open(history)).status == "applied"  # the late answer counts


async def test_what_is_waited_for_is_stored_first() -> None:
    """A request that must wait for an observation has its own messages stored before, since an
    observation names stored ones."""
    held = HeldAnswer()
    async with open_turns(held, settings=UNBUFFERED) as t:
        await t.turn([user("hello")], "hi")
        history = [user("hello"), assistant("hi"), *make_chat(4)]
        opening = asyncio.create_task(t.open(history))
        await held.asked.wait()
        assert len(await t.live()) == 11
        held.go.set()
        opened = await opening
        assert opened.status == "applied"
        assert (await t.parts.memory()).coverage == 10
        assert texts(read_forwarded(opened))[-1] == "and now?"
        await t.engine.close_turn(opened, make_reply("now"))
        assert await t.live() == [*texts(history), "now"]


async def test_a_first_request_is_not_waited_for() -> None:
    """The upstream has not accepted its credential yet: nothing is stored and no model is asked."""
    async with open_turns(settings=UNBUFFERED) as t:
        opened = await t.open(make_chat(4))
        assert (opened.status, opened.reason, opened.body) == ("raw", None, None)
        assert t.parts.models.asked == []
        assert await t.live() == []


async def test_an_observation_that_is_late() -> None:
    """The raw history goes out at the deadline, and the receipt says why."""
    held = HeldAnswer()
    async with open_turns(
        held, settings=UNBUFFERED.replace("block_timeout: 5s", "block_timeout: 20ms")
    ) as t:
        await t.turn([user("hello")], "hi")
        opened = await t.open([user("hello"), assistant("hi"), *make_chat(4)])
        assert (opened.status, opened.reason, opened.body) == ("raw", "observer-late", None)
        held.go.set()
        await t.parts.background.wait_idle()
        assert (await t.parts.memory()).chunks


async def test_a_fork_does_not_wait() -> None:
    """A fork's new messages are not stored before its reply, so nothing of them can be observed."""
    async with open_turns(settings=UNBUFFERED) as t:
        await t.turn([user("a")], "b")
        opened = await t.open([user("edited"), *make_chat(4)[1:]], hints=Hints("full"))
        assert opened.reason == "fork-not-waited"
        assert t.parts.models.asked == []
        assert await t.live() == ["a", "b"]


async def test_a_thread_in_trouble_is_said_to_be() -> None:
    """The raw history is sent while the observer fails, and the receipt names it."""
    async with open_turns("", "") as t:
        opened = await t.open(await t.history(1, LONG * 2))
        assert (opened.status, opened.reason) == ("raw", "observer-failing")
