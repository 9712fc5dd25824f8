"""An API key was rotated, and its memory moved to the new one: clients with the new key go on as
they would have with the old one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.cli.commands.store_moving import move_tenant
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.sqlite.store import SqliteStore
from tests.e2e.running import Running, run_with_scripted_models

OLD, NEW = "sk-old", "sk-new"
SMALL = "observation: {message_tokens: 600, buffer_tokens: 150, block_timeout: 2s}, reflection: {observation_tokens: 700}"
LONG = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 4
NEXT = {"role": "user", "content": "And what goes where?"}

History = list[dict[str, Any]]


def respelled(history: History) -> History:
    """The same messages in other bytes: what they are can be told by their fingerprints only."""
    return [
        {"content": [{"type": "text", "text": m["content"]}], "role": m["role"]}
        if m["role"] == "user"
        else m
        for m in history
    ]


# What a client sends next, of what it has said so far: instructions, then user and assistant in
# turns.
REQUESTS: dict[str, Callable[[History], History]] = {
    "goes on": lambda history: [*history, NEXT],
    "spells it otherwise": lambda history: [*respelled(history), NEXT],
    "tries again": lambda history: history[:-1],
    "sends its newest message only": lambda history: [history[0], NEXT],
    "sends a window": lambda history: [history[0], *history[-5:], NEXT],
    "edits what was observed": lambda history: [
        *history[:4],
        {"role": "assistant", "content": "No."},
        NEXT,
    ],
    "edits its newest": lambda history: [*history[:-2], {"role": "user", "content": "Wait, no."}],
}


@dataclass
class Told:
    """A folder with a database, and what the client of its thread has said."""

    folder: Path
    scope: str
    history: History

    @property
    def memory(self) -> str:
        return f"{SMALL}, scope: {self.scope}"


async def talk(run: Running, thread: str, turns: int, key: str = OLD) -> History:
    chat = run.chat(thread, key=key, **{"x-om-resource": "ada"})
    for _ in range(turns):
        await chat.say(LONG.format(n=len(chat.history)))
        run.clock.now += 1
        await run.app.background.wait_idle()
    return chat.history


async def prepared(folder: Path, scope: str) -> Told:
    async with run_with_scripted_models(folder, f"{SMALL}, scope: {scope}") as run:
        await talk(run, "other", 5)
        history = await talk(run, "t", 14)
        memories = {memory.key.thread: memory for memory in await run.memories()}
        assert memories["t"].chunks
        assert memories["t"].coverage > 4
    return Told(folder, scope, history)


@pytest.fixture(scope="module", params=["thread", "resource"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    return asyncio.run(prepared(tmp_path_factory.mktemp(request.param), request.param))


async def moved(folder: Path, old: str = OLD, new: str = NEW) -> int:
    store = await SqliteStore.open(folder / "om.db")
    try:
        return await move_tenant(store, old, new)
    finally:
        await store.close()


def copied(told: Told, to: Path) -> Path:
    to.mkdir()
    shutil.copy(told.folder / "om.db", to / "om.db")
    return to


async def after(told: Told, folder: Path, key: str, sent: History) -> tuple[Any, ...]:
    """What the actor is sent for this request, and what is stored then; threads by name, whatever
    their labels."""
    async with run_with_scripted_models(folder, told.memory) as run:
        run.clock.now += 100
        reply, receipt = await run.chat("t", key=key, **{"x-om-resource": "ada"}).send(sent)
        await run.app.background.wait_idle()
        body = [seen.body for seen in run.models.requests if seen.model == "scripted-actor"][
            -1
        ].decode()
        store = run.app.store
        keys = [info.key for info in await store.threads(None)]
        assert len({key.tenant for key in keys}) == 1
        (mine,) = [found for found in keys if found.thread == "t"]
        memory, outline = await store.load(mine), await store.outline(mine)
        shared_log = await store.load(mine._replace(thread=RESOURCE_THREAD))
        notes = str(
            [
                [o.text for o in log]
                for log in (memory.log.entries, memory.chunks, shared_log.log.entries)
            ]
        )
        for found in keys:
            label = label_thread(await store.secret(), found)
            body, notes = body.replace(label, found.thread), notes.replace(label, found.thread)
        texts = [m.item.raw for m in await store.messages(mine, 0)]
        return (
            reply,
            receipt["status"],
            body,
            texts,
            len(outline.superseded),
            memory.coverage,
            notes,
            memory.style,
        )


@pytest.mark.parametrize("sends", REQUESTS.values(), ids=REQUESTS)
async def test_it_goes_on(told: Told, tmp_path: Path, sends: Callable[[History], History]) -> None:
    """Whatever a client sends next, the prompt and what is stored are those of a key that was never
    rotated."""
    stayed, gone_over = copied(told, tmp_path / "stayed"), copied(told, tmp_path / "moved")
    assert await moved(gone_over) == 0
    sent = sends(told.history)
    assert await after(told, gone_over, NEW, sent) == await after(told, stayed, OLD, sent)


async def test_beside_a_running_server(told: Told, tmp_path: Path) -> None:
    """Its caches hold the old key's threads, and that the new key has none: both are found to be
    otherwise."""
    folder = copied(told, tmp_path / "om")
    async with run_with_scripted_models(folder, told.memory) as run:
        ada = {"x-om-resource": "ada"}
        before = {
            info.key.thread: (await run.app.store.load(info.key)).count
            for info in await run.app.store.threads(None)
        }
        old, new = (
            run.chat("t", key=OLD, **ada),
            run.chat("t", key=NEW, **ada, **{"x-om-mode": "read"}),
        )
        for chat in (old, new):
            await chat.send([*told.history, NEXT])
        assert await moved(folder) == 0
        talk = run.chat("t", key=NEW, **ada)
        talk.history = list(told.history)
        _, receipt = await talk.say(NEXT["content"])
        assert receipt["status"] == "applied"
        counts = {info.key: info.messages for info in await run.app.store.threads(None)}
        assert {key.thread: count for key, count in counts.items()} == before | {
            "t": before["t"] + 2
        }
        assert len({key.tenant for key in counts}) == 1
        headers = {"authorization": f"Bearer {OLD}"}
        assert (
            await run.http.get(f"{run.base}/om/v1/threads/t?resource=ada", headers=headers)
        ).status_code == 404


async def test_what_is_in_the_way(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client has used the new key already: nothing moves, and it is said how many, and what to
    do."""
    folder = copied(told, tmp_path / "om")
    async with run_with_scripted_models(folder, told.memory) as run:
        await talk(run, "t", 1, NEW)
        theirs = [info.key for info in await run.app.store.threads(None) if info.messages == 2]
        assert await moved(folder) == 5
        complaint = capsys.readouterr().err
        assert "nothing was moved" in complaint
        assert f"{1 if told.scope == 'thread' else 2} threads or shared logs" in complaint
        assert theirs[0].tenant in complaint
        assert not any(key in complaint for key in (OLD, NEW))
        await run.app.store.forget(theirs[0])
        assert await moved(folder) == 0


async def test_there_and_back(told: Told, tmp_path: Path) -> None:
    """A move that was a mistake is undone by another one: everything is as it was."""
    folder = copied(told, tmp_path / "om")
    store = await SqliteStore.open(folder / "om.db")
    before = [await contents(store, info.key) for info in await store.threads(None)]
    assert await move_tenant(store, OLD, NEW) == 0
    assert await move_tenant(store, OLD, NEW) == 4
    assert await move_tenant(store, NEW, OLD) == 0
    assert [await contents(store, info.key) for info in await store.threads(None)] == before
    await store.close()


async def contents(store: SqliteStore, key: Key) -> tuple[Any, ...]:
    """All but the version. Parts of an entry may stand in any order."""
    memory = await store.load(key)
    shared_log = await store.load(key._replace(thread=RESOURCE_THREAD))
    return (
        orjson.dumps([[m.item.fp.hex(), m.chain.hex()] for m in memory.tail]),
        [(view.digest, view.chain) for view in memory.views],
        [
            (o.text, o.chain, sorted(o.parts, key=str))
            for o in (*memory.log.entries, *memory.chunks, *shared_log.log.entries)
        ],
        await store.outline(key),
    )
