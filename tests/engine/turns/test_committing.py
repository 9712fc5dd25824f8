"""Turns of a thread that end at the same time are all stored, and none twice."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Memory
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.wire.apis.api import Reply
from tests.engine.turns.test_engine import LONG, assistant, make_chat, make_reply, open_turns, user
from tests.memory.building import KEY
from tests.support.performing import HeldAnswer


async def test_overlapping_turns_are_both_stored() -> None:
    """Two questions asked at once on the same history: both stand, with their answers, one after
    the other."""
    async with open_turns() as t:
        await t.turn([user("a")], "b")
        both = [
            await t.open([user("a"), assistant("b"), user(text)]) for text in ("first", "second")
        ]
        for opened, reply in zip(both, ("one", "two"), strict=True):
            await t.engine.close_turn(opened, make_reply(reply))
        assert await t.live() == ["a", "b", "first", "one", "second", "two"]


async def test_turns_closed_at_the_same_moment() -> None:
    """However their commits meet, every turn is stored once."""
    async with open_turns() as t:
        opened = [await t.open([user(f"question {n}")]) for n in range(5)]
        await asyncio.gather(
            *(t.engine.close_turn(one, make_reply(f"answer {n}")) for n, one in enumerate(opened))
        )
        stored = await t.live()
        assert sorted(stored) == sorted(
            [f"{what} {n}" for n in range(5) for what in ("question", "answer")]
        )
        pairs = list(zip(stored[::2], stored[1::2], strict=True))
        assert all(q.split()[1] == a.split()[1] for q, a in pairs)


async def test_a_retry_that_overtakes_its_first_attempt() -> None:
    """The same request twice at once: one question, and the later answer stands."""
    async with open_turns() as t:
        first, again = await t.open([user("a")]), await t.open([user("a")])
        await t.engine.close_turn(again, make_reply("of the retry"))
        await t.engine.close_turn(first, make_reply("of the first"))
        assert await t.live() == ["a", "of the first"]


async def test_a_late_turn_brings_back_nothing_that_its_client_took_back_since() -> None:
    """Its store was away for so long that its client went on from an earlier message."""
    async with open_turns() as t:
        begun = [user("a"), assistant("b")]
        await t.turn(begun[:1], "b")
        await t.turn([*begun, user("taken back")], "this too")
        late = await t.open([*begun, user("taken back"), assistant("this too"), user("late")])
        t.parts.clock.now += 1
        await t.turn([*begun, user("instead")], "c")
        await t.engine.close_turn(late, make_reply("too late"))
        assert await t.live() == ["a", "b", "instead", "c"]


async def test_a_turn_after_a_clock_that_was_ahead() -> None:
    """The thread's last turn is this one: else no idle time would end for a year."""
    async with open_turns() as t:
        now = t.parts.clock.now
        t.parts.clock.now += 365 * 86_400
        await t.turn([user("a")], "b")
        t.parts.clock.now = now + 60
        await t.turn([user("a"), assistant("b"), user("c")], "d")
        assert (await t.parts.memory()).turn_at == now + 60


async def test_an_observation_committed_while_the_model_answers() -> None:
    """A chunk that arrives between opening and closing stays, and so does the turn."""
    held = HeldAnswer()
    async with open_turns(held) as t:
        await t.turn(make_chat(1)[:1], LONG)
        await held.asked.wait()
        opened = await t.open([*make_chat(1)[:1], assistant(LONG), user("more")])
        held.go.set()
        await t.parts.background.wait_idle()
        await t.engine.close_turn(opened, make_reply("more"))
        memory = await t.parts.memory()
        assert [c.last for c in memory.chunks] == [2]
        assert memory.count == 4


@pytest.mark.parametrize("when", ["before the commit", "right before it", "behind it"])
async def test_a_look_up_of_a_thread_that_is_forgotten_meanwhile(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply stays, and none of its look-ups; those of a thread that stays are kept."""
    async with open_turns() as t:
        memories = t.parts.memories
        memories.label = partial(label_thread, await t.parts.store.secret())
        gone = KEY._replace(thread="gone")
        await memories.update(gone, lambda memory: replace(memory, turns=1))
        shown = memories.label(gone)[:8].encode()

        async def forget_before(*arguments: Any, **named: Any) -> Memory:
            monkeypatch.undo()
            await memories.forget(gone)
            return await memories.commit(*arguments, **named)

        async def forget_after(*arguments: Any, **named: Any) -> Memory:
            monkeypatch.undo()
            committed = await memories.commit(*arguments, **named)
            await memories.forget(gone)
            return committed

        replies = [
            Reply(orjson.dumps(assistant(text)), True, "stop", look_ups=LookedUp((one,)))
            for text, one in (
                ("first", Round(b"call", (b"[0123abcd.m1]",))),
                ("second", Round(b"call", (b"[" + shown + b".m1]",))),
            )
        ]
        sent = [user("a")]
        await t.engine.close_turn(await t.open(sent), replies[0])
        opened = await t.open([*sent, assistant("first"), user("b")])
        if when != "before the commit":
            forget = forget_after if when == "behind it" else forget_before
            monkeypatch.setattr(memories, "commit", forget)
        else:
            await memories.forget(gone)
        await t.engine.close_turn(opened, replies[1])
        assert await t.live() == ["a", "first", "b", "second"]
        stored = await t.parts.store.messages(KEY, 0)
        assert [message.look_ups is not None for message in stored] == [False, True, False, False]
        assert (await memories.load(KEY)).tail == (await t.parts.store.load(KEY)).tail
