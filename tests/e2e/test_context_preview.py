"""A preview of a request's context is what goes upstream for it, byte for byte, whatever the client
does with its history. It stores nothing and calls no model."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.engine.turns.preview import ContextPreviewer, Preview
from om_proxy.management.moving.verifying import verify_store
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.scripted import Fault, Message, ScriptedServer
from tests.e2e.previewing import (
    AUTH,
    SELDOM_LOOKING,
    dump,
    list_announced_tool,
    list_message_bytes,
    list_tool_bytes,
    preview,
    settle,
)
from tests.e2e.running import SMALL_LOG_MEMORY, Chat, run_with_scripted_models

ACTOR = "scripted-actor"
STEPS = 45
WORDS = [
    "crate",
    "dock",
    "quarry",
    "pallet",
    "van",
    "aisle",
    "ledger",
    "invoice",
    "harbour",
    "scale",
]


class RandomClient:
    """Plays one thread: it goes on, retries, edits, answers anew, forks, cuts its history or sends
    nothing but its newest message."""

    def __init__(self, chat: Chat, rng: random.Random) -> None:
        self.chat = chat
        self.rng = rng
        self.sent: list[dict[str, Any]] = []
        self.says = 0

    def write_text(self) -> str:
        self.says += 1
        return f"Remark {self.says}: " + " ".join(self.rng.choices(WORDS, k=150))

    def choose(self) -> list[dict[str, Any]]:
        """Return the messages of the next request."""
        history, user = self.chat.history, {"role": "user", "content": self.write_text()}
        match self.rng.choice(["extend"] * 10 + ["retry", "edit", "regenerate", "window", "thin"]):
            case "retry" if self.sent:
                return self.sent
            case "edit" if len(history) > 4:
                at = max(1, len(history) - 2 * self.rng.randrange(1, 4))
                del history[at:]
            case "regenerate" if len(history) > 2:
                del history[-1]
                return list(history)
            case "window" if len(history) > 6:
                history.append(user)
                return [history[0], *history[-5:]]
            case "thin":
                history.append(user)
                return [user]
        history.append(user)
        return list(history)

    async def play(self, messages: list[dict[str, Any]]) -> dict[str, str]:
        reply, receipt = await self.chat.send(messages)
        if self.chat.history[-1]["role"] == "user" and messages is not self.sent:
            self.chat.history.append({"role": "assistant", "content": reply})
        self.sent = messages
        return receipt


class Curious(ScriptedServer):
    """An actor that looks up two of three remarks, if it may."""

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        newest = messages[-1]
        number = re.match(r"Remark (\d+)", str(newest["content"]))
        is_offered = any("call recall" in str(message["content"]) for message in messages)
        if model == ACTOR and is_offered and number and int(number[1]) % 3:
            arguments = orjson.dumps({"mode": "search", "query": "harbour"}).decode()
            function = {"name": "recall", "arguments": arguments}
            call = {"id": f"own-{number[1]}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        return super().choose_answer(model, messages, fault)


def check_difference(announced: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    """What neither side lacks of the other is the same, in the same order."""
    dropped, added = set(announced["dropped"]), set(announced["added"])
    stays = [m for index, m in enumerate(messages) if index not in dropped]
    assert stays == [m for index, m in enumerate(announced["messages"]) if index not in added]
    assert len(stays) + len(added) == len(announced["messages"])
    if announced["tokens_sent"] < announced["tokens_received"]:
        assert dropped


@pytest.mark.sample(4)
@pytest.mark.parametrize("layout", ["blocks", "merged"])
@pytest.mark.parametrize("scope", ["thread", "resource"])
@pytest.mark.parametrize(("seed", "retrieval"), [(1, "false"), (2, "false"), (3, "true")])
async def test_a_preview_is_what_goes_upstream(
    tmp_path: Path, scope: str, layout: str, seed: int, retrieval: str
) -> None:
    """With the tool for look-ups, and with those of earlier replies that are kept."""
    rng = random.Random(seed)
    told: Counter[str] = Counter()
    memory = f"scope: {scope}, retrieval: {retrieval}, {SMALL_LOG_MEMORY}"
    more = f"context: {{layout: {layout}}}\n            {SELDOM_LOOKING}"
    async with run_with_scripted_models(tmp_path, memory, more=more, models=Curious()) as run:
        clients = {
            thread: RandomClient(run.chat(thread, **{"x-om-resource": "ada"}), rng)
            for thread in ("one", "two")
        }
        for _ in range(STEPS):
            thread, client = rng.choice(list(clients.items()))
            messages = client.choose()
            body = {"model": ACTOR, "messages": messages, "stream": False}
            before = await settle(run, tmp_path)
            requests, rounds = len(run.models.requests), len(run.models.requests_to(ACTOR))
            announced = await preview(run, thread, body, "?resource=ada")
            assert dump(tmp_path) == before
            assert len(run.models.requests) == requests
            check_difference(announced, messages)
            receipt = await client.play(messages)
            told["kept"] += announced["bytes"].count(b'"own-') > 0
            kinds = {work["kind"] for work in announced["decisions"]}
            told.update(kinds)
            run.clock.now += rng.choice([1, 1, 1, 4_000])
            if kinds & {"observe", "reflect"}:
                continue  # the real request has waited for a model
            upstream = run.models.requests_to(ACTOR)[rounds].body
            assert list_message_bytes(announced["bytes"]) == list_message_bytes(upstream)
            assert announced["status"] == receipt["status"]
            assert announced["reason"] == receipt.get("reason")
            assert announced["recall"] == receipt.get("recall")
            assert list_tool_bytes(upstream) == list_announced_tool(announced["bytes"])
            assert str(announced["tokens_sent"]) == receipt["tokens-sent"]
            assert str(announced["tokens_received"]) == receipt["tokens-received"]
            parts = announced["parts"]
            assert sum(part["tokens"] for part in parts) == announced["tokens_sent"] or (
                announced["status"] == "applied"
            )
            told[announced["status"]] += 1
            told[announced["case"]] += 1
    assert told["applied"] > STEPS / 5
    assert {"extend", "retry"} <= set(told)
    assert (told["kept"] > 0) == (retrieval == "true")
    if scope == "thread":  # the background activates notes of a resource
        assert told["activate"]


async def test_a_wait_is_announced(tmp_path: Path) -> None:
    """Without buffering, the request that reaches the threshold waits for the observer. The preview
    says so, and calls nobody."""
    memory = "observation: {message_tokens: 600, buffer_tokens: false}"
    async with run_with_scripted_models(tmp_path, memory) as run:
        talk = run.chat("t")
        announced: dict[str, Any] = {"decisions": []}
        for number in range(12):
            message = {"role": "user", "content": f"Remark {number}. " * 60}
            body = {"model": ACTOR, "messages": [*talk.history, message]}
            calls = len(run.models.requests)
            announced = await preview(run, "t", body)
            assert len(run.models.requests) == calls
            if announced["decisions"]:
                break
            await talk.say(message["content"])
        assert [work["kind"] for work in announced["decisions"]] == ["observe"]
        assert announced["reason"] == "observer-late"
        receipt = (await talk.say(message["content"]))[1]
        assert receipt["status"] == "applied"


async def test_bytes_stay_the_clients(tmp_path: Path) -> None:
    """Messages keep their own JSON, escapes and unknown keys included. A half character would make
    the answer unreadable, and is replaced."""
    raw = b'{ "role":"user", "content":"caf\\u00e9 %b", "x_own" : 1.0e2 }'
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        url = f"{run.base}/om/v1/threads/t/context"
        headers = AUTH | {"content-type": "application/json"}
        for sent, shown in ((b"\\u20ac", b"\\u20ac"), (b"\\ud83d", b"\\ufffd")):
            body = b'{"model":"scripted-actor","messages":[' + raw % sent + b"]}"
            answer = await run.http.post(url, content=body, headers=headers)
            assert (answer.status_code, answer.content.count(raw % shown)) == (200, 1)


async def test_one_text_is_enough(tmp_path: Path) -> None:
    """For a client that sends only its newest message; a thread without memory is not found."""
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        talk = run.chat("t")
        for number in range(10):
            await talk.say(f"Remark {number}: " + "crate " * 100)
            await run.app.background.wait_idle()
        url = f"{run.base}/om/v1/threads"
        answer = (await run.http.get(f"{url}/t/context?text=And%20now?", headers=AUTH)).json()
        kinds = [part["kind"] for part in answer["parts"]]
        assert kinds[:3] == ["instructions", "notes", "observations"]
        assert kinds[-2:] == ["hint", "tail"]
        assert answer["status"] == "applied"
        assert answer["messages"][-1] == {"role": "user", "content": "And now?"}
        stable = [part["is_stable"] for part in answer["parts"]]
        assert stable == sorted(stable, reverse=True)
        missing = await run.http.get(f"{url}/nobody/context?text=x", headers=AUTH)
        assert missing.status_code == 404
        unsaid = await run.http.get(f"{url}/t/context", headers=AUTH)
        assert (unsaid.status_code, unsaid.json()["error"]["param"]) == (400, "text")


async def test_a_preview_reads_no_thread_that_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decode all of a full thread would take longer than the preview itself. Its version is
    asked for, so that a change by another process shows."""
    async with run_with_scripted_models(
        tmp_path, f"scope: resource, {SMALL_LOG_MEMORY}", more=SELDOM_LOOKING
    ) as run:
        talk = run.chat(**{"x-om-resource": "ada"})
        for number in range(10):
            await talk.say(f"Crate {number} weighs {number} kilos. " * 10)
        await settle(run, tmp_path)
        body = {"model": ACTOR, "messages": [{"role": "user", "content": "Where is it?"}]}
        before = await preview(run, "t", body, "?resource=ada")
        loaded: list[Key] = []
        load = run.app.store.load

        async def note_load(key: Key) -> Memory:
            loaded.append(key)
            return await load(key)

        monkeypatch.setattr(run.app.store, "load", note_load)
        assert (await preview(run, "t", body, "?resource=ada"))["bytes"] == before["bytes"]
        assert loaded == []
        [key] = [memory.key for memory in await run.memories()]
        other = await SqliteStore.open(tmp_path / "om.db")
        assert await other.forget(key)
        await other.close()
        assert (await preview(run, "t", body, "?resource=ada"))["case"] == "first"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"model": ACTOR, "messages": []}, "off", "no-messages"),
        ({"model": ACTOR, "messages": [{"role": "system", "content": "x"}]}, "off", "no-messages"),
    ],
)
async def test_a_request_without_memory(
    tmp_path: Path, body: dict[str, Any], status: str, reason: str
) -> None:
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        announced = await preview(run, "t", body)
        assert (announced["status"], announced["reason"]) == (status, reason)
        assert announced["messages"] == body["messages"]


