"""A cut-off memory answer is not an answer (docs/contributing/behaviour.md#answers): every message
stays in the tail or in a note.

Real adapters against a real server. It answers with a note for each message, or for each note of a
log, so that a message that stands neither in the tail nor in a note can be counted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.agents.model_access.direct import Direct
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.agents.model_access.llm import Prompt, Routed, Target
from om_proxy.common.errors import ModelBusy
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe, Reflect
from om_proxy.memory.model import Memory
from om_proxy.wire.upstream import AiohttpTransport
from tests.memory.building import KEY, chat, chunk
from tests.support.performing import INHERITED, Parts, open_parts
from tests.support.upstream_server import Call, run_upstream_server, script_answer

MESSAGES = 8
MARKER = re.compile(r"\b(?:user|assistant) \d+\b")
every_cut = pytest.mark.parametrize(
    "how", ["length", "content_filter", "unclosed", "unclosed, no reason", "broken stream"]
)
every_way = pytest.mark.parametrize("via", ["direct", "litellm"])


@dataclass
class MemoryModel:
    """Notes every marker it is shown. Its answer about more than `most` of them is cut off in this
    way."""

    how: str
    most: int
    asked: list[int] = field(default_factory=list)  # markers shown, call by call

    async def __call__(self, call: Call) -> None:
        shown = orjson.loads(call.seen.body)["messages"][1]["content"]
        noted = list(dict.fromkeys(MARKER.findall(shown.partition("# New messages")[2] or shown)))
        self.asked.append(len(noted))
        whole = (
            "<observations>\nDate: May 22, 2023\n"
            + "".join(f"* 🔴 (10:00) {n}\n" for n in noted)
            + "</observations>"
        )
        if len(noted) <= self.most:
            await script_answer(completion(whole, "stop"), b"Content-Type: application/json")(call)
        elif self.how == "broken stream":
            body = completion(whole, "stop")
            call.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            call.send(body[: len(body) // 2])
            call.close()
        else:
            await script_answer(self._cut(whole, noted), b"Content-Type: application/json")(call)

    def _cut(self, whole: str, noted: list[str]) -> bytes:
        first_bullet = whole[: whole.index(noted[0]) + len(noted[0])]
        if self.how.startswith("unclosed"):
            return completion(
                f"{first_bullet}\n* 🔴 (10:0", None if "no reason" in self.how else "stop"
            )
        return completion(first_bullet, self.how)


def completion(text: str, finish: str | None) -> bytes:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
    if finish:
        choice["finish_reason"] = finish
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return orjson.dumps({**head, "choices": [choice]})


@pytest.fixture(scope="module")
def litellm() -> Iterator[LiteLLM]:
    """Warm: its import, some 20 s on a busy machine, counts against nobody's deadline."""
    adapter = LiteLLM()
    nobody_listens = Target("hosted_vllm/m", "litellm", "http://127.0.0.1:1/v1", api_key="k")
    with pytest.raises(ModelBusy):
        asyncio.run(adapter.complete(nobody_listens, Prompt("", ("",))))
    yield adapter
    adapter.close()


@asynccontextmanager
async def performing(
    model: MemoryModel, litellm: LiteLLM, via: str
) -> AsyncIterator[tuple[Parts, Target]]:
    transport = AiohttpTransport()
    try:
        async with (
            run_upstream_server(model) as server,
            open_parts(settings=INHERITED, llm=Routed(Direct(transport), litellm)) as performers,
        ):
            direct = Target("m", base_url=server.base)
            yield (
                performers,
                direct
                if via == "direct"
                else Target("hosted_vllm/m", "litellm", server.base, api_key="k"),
            )
    finally:
        await transport.aclose()


def missing(memory: Memory) -> set[str]:
    """Messages that stand neither in the tail nor in a note."""
    notes = [o.text for o in (*memory.log.entries, *memory.chunks)] + [
        m.item.raw.decode() for m in memory.tail
    ]
    found = {marker for text in notes for marker in MARKER.findall(text)}
    return {f"{'assistant' if n % 2 == 0 else 'user'} {n}" for n in range(1, MESSAGES + 1)} - found


