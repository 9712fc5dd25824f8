"""Turns whose memory could not be read when they came: kept whole, and known for what they were."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.edge.exchange import MIN_REPORTED_BODY_BYTES
from om_proxy.engine.memory_cache.loading import MemoryLoader
from om_proxy.engine.turns.due_notes import DueNotes
from om_proxy.engine.turns.turn import OpenedTurn
from om_proxy.memory.model import Memory, extend_chain
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.e2e.trouble import FailingStore, wrap_opened_stores

MAX_WAIT_S = 60.0
WINDOW, NEWEST = 4, 1  # messages of a request
TURNS_AWAY = 3
REASONS = ("storage", "memory-slow", "memory-error", "conflict")


async def thin(chat: Chat, text: str) -> str:
    """A turn of a client that sends only its newest message; why memory did not work."""
    _, receipt = await chat.send([{"role": "user", "content": text}])
    return receipt.get("reason", "")


async def said(run: Running, count: int) -> list[str]:
    """What the client said, as stored, once it is so much or will never be."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_WAIT_S
    while True:
        stored = await run.app.store.messages((await run.memory()).key, 0)
        found = [orjson.loads(m.item.raw)["content"] for m in stored if m.item.role == "user"]
        if len(found) >= count or loop.time() > until:
            return found
        await asyncio.sleep(0.1)


async def say_in_window(chat: Chat, text: str, sent_count: int) -> str:
    """A turn of a client that sends its last messages; why memory did not work."""
    chat.history.append({"role": "user", "content": text})
    reply, receipt = await chat.send(chat.history[-sent_count:])
    chat.history.append({"role": "assistant", "content": reply})
    return receipt.get("reason", "")


async def find_all(run: Running, chat: Chat) -> list[str]:
    """What is stored, once it has as many messages as the client, or never will."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_WAIT_S
    while True:
        found: list[str] = []
        with suppress(StorageError):  # it is asked once a second for a while
            for memory in await run.memories():
                stored = await run.app.store.messages(memory.key, 0)
                found += [orjson.loads(message.item.raw)["content"] for message in stored]
        if len(found) >= len(chat.history) or loop.time() > until:
            return found
        await asyncio.sleep(0.05)


async def refuse_load(*_: Any) -> None:
    raise Conflict("the shared log has changed")


def trouble_store(store: FailingStore, how: str, patch: pytest.MonkeyPatch) -> None:
    if how == "memory-slow":
        store.slow()
    elif how == "conflict":  # no store's read is one
        patch.setattr(MemoryLoader, "load", refuse_load)
    elif how == "memory-error":
        store.raising(RuntimeError("the driver is confused"))
    else:
        store.raising(StorageError("the disk is gone"))


@pytest.mark.parametrize(
    ("how", "known_turns", "sent_count"),
    [
        ("storage", 0, WINDOW),
        ("storage", 4, WINDOW),
        # so far a window has shown the whole thread
        *((how, 1, count) for how in REASONS for count in (WINDOW, NEWEST)),
    ],
)
async def test_a_window_that_scrolls_past_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, known_turns: int, sent_count: int
) -> None:
    """A client with its last messages, or the newest alone, never sends the first ones again. All
    of them are stored, in order, whatever kept the memory from being read."""
    monkeypatch.setattr("om_proxy.engine.turns.deferred.COMMIT_TIMEOUT_S", 0.1)
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        chat.history.clear()
        for number in range(known_turns):
            assert await say_in_window(chat, f"before {number}", sent_count) == ""
        with monkeypatch.context() as hurried:
            hurried.setattr("om_proxy.edge.chat.MAX_OPEN_S", 0.1)
            trouble_store(opened[0], how, hurried)
            reasons = [
                await say_in_window(chat, f"away {number}", sent_count)
                for number in range(TURNS_AWAY)
            ]
        opened[0].well()
        assert reasons[0] == how
        assert all(reasons)
        await say_in_window(chat, "back", sent_count)
        assert await find_all(run, chat) == [m["content"] for m in chat.history]


async def test_a_commit_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error is: the client has the whole reply, so its turn is tried again."""
    monkeypatch.setattr("om_proxy.engine.turns.engine.MAX_HELD_REPLY_END_S", 0.1)
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await thin(chat, "one")
        opened[0].raising(RuntimeError("the driver is confused"), "commit")
        assert await thin(chat, "two") == ""
        opened[0].well()
        await thin(chat, "three")
        assert await said(run, 3) == ["one", "two", "three"]