async def test_an_unreadable_request_is_refused(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        url = f"{run.base}/om/v1/threads/t/context"
        headers = AUTH | {"content-type": "application/json"}
        for body in (b"{", b"[]", b'{"messages": 3}'):
            answer = await run.http.post(url, content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_bad_request")


async def test_a_body_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body to preview is as large as a chat's, and counts in the same budget of memory."""
    charged: list[int] = []
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
        budget = run.app.admission.budget
        compute = ContextPreviewer.preview

        async def watch(*given: Any) -> Preview:
            charged.append(budget.held_bytes)
            return await compute(*given)

        monkeypatch.setattr(ContextPreviewer, "preview", watch)
        body = {"model": ACTOR, "messages": [{"role": "user", "content": "x" * 3_000_000}]}
        await preview(run, "t", body)
        assert charged[0] >= 3 * 3_000_000
        assert budget.held_bytes == 0


async def test_a_message_that_is_none_is_named_with_its_cure(tmp_path: Path) -> None:
    """Another program has written the row."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("mine").say("Hello.")
        await run.app.background.wait_idle()
    with closing(sqlite3.connect(tmp_path / "om.db")) as connection, connection:
        connection.execute("UPDATE message SET raw = ?", (b"no json",))
    async with run_with_scripted_models(tmp_path) as run:
        answer = await run.http.get(
            f"{run.base}/om/v1/threads/mine/context?text=And%20now%3F", headers=AUTH
        )
        assert answer.status_code == 503
        assert "om-proxy store verify --repair" in answer.json()["error"]["message"]
        await verify_store(run.app.store, repairs=True)
        repaired = await run.chat("mine").send([{"role": "user", "content": "And now?"}])
        assert repaired[1]["status"] != "degraded"
        assert b"no json" in run.models.requests[-1].body
