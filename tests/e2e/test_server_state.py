"""Requests of the Responses API whose past the model server holds: they name the reply that they
follow, or items of replies (docs/contributing/protocols.md#state-that-the-server-holds)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI

from om_proxy.management.moving.importing import create_fingerprint
from om_proxy.memory.model import Memory, Message
from om_proxy.testing.scripted import ACTOR
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.holding_server import HoldingServer
from tests.support.three_apis import read_reply, write_body

Json = dict[str, Any]
FACT = "The dock at Quarry Steps takes no van higher than 2.85 m."
QUESTION = "What height does the dock at Quarry Steps take?"
REMARK = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n}. " * 4
NOTES = "observation: {message_tokens: 300, buffer_tokens: false}, retrieval: false"
NO_NOTES = "observation: {message_tokens: 90000}, retrieval: false"
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weigh", "arguments": '{"crate":1}'},
}
SCRIPT = {"Weigh it": {"role": "assistant", "content": None, "tool_calls": [CALL]}}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "7 kilos"}


@dataclass
class Answered:
    id: str
    output: list[Json]
    receipt: tuple[str | None, str | None]  # status, reason

    @property
    def text(self) -> str:
        return "".join(i["content"][0]["text"] for i in self.output if i["type"] == "message")


@dataclass
class Chain:
    """A client that goes on from the newest reply by its id."""

    running: Running
    thread: str = "t"
    key: str = "sk-a"
    newest: str | None = None

    async def say(self, sent: Any, **more: Any) -> Answered:
        past = {"previous_response_id": self.newest} if self.newest else {}
        answered = await self.ask({"input": sent, **past, **more})
        self.newest = answered.id
        return answered

    async def ask(self, members: Mapping[str, Any]) -> Answered:
        body = orjson.dumps({"model": ACTOR, **members})
        answer = await self.running.http.post(
            f"{self.running.base}/v1/responses",
            content=body,
            headers={"authorization": f"Bearer {self.key}", "x-om-thread": self.thread},
        )
        assert answer.status_code == 200, answer.text
        await self.running.app.background.wait_idle()
        reply = answer.content
        if members.get("stream"):
            reply = orjson.dumps(_read_last_event(reply)["response"])
        response = orjson.loads(reply)
        receipt = (answer.headers.get("x-om-status"), answer.headers.get("x-om-reason"))
        if receipt[0] in ("raw", "off"):
            assert self.body() == body
        return Answered(response["id"], response["output"], receipt)

    def body(self) -> bytes:
        """The newest prompt, as it reached the model server."""
        return self.running.models.requests_to(ACTOR)[-1].body

    def prompt(self) -> str:
        return str(orjson.loads(self.body())["input"])

    async def memory(self) -> Memory:
        found = await self.running.app.store.threads(None)
        [key] = [info.key for info in found if info.key.thread == self.thread]
        return await self.running.app.store.load(key)

    async def messages(self) -> tuple[Message, ...]:
        return await self.running.app.store.messages((await self.memory()).key, 0)

    async def texts(self) -> list[str]:
        views = [m.item.raw for m in await self.messages()]
        return ["".join(_list_texts(orjson.loads(raw))) for raw in views]


def _read_last_event(content: bytes) -> Json:
    lines = [line for line in content.split(b"\n") if line.startswith(b"data: ")]
    return dict(orjson.loads(lines[-1].removeprefix(b"data: ")))


def _list_texts(items: list[Json]) -> list[str]:
    contents = [item["content"] for item in items if "content" in item]
    return [c if isinstance(c, str) else c[0]["text"] for c in contents]


@asynccontextmanager
async def start(
    folder: Path, memory: str = NO_NOTES, models: HoldingServer | None = None, **more: Any
) -> AsyncIterator[Running]:
    models = models or HoldingServer(SCRIPT)
    async with run_with_scripted_models(folder, memory, models=models, **more) as running:
        yield running


async def cover_fact(chain: Chain) -> None:
    """Say the fact, and go on until notes cover it."""
    await chain.say(FACT)
    for number in range(20):
        await chain.say(REMARK.format(n=number))
        if (await chain.memory()).coverage > 2:
            return
    raise AssertionError("nothing is covered")


# ── a reply that the request follows ──────────────────────────────────────────────────────────────


async def test_the_transcript_grows_while_the_server_has_the_past(tmp_path: Path) -> None:
    """Without notes the client's bytes go out, and each turn is stored once."""
    async with start(tmp_path) as running:
        chain = Chain(running)
        for number in range(3):
            answered = await chain.say(f"Crate {number} is red.", stream=number == 1)
            assert answered.receipt == ("raw", None)
        assert (await chain.texts())[::2] == [f"Crate {number} is red." for number in range(3)]
        assert len(await chain.messages()) == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_a_covered_fact_is_answered(tmp_path: Path, stream: bool) -> None:
    """With notes the prompt is built from the store, and names no past at the server. All else of
    the body stays; a call and its result stay together."""
    async with start(tmp_path, NOTES) as running:
        chain = Chain(running)
        await cover_fact(chain)
        more = {"metadata": {"a": "b"}, "store": True, "instructions": "Be brief."}
        answered = await chain.say(QUESTION, stream=stream, **more)
        assert answered.receipt == ("applied", None)
        assert "2.85" in answered.text
        body = orjson.loads(chain.body())
        assert "previous_response_id" not in body
        assert FACT not in [item.get("content") for item in body["input"]]
        assert {name: body[name] for name in more} == more
        called = await chain.say("Weigh it", stream=stream)
        assert called.output[-1]["type"] == "function_call"
        answered = await chain.say([RESULT], stream=stream)
        assert answered.receipt == ("applied", None)
        kinds = [item.get("type") for item in orjson.loads(chain.body())["input"]]
        assert kinds[-2:] == ["function_call", "function_call_output"]
        roles = [m.item.role for m in await chain.messages()]
        assert roles[-4:] == ["user", "assistant", "tool", "assistant"]


