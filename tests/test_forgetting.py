"""Forgetting while turns, observations and reflections are under way: what began before it leaves
nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from random import Random

import orjson
import pytest
from structlog.testing import capture_logs

from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import Conflict
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.memory.token_prices import Usage
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from tests.agents.scripted_llm import bullets, texts
from tests.memory.building import KEY
from tests.support.performing import SMALL, Parts, StoreOpener, open_parts
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

WORDS = "the van, the dock and the seven crates of apples are all at Quarry Steps today. " * 6
SHARED = SMALL.replace("memory:", "memory:\n  scope: resource")
# forgettings on each store; OM_TEST_FORGETTINGS=1000 for the long form
ROUNDS = int(os.environ.get("OM_TEST_FORGETTINGS", "0"))
CANARY_WORD_PATTERN = re.compile(r"canary\d+")


class Repeating:
    """Notes every canary it is shown, after a while."""

    def __init__(self, random: Random) -> None:
        self.random = random

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        return Answer(
            bullets(
                " ".join(sorted(set(CANARY_WORD_PATTERN.findall(texts(prompt)))) or ["nothing"])
            ),
            target.model,
            Usage(9, 0, 0, 9),
        )


class Race:
    """One thread, its clients and who forgets it. A turn's canary may stay if it began after the
    last forgetting had ended."""

    def __init__(self, p: Parts, seed: int, scope: str) -> None:
        self.scope = scope
        self.p, self.random, self.number = p, Random(seed), 0
        self.engine = Engine(
            p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, clock=p.clock
        )
        self.begun: dict[
            str, int
        ] = {}  # canary → how many forgettings had begun when its turn began
        self.ended: dict[str, int] = {}  # and how many had ended
        self.whole: set[str] = set()  # canaries whose turn has closed with a whole reply
        self.closing: list[str] = []  # canaries whose turn has begun to close, in that order
        # canary → those of later requests that were closing when its turn had closed
        self.overtaken_by: dict[str, set[str]] = {}
        self.forgettings = self.done = 0
        self.history: list[dict[str, str]] = []

    async def turn(self, key: Key) -> None:
        self.number += 1
        canary = f"canary{self.number}"
        self.begun[canary], self.ended[canary] = self.forgettings, self.done
        begun = set(self.begun)
        history = [*self.history[-8:], {"role": "user", "content": f"{canary} {WORDS}"}]
        request = CHAT.parse_request(orjson.dumps({"model": "actor", "messages": history}))
        turn = await self.engine.open_turn(
            Caller(key, key.tenant), request, self.p.context(), Hints()
        )
        for _ in range(self.random.randrange(9)):
            await asyncio.sleep(0)
        reply = {"role": "assistant", "content": f"{canary} answered"}
        whole = self.random.random() < 0.8
        said = Reply(
            message=orjson.dumps(reply), complete=whole, finish_reason="stop" if whole else None
        )
        self.closing.append(canary)
        await self.engine.close_turn(turn, said)
        later = set(self.begun) - begun
        self.overtaken_by[canary] = later.intersection(self.closing)
        self.whole |= {canary} if whole else set()
        if whole and self.begun[canary] == self.forgettings:
            self.history = [*history, reply]
        self.p.clock.now += 1

    async def forget(self, key: Key) -> None:
        self.forgettings += 1
        self.history = []
        self.p.clock.now += 0.001  # later than what was asked before
        match self.scope:
            case "thread":
                await self.p.memories.forget(key)
            case "resource":
                await self.p.memories.forget_all(key.tenant, key.resource)
            case "tenant":
                await self.p.memories.forget_all(key.tenant)
        self.done += 1

    def may_stay(self, canary: str) -> bool:
        """It began after the last forgetting had begun."""
        return self.begun[canary] == self.forgettings

    def must_stay(self, canary: str, found: set[str]) -> bool:
        """It began after the last one had ended, and had its reply; one that broke off leaves
        nothing of a fork. A turn may be missing if a later request went on from an earlier message
        and was stored first: what that has taken back is not stored again."""
        is_whole = self.ended[canary] == self.forgettings and canary in self.whole
        return is_whole and not self.overtaken_by[canary] & found


async def kept(p: Parts, key: Key) -> set[str]:
    """Every canary that stands anywhere in the thread's memory or the log it shares."""
    memory, shared_log = (
        await p.store.load(key),
        await p.store.load(key._replace(thread=RESOURCE_THREAD)),
    )
    every = await p.store.messages_by_seq(key, range(1, memory.next_seq))
    notes = [o.text for one in (memory, shared_log) for o in (*one.log.entries, *one.chunks)]
    made = [one.log.reflection.text for one in (memory, shared_log) if one.log.reflection]
    older = await p.store.generations(key, 10**6), await p.store.generations(shared_log.key, 10**6)
    return set(
        CANARY_WORD_PATTERN.findall(
            str([m.item.raw for m in every])
            + str([*notes, *made])
            + str([o.text for logs in older for _, log in logs for o in log])
        )
    )


