"""A tail that another model's encoding counted is counted anew, after the reply and within
bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import orjson
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import StorageError
from om_proxy.engine.background import recounting
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.model import Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from tests.memory.building import KEY
from tests.support.performing import SMALL, Parts, open_parts

OLD, NEW = "gpt-4", "gpt-4o"  # cl100k_base and o200k_base
CHINESE = "今天我们在码头装了七箱苹果。" * 5  # o200k_base needs about half as many tokens for it
UNBUFFERED = SMALL.replace("buffer_tokens: 200", "buffer_tokens: false")


class Counting(TokenCounter):
    """Remembers what it has counted, and may be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[list[bytes]] = []
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def count(self, raws: Mapping[int, bytes], model: str, api: str) -> dict[int, int]:
        self.counted.append([*raws.values()])
        if self.gate and len(raws) > 1:
            self.asked.set()
            await self.gate.wait()
        return await super().count(raws, model, api)


class Talk:
    """One client that sends its whole history, each turn to the model it likes."""

    def __init__(self, p: Parts) -> None:
        self.p, self.catalogue = p, Counting()
        self.engine = Engine(
            p.memories, p.background, BlockRenderer(), self.catalogue, b"s" * 32, clock=p.clock
        )
        self.history: list[dict[str, str]] = []

    async def asks(self, text: str, model: str) -> PreparedTurn:
        self.history.append({"role": "user", "content": text})
        request = CHAT.parse_request(orjson.dumps({"model": model, "messages": self.history}))
        return await self.engine.open_turn(
            Caller(KEY, KEY.tenant), request, self.p.context(model), Hints()
        )

    async def has(self, turn: PreparedTurn, text: str) -> None:
        message = {"role": "assistant", "content": text}
        self.history.append(message)
        await self.engine.close_turn(
            turn,
            Reply(message=orjson.dumps(message), complete=True, finish_reason="stop"),
        )

    async def says(self, text: str, model: str) -> None:
        await self.has(await self.asks(text, model), "Noted.")
        self.p.clock.now += 1
        await self.p.background.wait_idle()

    async def counts(self) -> list[tuple[str, int]]:
        return [(m.encoding, m.tokens) for m in (await self.p.memory()).tail]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with open_parts(settings=UNBUFFERED) as p:
        yield Talk(p)


async def recounted(talk: Talk, model: str) -> list[tuple[str, int]]:
    """Return the counts of the tail by this model's encoding."""
    encoding, tail = talk.catalogue.encoding(model), (await talk.p.memory()).tail
    found = await TokenCounter().count({m.seq: m.item.raw for m in tail}, model, "chat")
    return [(encoding, found[m.seq]) for m in tail]


async def test_another_encoding_counts_the_tail_anew(talk: Talk) -> None:
    """The count is kept with what counted it; after the first reply of another model all of it is
    by that one's."""
    for _ in range(3):
        await talk.says(CHINESE, OLD)
    before = await talk.counts()
    assert before == await recounted(talk, OLD)
    await talk.says(CHINESE, NEW)
    after = await talk.counts()
    assert after == await recounted(talk, NEW)
    assert sum(tokens for _, tokens in after[:6]) < 0.8 * sum(tokens for _, tokens in before)
    assert (await talk.p.memory()).pending_tokens == sum(tokens + 4 for _, tokens in after)


async def test_nothing_on_a_request_s_way_counts_what_is_known(talk: Talk) -> None:
    """The request of another model counts what is new, as any other does; the tail waits for the
    reply."""
    for _ in range(3):
        await talk.says(CHINESE, OLD)
    talk.catalogue.counted.clear()
    turn = await talk.asks("And now?", NEW)
    assert sum(map(len, talk.catalogue.counted)) == 1
    talk.catalogue.gate = asyncio.Event()
    await talk.has(turn, "Noted.")  # the commit does not wait for it either
    assert (await talk.p.memory()).count == 8
    await talk.catalogue.asked.wait()
    talk.catalogue.gate.set()
    await talk.p.background.wait_idle()
    assert await talk.counts() == await recounted(talk, NEW)