async def test_replies_are_known_after_a_restart(tmp_path: Path) -> None:
    models = HoldingServer(SCRIPT)
    async with start(tmp_path, NOTES, models) as running:
        chain = Chain(running)
        await cover_fact(chain)
        said = await chain.say("Crate 70 is blue.")
    async with start(tmp_path, NOTES, models) as running:
        again = Chain(running, newest=said.id)
        assert "2.85" in (await again.say(QUESTION)).text
        [reference] = [{"type": "item_reference", "id": item["id"]} for item in said.output]
        said_again = [{"role": "user", "content": "Crate 70 is blue."}, reference]
        asked = [*said_again, {"role": "user", "content": "Go on."}]
        answered = await again.ask({"input": asked})
        assert answered.receipt == ("applied", None)
        assert reference["id"] in again.prompt()


async def test_replies_are_known_to_a_tenant_with_another_key(tmp_path: Path) -> None:
    """Where `rekey-tenant` has moved its memories."""
    async with start(tmp_path) as running:
        old, other = Chain(running), Chain(running, "o", "sk-b")
        await other.say("Hello.")
        said = await old.say("Crate 1 is red.")
        tenants = [(await chain.memory()).key.tenant for chain in (old, other)]
        store = running.app.store
        fingerprint = create_fingerprint(await store.secret(), tenants[1])
        await store.move_tenant(*tenants, fingerprint)
        moved = Chain(running, key="sk-b", newest=said.id)
        assert (await moved.say("Go on.")).receipt == ("raw", None)
        assert len(await moved.messages()) == 4


async def _ask_unknown(chain: Chain, members: Json) -> None:
    """The request passes byte for byte, and nothing of it is stored."""
    running = chain.running
    before = [memory.version for memory in await running.memories()]
    body = {"input": "Go on.", **members}
    answered = await chain.ask(body)
    assert answered.receipt == ("off", "server-state")
    assert [memory.version for memory in await running.memories()] == before