async def activate_all(p: Parts) -> Memory:
    """Every chunk enters the log: what it covers leaves the tail."""
    ids = [c.id for c in (await p.memory()).chunks]
    return await p.memories.update(KEY, lambda m: transitions.activate_chunks(m, ids, 5.0))


@every_way
@every_cut
async def test_an_observation_that_is_always_cut_off(litellm: LiteLLM, how: str, via: str) -> None:
    """Nothing is covered, the thread backs off, and the calls come to an end."""
    model = MemoryModel(how, most=0)
    async with performing(model, litellm, via) as (p, target):
        before = await p.store_tail(chat(MESSAGES // 2, 50))
        assert not await p.worker.perform(
            KEY, Observe(0, MESSAGES, 400), p.context(inherited=target)
        )
        after = await activate_all(p)
        assert (after.coverage, after.tail, after.failures.count) == (0, before.tail, 1)
        assert model.asked == [
            8,
            4,
            2,
            1,
            1,
        ]  # halved, oldest first; one message is asked about once more
        assert missing(after) == set()


@every_way
@every_cut
async def test_an_observation_that_is_cut_off_when_it_is_long(
    litellm: LiteLLM, how: str, via: str
) -> None:
    """It is halved until an answer comes to its end; what the first half leaves is observed
    next."""
    model = MemoryModel(how, most=2)
    async with performing(model, litellm, via) as (p, target):
        await p.store_tail(chat(MESSAGES // 2, 50))
        while (memory := await p.memory()).chunked_to < MESSAGES:
            due = Observe(memory.chunked_to, MESSAGES, 400)
            assert await p.worker.perform(KEY, due, p.context(inherited=target))
            assert missing(await activate_all(p)) == set()
        assert (await p.memory()).failures.count == 0
        assert max(model.asked) == MESSAGES


async def logged(p: Parts) -> Memory:
    """A log of four entries that note all messages; none of them is in the tail."""
    memory = await p.store_tail(chat(MESSAGES // 2, 50))
    for last in range(2, MESSAGES + 1, 2):
        text = f"* 🔴 (10:00) user {last - 1}\n* 🔴 (10:00) assistant {last}\n* 🟢 (10:00) {'word ' * 40}"
        memory = transitions.add_chunk(memory, replace(chunk(memory, last, 50, text)))
    return await p.memories.update(
        KEY, lambda _: transitions.activate_chunks(memory, [c.id for c in memory.chunks], 5.0)
    )


@every_way
@every_cut
async def test_a_reflection_that_is_always_cut_off(litellm: LiteLLM, how: str, via: str) -> None:
    """The log stays as it is."""
    model = MemoryModel(how, most=0)
    async with performing(model, litellm, via) as (p, target):
        before = await logged(p)
        assert not await p.worker.perform(KEY, Reflect(4, 150), p.context(inherited=target))
        after = await p.memories.update(KEY, lambda m: transitions.swap_reflection(m, 6.0))
        assert (after.log.entries, after.log.reflection, after.tail) == (
            before.log.entries,
            None,
            (),
        )
        assert missing(after) == set()
        assert len(model.asked) == 4


@every_way
@every_cut
async def test_a_reflection_that_is_cut_off_at_first(litellm: LiteLLM, how: str, via: str) -> None:
    """It is asked for again at its level, and the whole answer counts."""
    model = MemoryModel(how, most=0)
    async with performing(model, litellm, via) as (p, target):
        await logged(p)
        model.asked.clear()

        async def second(call: Call) -> None:
            model.most = MESSAGES if model.asked else 0
            shown = orjson.loads(call.seen.body)["messages"][1]["content"]
            assert "too long" not in shown
            await model(call)

        async with run_upstream_server(second) as server:
            again = replace_base(target, server.base)
            assert await p.worker.perform(KEY, Reflect(4, 150), p.context(inherited=again))
        after = await p.memories.update(KEY, lambda m: transitions.swap_reflection(m, 6.0))
        assert [entry.kind for entry in after.log.entries] == ["reflection"]
        assert missing(after) == set()
        assert len(model.asked) == 2


def replace_base(target: Target, base: str) -> Target:
    return Target(target.model, target.via, base, api_key=target.api_key)
