"""Shadow mode: everything is observed, the original is sent, and what memory would have sent is
measured beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.engine.turns.prompt_builder import PromptBuilder, ShadowPrompts
from om_proxy.memory.ledger import ThreadLedger
from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.e2e.test_ledger import ACTOR, LONG, SMALL, listen

Receipt = dict[str, str]


async def say(chat: Chat, text: str, **headers: str) -> Receipt:
    """Perform one turn with a model whose price is known."""
    chat.history.append({"role": "user", "content": text})
    body = {"model": ACTOR, "messages": chat.history}
    url = f"{chat.running.base}/v1/chat/completions"
    answer = await chat.running.http.post(url, json=body, headers=chat.headers | headers)
    assert answer.status_code == 200, answer.text
    chat.history.append(answer.json()["choices"][0]["message"])
    return {name[5:]: value for name, value in answer.headers.items() if name.startswith("x-om-")}


@asynccontextmanager
async def running(
    folder: Path, mode: str = "shadow", models: ScriptedServer | None = None, more: str = ""
) -> AsyncIterator[Running]:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    slow = models or ScriptedServer(faults=[Fault(kind="slow", model=ACTOR)])
    async with run_with_scripted_models(
        folder, f"mode: {mode}, {SMALL}", models=slow, more=more
    ) as run:
        yield run


def figure(receipts: Iterable[Receipt], name: str) -> list[int]:
    return [int(receipt[name]) for receipt in receipts]


async def converse(run: Running, turns: int = 14, **headers: str) -> list[Receipt]:
    chat, receipts = run.chat(), []
    for number in range(turns):
        run.clock.now += 30
        receipts.append(await say(chat, f"question {number}: {LONG}", **headers))
        await run.app.background.wait_idle()
    return receipts


async def test_a_conversation_in_shadow_and_live(tmp_path: Path) -> None:
    """The prompts that are announced in shadow are those that are sent live, turn by turn. The
    model server gets the originals, and the ledger has what they cost beside what would have
    been sent."""
    async with running(tmp_path / "live", "live") as run:
        live = await converse(run)
        live_ledger = (await run.memory()).ledger
    async with running(tmp_path / "shadow") as run:
        shadow = await converse(run)
        memory = await run.memory()
        sent = [orjson.loads(r.body)["messages"] for r in run.models.requests_to(ACTOR)]
    assert figure(shadow, "tokens-shadow") == figure(live, "tokens-sent")
    assert figure(shadow, "tokens-sent") == figure(live, "tokens-received")
    assert {receipt["reason"] for receipt in shadow} == {"write-only"}
    assert all("tokens-shadow" not in receipt for receipt in live)
    assert [len(messages) for messages in sent] == [2 + 2 * n for n in range(14)]
    full = memory.ledger.full
    assert (full.shadow_calls, full.shadow_received) == (14, sum(figure(live, "tokens-received")))
    assert full.shadow_sent == sum(figure(live, "tokens-sent"))
    assert full.shadow_sent < full.shadow_received
    assert full.shadow_baseline_cost == full.cost == full.baseline_cost
    # what shadow foretells is near what live costs
    assert full.shadow_cost == pytest.approx(live_ledger.full.cost, rel=0.15)
    parts = dict(memory.ledger.shadow_parts)
    assert sum(parts.values()) == int(shadow[-1]["tokens-shadow"])
    assert parts.keys() >= {"instructions", "notes", "observations", "hint", "tail"}


async def test_write_mode_of_one_request(tmp_path: Path) -> None:
    """`X-OM-Mode: write` is shadow for one request; `read` and `off` are not."""
    async with running(tmp_path, "live") as run:
        chat = run.chat()
        assert "tokens-shadow" in await say(chat, "hello", **{"x-om-mode": "write"})
        for mode in ("read", "off", "on"):
            assert "tokens-shadow" not in await say(chat, "hello", **{"x-om-mode": mode})


async def test_no_request_waits_in_shadow(tmp_path: Path) -> None:
    """An observer that hangs delays a live request beyond the threshold. In shadow no prompt would
    be better for it."""
    hangs = Fault(kind="hang", model="scripted-observer")
    models = ScriptedServer(faults=[hangs])
    memory = f"mode: shadow, {SMALL}".replace("block_timeout: 2s", "block_timeout: 100s")
    async with run_with_scripted_models(
        tmp_path, memory, models=models, model_timeout_s=120.0
    ) as run:
        for number in range(8):  # the client gives one up that waits
            await say(run.chat(), f"{number}: {LONG * 3}")


async def test_a_prompt_that_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer does not wait for it: the header is left out, and the ledger gets the figure with
    the thread's next turn."""
    go, plan = asyncio.Event(), PromptBuilder.plan

    async def plan_late(self: PromptBuilder, turn: Any) -> Any:
        await go.wait()
        return await plan(self, turn)

    async with running(tmp_path) as run:
        counted, chat = listen(run), run.chat()
        monkeypatch.setattr(PromptBuilder, "plan", plan_late)
        assert "tokens-shadow" not in await say(chat, "hello")
        assert (await run.memory()).ledger.full.shadow_calls == 0
        go.set()
        await asyncio.sleep(0)
        assert "tokens-shadow" in await say(chat, "and now?")
        full = (await run.memory()).ledger.full
        assert (full.calls, full.shadow_calls) == (2, 2)
        assert sum(fact.account.shadow_calls for fact in counted) == 2
        assert sum(fact.account.calls for fact in counted) == 2