async def test_ids_of_others_are_unknown(tmp_path: Path) -> None:
    """Of another thread, of another tenant, of a deleted thread, and of no reply at all. The server
    may know them all."""
    async with start(tmp_path) as running:
        own, other, foreign = Chain(running), Chain(running, "o"), Chain(running, "t", "sk-b")
        gone = Chain(running, "gone")
        for chain in (own, other, foreign, gone):
            await chain.say("Hello.")
        deleted = await gone.memory()
        await running.app.store.forget(deleted.key)
        assert (await gone.running.app.store.load(deleted.key)).version == 0
        for named in (other, foreign, gone):
            item = running.models.held.past[str(named.newest)][-1]["id"]  # type: ignore[attr-defined] - of a HoldingServer
            await _ask_unknown(own, {"previous_response_id": named.newest})
            reference = {"type": "item_reference", "id": item}
            await _ask_unknown(own, {"input": [reference, {"role": "user", "content": "Go."}]})
        await _ask_unknown(gone, {"previous_response_id": gone.newest})
        await _ask_unknown(own, {"conversation": "conv_1"})
        assert (await own.say("Go on.")).receipt == ("raw", None)


async def test_an_older_reply_is_gone_on_from(tmp_path: Path) -> None:
    """What came behind it is taken back; and a request that names that comes back to it."""
    async with start(tmp_path) as running:
        chain = Chain(running)
        first = await chain.say("One.")
        second = await chain.say("Two.")
        chain.newest = first.id
        await chain.say("Three.")
        assert [text for text in await chain.texts() if text[-1] == "." and len(text) < 7] == [
            "One.",
            "Three.",
        ]
        chain.newest = second.id
        await chain.say("Four.")
        texts = await chain.texts()
        assert texts[::2] == ["One.", "Two.", "Four."]


async def test_a_covered_reply_is_gone_on_from(tmp_path: Path) -> None:
    """The notes of what is taken back go with it."""
    async with start(tmp_path, NOTES) as running:
        chain = Chain(running)
        first = await chain.say("My name is Ada.")
        await cover_fact(chain)
        chain.newest = first.id
        await chain.say("Is it late?")
        assert (await chain.texts())[::2] == ["My name is Ada.", "Is it late?"]
        answered = await chain.say(QUESTION)
        assert "2.85" not in answered.text


async def test_the_same_request_again_stores_nothing_twice(tmp_path: Path) -> None:
    """Not with the same words as an earlier turn either, which another reply is named for."""
    async with start(tmp_path) as running:
        chain = Chain(running)
        for _ in range(3):
            named = chain.newest
            await chain.say("Go on.")
        again = await chain.ask({"input": "Go on.", "previous_response_id": named})
        assert len(await chain.messages()) == 6
        chain.newest = again.id
        assert (await chain.say("And then?")).receipt == ("raw", None)
        assert len(await chain.messages()) == 8


async def test_instructions_in_the_input_keep_the_prompt(tmp_path: Path) -> None:
    """The server has them, and no memory does: the chain is stored, and its prompts stay."""
    async with start(tmp_path, NOTES.replace("false", "100", 1)) as running:
        chain = Chain(running)
        order = {"role": "developer", "content": "Answer in French."}
        await chain.say([order, {"role": "user", "content": FACT}])
        for number in range(6):
            answered = await chain.say(REMARK.format(n=number))
            assert answered.receipt == ("raw", "server-state")
        assert len(await chain.messages()) == 14
        memory = await chain.memory()
        assert memory.chunks or memory.coverage


async def test_the_sdk_goes_on_by_the_id(tmp_path: Path) -> None:
    """`responses.create` with `previous_response_id`, as OpenAI's own examples have it."""
    async with start(tmp_path, NOTES) as running:
        headers = {"x-om-thread": "t"}
        client = AsyncOpenAI(
            api_key="sk-a", base_url=f"{running.base}/v1", default_headers=headers, max_retries=0
        )
        newest = (await client.responses.create(model=ACTOR, input=FACT)).id
        for number in range(6):
            remark = REMARK.format(n=number)
            made = await client.responses.create(
                model=ACTOR, input=remark, previous_response_id=newest
            )
            newest = made.id
        chain = Chain(running)
        assert (await chain.memory()).coverage > 2
        async with await client.responses.create(
            model=ACTOR, input=QUESTION, previous_response_id=newest, stream=True
        ) as stream:
            events = [event async for event in stream]
        assert "2.85" in events[-1].response.output_text  # type: ignore[union-attr] - the last event
        assert "previous_response_id" not in orjson.loads(chain.body())
        await client.close()