async def test_the_same_encoding_counts_nothing_anew(talk: Talk) -> None:
    """Models that share an encoding share its counts."""
    await talk.says(CHINESE, NEW)
    talk.catalogue.counted.clear()
    await talk.says("Hello.", "openai/gpt-5")
    assert sum(map(len, talk.catalogue.counted)) == 2  # the message, once, and its reply


async def test_it_is_bounded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply pays for so many bytes, and for one message at least; the following ones pay for the
    rest."""
    for _ in range(4):
        await talk.says(CHINESE, OLD)
    monkeypatch.setattr(recounting, "MAX_RECOUNTED_BYTES", 700)
    left = []
    for _ in range(6):
        await talk.says("Hi.", NEW)
        left.append(sum(encoding == "cl100k_base" for encoding, _ in await talk.counts()))
    assert left[0] in range(4, 8)
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    monkeypatch.setattr(recounting, "MAX_RECOUNTED_BYTES", 1)
    await talk.says("Hi.", OLD)
    assert [encoding for encoding, _ in await talk.counts()].count(
        "cl100k_base"
    ) == 3  # one, and the turn's own two


async def test_what_changed_meanwhile_keeps_its_own_count(talk: Talk) -> None:
    """A message that the client altered while the old one was counted is not given the old one's
    count."""
    await talk.says(CHINESE, OLD)
    talk.catalogue.gate = asyncio.Event()
    await talk.has(await talk.asks("And now?", NEW), "Noted.")
    await talk.catalogue.asked.wait()

    def alter(memory: Memory) -> Memory:
        first = memory.tail[0]
        other = replace(
            first, item=replace(first.item, raw=b'{"role":"user","content":"other"}'), tokens=777
        )
        return replace(memory, tail=(other, *memory.tail[1:]))

    await talk.p.memories.update(KEY, alter)
    talk.catalogue.gate.set()
    await talk.p.background.wait_idle()
    assert (await talk.counts())[0] == ("cl100k_base", 777)
    assert {encoding for encoding, _ in (await talk.counts())[1:]} == {"o200k_base"}


async def test_a_thread_that_is_forgotten_meanwhile_stays_so(talk: Talk) -> None:
    await talk.says(CHINESE, OLD)
    talk.catalogue.gate = asyncio.Event()
    await talk.has(await talk.asks("And now?", NEW), "Noted.")
    await talk.catalogue.asked.wait()
    await talk.p.memories.forget(KEY)
    talk.catalogue.gate.set()
    await talk.p.background.wait_idle()
    assert (await talk.p.memory()).version == 0


async def test_a_store_that_fails_costs_the_recount_alone(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts there are serve on, the log says so, and the next reply tries again."""
    await talk.says(CHINESE, OLD)

    async def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    turn = await talk.asks("And now?", NEW)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(talk.p.memories, "update", fail)
        await talk.has(turn, "Noted.")
        await talk.p.background.wait_idle()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "recount.failed"
    ]
    assert (await talk.counts())[0][0] == "cl100k_base"
    await talk.says("Hello.", NEW)
    assert await talk.counts() == await recounted(talk, NEW)


async def test_chunks_stand_for_as_much_as_they_cover() -> None:
    """Activating a chunk takes off what its messages cost now."""
    async with open_parts() as p:
        talk = Talk(p)
        while not (await p.memory()).chunks:
            await talk.says(CHINESE, OLD)
        before = (await p.memory()).chunks[0]
        await talk.says("Hello.", NEW)
        memory = await p.memory()
        after = memory.chunks[0]
        assert (after.last, after.text) == (before.last, before.text)
        assert (
            after.source_tokens
            == sum(m.framed_tokens for m in memory.tail if m.seq <= after.last)
            < before.source_tokens
        )