async def test_a_prompt_that_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes on as if nothing had been built."""

    async def fail(self: PromptBuilder, turn: Any) -> Any:
        raise RuntimeError("private")

    async with running(tmp_path) as run:
        monkeypatch.setattr(PromptBuilder, "plan", fail)
        receipt = await say(run.chat(), "hello")
        assert (receipt["status"], receipt["reason"]) == ("raw", "write-only")
        assert "tokens-shadow" not in receipt
        memory = await run.memory()
        assert (memory.count, memory.ledger.full.calls, memory.ledger.full.shadow_calls) == (
            2,
            1,
            0,
        )


async def test_one_is_built_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PromptBuilder.plan
    at_once = most = 0

    async def watch(self: PromptBuilder, turn: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return await plan(self, turn)

    async with running(tmp_path) as run:
        monkeypatch.setattr(PromptBuilder, "plan", watch)
        await asyncio.gather(*(say(run.chat(f"t{number}"), "hello") for number in range(12)))
        assert most == 1


async def test_others_wait_for_no_slow_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one prompt takes for ever, the process builds no other. All answers go out without the
    header, and each thread's ledger gets its figure afterwards, once."""
    go, plan = asyncio.Event(), PromptBuilder.plan
    begun = 0

    async def plan_late(self: PromptBuilder, turn: Any) -> Any:
        nonlocal begun
        begun += 1
        await go.wait()
        return await plan(self, turn)

    async with running(tmp_path) as run:
        chats = [run.chat(f"t{number}") for number in range(3)]
        monkeypatch.setattr(PromptBuilder, "plan", plan_late)
        receipts = await asyncio.gather(*(say(chat, "hello") for chat in chats))
        assert begun == 1
        assert [receipt for receipt in receipts if "tokens-shadow" in receipt] == []
        assert [memory.ledger.full.shadow_calls for memory in await run.memories()] == [0, 0, 0]
        go.set()
        await run.app.background.wait_idle()
        assert begun == 3
        for chat in chats:
            await say(chat, "and now?")
        await run.app.background.wait_idle()
        full = [memory.ledger.full for memory in await run.memories()]
        assert [(account.calls, account.shadow_calls) for account in full] == [(2, 2)] * 3


async def test_the_request_goes_out_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is built once the model server has the request."""
    build = ShadowPrompts.build
    requests_at_start: list[int] = []

    async def watch(self: ShadowPrompts, opened: Any) -> Any:
        found = await build(self, opened)
        requests_at_start.append(len(run.models.requests))
        return found

    async with running(tmp_path) as run:
        chat = run.chat()
        await say(chat, "hello")  # makes the connection
        monkeypatch.setattr(ShadowPrompts, "build", watch)
        await say(chat, "again")
        assert len(requests_at_start) == 1


async def test_people_see_the_difference(tmp_path: Path) -> None:
    """`POST …/context` says which messages a live prompt would drop and add. A thread's page shows
    the parts of its newest shadow prompt."""
    async with running(tmp_path) as run:
        await converse(run)
        chat = run.chat()
        memory = await run.memory()
        stored = await run.app.store.messages(memory.key, 0)
        history = [chat.history[0], *(orjson.loads(m.item.raw) for m in stored)]
        history.append({"role": "user", "content": "And now?"})
        url = f"{run.base}/om/v1/threads/t"
        body = {"model": ACTOR, "messages": history}
        answer = await run.http.post(f"{url}/context", json=body, headers=chat.headers)
        assert answer.status_code == 200, answer.text
        preview = answer.json()
        assert preview["messages"] == history
        assert preview["reason"] == "write-only"
        shadow = preview["shadow"]
        dropped = memory.coverage
        assert shadow["dropped"] == list(range(1, 1 + dropped))
        assert shadow["added"] == [1, 2]  # notes and hint, behind the instructions
        assert shadow["tokens"] < preview["tokens_sent"] == preview["tokens_received"]
        assert sum(part["tokens"] for part in shadow["parts"]) == shadow["tokens"]
        status = (await run.http.get(url, headers=chat.headers)).json()
        assert {part["kind"] for part in status["shadow_parts"]} >= {"observations", "tail"}
        assert status["ledger"]["shadow"]["turns"] == 14


async def test_a_live_preview_shows_its_difference_too(tmp_path: Path) -> None:
    async with running(tmp_path, "live") as run:
        chat = run.chat()
        body = {"model": ACTOR, "messages": [{"role": "user", "content": "hello"}]}
        url = f"{run.base}/om/v1/threads/t/context"
        answer = await run.http.post(url, json=body, headers=chat.headers)
        assert answer.json()["shadow"] is None


def test_an_empty_ledger_has_no_parts() -> None:
    assert ThreadLedger().shadow_parts == ()