SETTINGS = pytest.mark.parametrize("settings", [SMALL, SHARED], ids=["thread", "resource"])


@SETTINGS
@pytest.mark.parametrize(
    ("scope", "seed"),
    [*(("thread", seed) for seed in range(4)), ("resource", 0), ("resource", 1), ("tenant", 2)],
)
async def test_nothing_comes_back(settings: str, scope: str, seed: int) -> None:
    """Whatever overlaps: no message, note or reflection of a turn that began before a forgetting is
    there after it has ended."""
    await race_with_forgettings(settings, scope, seed, max(12, ROUNDS // 14))


class UnderOnePrefix:
    """Opens a Redis in place of a file."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._options = RedisOptions(prefix=prefix, connections=5, timeout_s=30.0)

    async def open(self, _path: Path | str) -> Store:
        return await RedisStore.open(self._url, self._options)


@SETTINGS
async def test_nothing_comes_back_on_redis(settings: str) -> None:
    """Its commits and forgettings are scripts, computed from what was read before."""
    url = find_redis_url()
    with own_prefix(url) as prefix:
        opener = UnderOnePrefix(url, prefix)
        rounds = max(10, ROUNDS // 4)
        await race_with_forgettings(settings, "thread", 3, rounds, opener)


class InOneSchema:
    """Opens a PostgreSQL in place of a file."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._options = PostgresOptions(prefix=schema, connections=5, timeout_s=30.0)

    async def open(self, _path: Path | str) -> Store:
        return await PostgresStore.open(self._url, self._options)


@SETTINGS
@pytest.mark.parametrize(("scope", "seed"), [("thread", 0), ("resource", 1)])
async def test_nothing_comes_back_on_postgres(settings: str, scope: str, seed: int) -> None:
    """There the statements of turns and of forgetting really run side by side."""
    url = find_postgres_url()
    with own_schema(url) as schema:
        rounds = max(10, ROUNDS // 4)
        await race_with_forgettings(settings, scope, seed, rounds, InOneSchema(url, schema))


async def race_with_forgettings(
    settings: str,
    scope: str,
    seed: int,
    rounds: int,
    opener: StoreOpener = SqliteStore,
) -> None:
    """Let turns overlap with so many forgettings, and look after each."""
    random = Random(seed)
    async with open_parts(settings=settings, llm=Repeating(random), opener=opener) as p:
        race, forgotten = Race(p, seed, scope), 0
        with capture_logs() as logs:
            for _ in range(rounds):
                steps = [race.turn(KEY) for _ in range(random.randint(3, 8))]
                steps.insert(random.randrange(len(steps) + 1), race.forget(KEY))
                tasks = []
                for step in steps:
                    tasks.append(asyncio.create_task(step))
                    for _ in range(random.randrange(30)):
                        await asyncio.sleep(0)
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, BaseException) and not isinstance(outcome, Conflict):
                        raise outcome
                await p.background.wait_idle()
                found = await kept(p, KEY)
                assert {canary for canary in found if not race.may_stay(canary)} == set()
                assert {canary for canary in race.begun if race.must_stay(canary, found)} <= found
            forgotten = sum(entry["event"] == "memory.forgotten_meanwhile" for entry in logs)
        assert forgotten > 0  # there was something to hold back
        await race.forget(KEY)
        await p.background.wait_idle()
        assert await p.store.load(KEY) == Memory(key=KEY)
        assert await kept(p, KEY) == set()