async def test_a_large_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else holds it: what its request needs is not let go when the answer begins."""
    opened, large = wrap_opened_stores(monkeypatch), "x" * (MIN_REPORTED_BODY_BYTES + 1)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await thin(chat, "one")
        opened[0].raising(StorageError("the disk is gone"))
        assert await thin(chat, large) == "storage"
        opened[0].well()
        await thin(chat, "three")
        assert await said(run, 3) == ["one", large, "three"]


async def test_the_same_words_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply was seen, so they are a new message and no retry."""
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await thin(chat, "one")
        await thin(chat, "two")
        opened[0].raising(StorageError("the disk is gone"))
        assert await thin(chat, "go on") == "storage"
        opened[0].well()
        assert await said(run, 3) == ["one", "two", "go on"]
        await thin(chat, "go on")
        assert await said(run, 4) == ["one", "two", "go on", "go on"]


async def test_the_store_goes_away_after_the_message_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was to wait for an observation, so its message is stored ahead of its reply. It
    stands once, also behind what others say before the rest is stored."""
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await thin(chat, "one")
        await thin(chat, "two")

        async def store_then_fail(notes: DueNotes, turn: OpenedTurn, _: object) -> OpenedTurn:
            await notes.committer.store_unanswered(turn)
            opened[0].raising(StorageError("the disk is gone"))
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(DueNotes, "apply", store_then_fail)
            assert await thin(chat, "three") == "storage"
        opened[0].well()
        other = await run.app.store.load((await run.memory()).key)
        said_elsewhere = replace(
            other.tail[0],
            seq=other.next_seq,
            at=other.tail[-1].at + 0.01,
            chain=extend_chain(other.chain, other.tail[0].item.fp),
        )
        await run.app.store.commit(
            other,
            replace(other, tail=(*other.tail, said_elsewhere), next_seq=other.next_seq + 1),
        )
        await thin(chat, "four")
        assert await said(run, 5) == ["one", "two", "three", "one", "four"]


async def test_a_commit_that_is_cut_after_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try knows that the turn may be stored, so it stands once, though others have spoken
    since and its request is no longer recorded."""
    monkeypatch.setattr("om_proxy.engine.turns.deferred.COMMIT_TIMEOUT_S", 0.2)
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await thin(chat, "one")
        await thin(chat, "two")
        store = opened[0]._store
        write, is_cut = store.commit, asyncio.Event()

        async def write_and_hang(*arguments: Any) -> Memory:
            stored = await write(*arguments)
            if not is_cut.is_set():
                await write(stored, replace(stored, views=()))
                is_cut.set()
                await asyncio.Event().wait()
            return stored

        opened[0].raising(StorageError("the disk is gone"))
        assert await thin(chat, "three") == "storage"
        monkeypatch.setattr(store, "commit", write_and_hang)
        opened[0].well()
        await asyncio.wait_for(is_cut.wait(), MAX_WAIT_S)
        await thin(chat, "four")  # waits until the turn before it is stored
        assert await said(run, 4) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("trouble", ["raises", "hangs"])
async def test_refused_where_settings_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """`storage.on_down: 503`: what cannot be understood without memory is refused before a model is
    asked, and nothing of it is stored. What shows its conversation goes on."""
    opened = wrap_opened_stores(monkeypatch)
    storage = f'url: "sqlite:///{tmp_path}/om.db", on_down: 503'
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        chat = run.chat()
        await chat.say("one")
        if trouble == "raises":
            opened[0].raising(StorageError("the disk is gone"))
        else:
            opened[0].slow()
            monkeypatch.setattr("om_proxy.edge.chat.MAX_OPEN_S", 0.2)
        asked = len(run.models.requests)
        answer = await send_newest(run, "two")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "om_storage")
        assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
        assert len(run.models.requests) == asked
        _, receipt = await chat.say("three")
        assert receipt["status"] == "degraded"
        opened[0].well()
        monkeypatch.setattr("om_proxy.edge.chat.MAX_OPEN_S", MAX_WAIT_S)
        assert (await send_newest(run, "four")).status_code == 200
        assert await said(run, 3) == ["one", "three", "four"]


async def send_newest(run: Running, text: str) -> httpx.Response:
    body = {"model": "scripted-actor", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": "Bearer sk-a", "x-om-thread": "t"}
    return await run.http.post(f"{run.base}/v1/chat/completions", json=body, headers=headers)
