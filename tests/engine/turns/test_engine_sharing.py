"""Turns of threads that share a log, where others change it between a request and its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.model import (
    Key,
    Memory,
    Observation,
    Part,
    Reflection,
    Scope,
    replace_log,
    resource_key,
)
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from tests.memory.building import KEY
from tests.memory.clients import raw
from tests.support.performing import SMALL, Parts, open_parts

SHARED = SMALL.replace("memory:", "memory:\n  scope: resource")
B = Key(KEY.tenant, KEY.resource, "b")
LONG = (
    "the van, the dock and the seven crates of apples are all at Quarry Steps today. " * 14
)  # about 250 tokens
SECRET = b"s" * 32


class Talk:
    """One client of one thread."""

    def __init__(self, p: Parts, key: Key) -> None:
        self.p, self.key = p, key
        self.held: list[bytes] = []

    @property
    def engine(self) -> Engine:
        p = self.p
        return Engine(
            p.memories, p.background, BlockRenderer(), TokenCounter(), SECRET, clock=p.clock
        )

    async def asks(self, text: str | None = None, scope: Scope | None = None) -> PreparedTurn:
        self.held += [raw("user", text)] if text else []
        request = CHAT.parse_request(
            b'{"model":"actor","messages":[' + b",".join(self.held) + b"]}"
        )
        caller = Caller(self.key, self.key.tenant, scope=scope)
        return await self.engine.open_turn(caller, request, self.p.context(), Hints())

    async def has(self, turn: PreparedTurn, text: str) -> None:
        """The reply has come."""
        self.held.append(raw("assistant", text))
        await self.engine.close_turn(
            turn, Reply(message=self.held[-1], complete=True, finish_reason="stop")
        )

    async def says(self, text: str, reply: str = "Noted.") -> PreparedTurn:
        turn = await self.asks(text)
        await self.has(turn, reply)
        self.p.clock.now += 1
        return turn

    async def memory(self) -> Memory:
        return await self.p.memories.load(self.key)


@pytest.fixture
async def p() -> AsyncIterator[Parts]:
    async with open_parts(settings=SHARED) as made:
        secret = await made.store.secret()
        made.memories.label = partial(label_thread, secret)
        yield made


async def test_a_forgotten_thread_does_not_come_back_with_anothers_turn(p: Parts) -> None:
    """It was told of in a prompt that is under way: with that turn nothing of it is written
    again."""
    a, b = Talk(p, KEY), Talk(p, B)
    await a.says("The canary sings.")
    turn = await b.asks("Hello.")
    assert b"canary" in (turn.body or b"")
    await p.store.forget(KEY)
    await b.has(turn, "Hello, Ada.")
    assert (await b.memory()).other_threads_text == ""
    following = await b.asks("And now?")
    assert b"canary" not in (following.body or b"")


async def test_forgetting_uncovers_for_the_turn_that_is_under_way(p: Parts) -> None:
    """Its commit stands on what is left: nothing it holds is lost, nothing covered twice."""
    a, b = Talk(p, KEY), Talk(p, B)
    for talk in (a, b, a, b, a, b):
        await talk.says(LONG)
        await p.background.wait_idle()
    turn = await b.asks(LONG)
    await p.store.forget(KEY)
    await b.has(turn, "Noted.")
    memory = await b.memory()
    stored = await p.store.messages(B, 0)
    assert [m.item.raw for m in stored] == b.held
    assert [m.seq for m in stored if m.seq > memory.coverage] == [m.seq for m in memory.tail]
    assert {part.label for o in memory.log.entries for part in o.parts} <= {p.memories.label(B)}


async def test_a_question_that_was_never_answered_stays_in_the_prompt(p: Parts) -> None:
    """Its notes may be buffered; what settles them in the log leaves them, for it will be asked
    again."""
    a, b = Talk(p, KEY), Talk(p, B)
    turn = await a.asks(LONG + "What is in crate 9?")
    await a.engine.store_unanswered(turn)
    await b.says(LONG)
    for _ in range(4):
        p.clock.now += 1
        await b.says(LONG)
        p.background.wake(resource_key(KEY), p.context())
        await p.background.wait_idle()
    memory = await a.memory()
    again = await a.asks()
    assert again.body is None  # its prompt goes on as it began, before anything was said elsewhere
    sent = [orjson.loads(message)["content"] for message in a.held]
    assert memory.coverage == 0
    assert sent[-1].endswith("What is in crate 9?")


async def test_a_new_thread_finds_a_reflection_that_is_ready(p: Parts) -> None:
    """It is swapped in by whoever comes first, a thread that nobody has heard of yet too."""
    shared_log = Memory(key=resource_key(KEY))
    parts_of = (Part(p.memories.label(KEY), 0, 2, b"chain".ljust(16)),)
    entry = Observation(
        id=1,
        after=0,
        last=2,
        chain=b"",
        text="* 🔴 long",
        tokens=2_000,
        source_tokens=9,
        at=1.0,
        parts=parts_of,
    )
    made = Reflection(
        generation=0, sources=(1,), text="* 🔴 short", tokens=9, source_tokens=2_000, at=2.0
    )
    await p.store.commit(
        shared_log, replace(replace_log(shared_log, entries=(entry,), reflection=made), next_id=2)
    )
    b = Talk(p, B)
    async with asyncio.timeout(30):
        turn = await b.asks("Hello.")
    assert b"short" in (turn.body or b"")
    log = (await p.store.load(shared_log.key)).log.entries
    assert [(o.kind, o.sources, o.parts) for o in log] == [("reflection", (1,), parts_of)]
    await b.has(turn, "Hello, Ada.")
    assert len((await b.memory()).tail) == 2