# ── items of replies ──────────────────────────────────────────────────────────────────────────────


async def test_a_reference_is_read_as_its_item(tmp_path: Path) -> None:
    """A client that sends its whole history, with references in place of what the model said, is one
    that sends it whole; and its references go out as they are."""
    async with start(tmp_path, NOTES) as running:
        chain, history = Chain(running), list[Json]()
        history.append({"role": "user", "content": FACT})
        for number in range(12):
            answered = await chain.ask({"input": history})
            typed = {} if number % 2 else {"type": "item_reference"}
            history += [{**typed, "id": item["id"]} for item in answered.output]
            history.append({"role": "user", "content": REMARK.format(n=number)})
        memory = await chain.memory()
        assert (memory.count, memory.style) == (24, "full")
        assert memory.coverage
        assert b"item_reference" not in b"".join(m.item.raw for m in await chain.messages())
        answered = await chain.ask(
            {"input": [*history[:-1], {"role": "user", "content": QUESTION}]}
        )
        assert answered.receipt == ("applied", None)
        assert "2.85" in answered.text
        shown = orjson.loads(chain.body())["input"]
        assert [item for item in shown if "role" not in item] == [
            item for item in history if "role" not in item and item in shown
        ]
        assert any("role" not in item for item in shown)


async def test_a_call_that_is_shown_beside_a_reference(tmp_path: Path) -> None:
    """The Vercel AI SDK refers to the thought of a step, and shows the call without its id."""
    async with start(tmp_path, models=HoldingServer(SCRIPT, reasons=True)) as running:
        chain = Chain(running)
        history: list[Json] = [{"role": "user", "content": "Weigh it"}]
        thought, call = (await chain.ask({"input": history})).output
        shown = {name: value for name, value in call.items() if name not in ("id", "status")}
        history += [{"type": "item_reference", "id": thought["id"]}, shown, RESULT]
        assert (await chain.ask({"input": history})).receipt == ("raw", None)
        assert [m.item.role for m in await chain.messages()] == [
            *("user", "assistant", "tool", "assistant")
        ]
        stored = orjson.loads((await chain.messages())[1].item.raw)
        assert stored == [thought, shown]


# ── reasoning that the server alone can read ──────────────────────────────────────────────────────


async def test_hidden_reasoning_goes_along_in_the_step_that_is_answered(tmp_path: Path) -> None:
    """There as a reference. Everywhere else it is left out, and the ids of its step with it; so it
    is if the server does not keep it."""
    async with start(tmp_path, NOTES, HoldingServer(SCRIPT, reasons=True)) as running:
        chain = Chain(running)
        await cover_fact(chain)
        said = await chain.say("Crate 80 is blue.")
        called = await chain.say("Weigh it")
        answered = await chain.say([RESULT])
        assert answered.receipt == ("applied", None)
        shown = orjson.loads(chain.body())["input"]
        thought, call = called.output
        assert shown[-3:] == [{"type": "item_reference", "id": thought["id"]}, call, RESULT]
        assert all(item["id"] not in str(shown[:-3]) for item in said.output)
        await chain.say("Go on.")
        assert thought["id"] not in chain.prompt()
        assert call["id"] not in chain.prompt()
        await chain.say("Weigh it", store=False)
        await chain.say([RESULT])
        assert "item_reference" not in chain.prompt()


# ── both ways ─────────────────────────────────────────────────────────────────────────────────────


async def test_another_api_goes_on_from_a_chain(tmp_path: Path) -> None:
    async with start(tmp_path, NOTES) as running:
        chain = Chain(running)
        await cover_fact(chain)
        body = write_body("chat", [{"role": "user", "content": QUESTION}], model=ACTOR)
        answer = await running.http.post(
            f"{running.base}/v1/chat/completions",
            json=body,
            headers={"authorization": "Bearer sk-a", "x-om-thread": "t", "x-om-history": "new"},
        )
        assert "2.85" in str(read_reply("chat", answer.content, stream=False)["content"])
