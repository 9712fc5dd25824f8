"""What the log calls a thread: a label that tells nothing, the same in every line, and shown to who
may see the thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.scripted import Fault
from tests.e2e.running import SMALL, Chat, Running, run_with_scripted_models
from tests.e2e.tenancy.world import Minds
from tests.e2e.written import LogLines, collect_log_lines

THREAD, RESOURCE = "alice@example.com/divorce-lawyer", "alice@example.com"
ZONE = "Antarctica/Vostok"
CANARIES = ("alice", "divorce", "Vostok", "sk-a")
LONG = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # about 180 tokens
REFLECTS = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s}, reflection: {observation_tokens: 700}"


@asynccontextmanager
async def talking(
    tmp_path: Path, memory: str = SMALL
) -> AsyncIterator[tuple[Running, Chat, LogLines]]:
    """A thread whose names tell something, and all that is logged while it talks."""
    with collect_log_lines() as out:
        async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
            yield run, run.chat(THREAD, **{"x-om-resource": RESOURCE, "x-om-timezone": ZONE}), out
    assert not [canary for canary in CANARIES if canary in out.text]


async def say(run: Running, talk: Chat, turns: int) -> None:
    for _ in range(turns):
        await talk.say(LONG.format(n=len(talk.history)))
        await run.app.background.wait_idle()


async def shown(run: Running, path: str = "") -> dict[str, Any]:
    answer: httpx.Response = await run.http.get(
        f"{run.base}/om/v1/threads{path}", headers={"authorization": "Bearer sk-a"}
    )
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def test_every_line_says_the_same_label(tmp_path: Path) -> None:
    """Of the request, of what is observed, and of what is reflected; the admin API shows it beside
    the name, listed and alone."""
    async with talking(tmp_path, REFLECTS) as (run, talk, out):
        while not out.threads("reflected")["reflected"]:
            await say(run, talk, 1)
        (listed,) = (await shown(run))["threads"]
        alone = await shown(run, f"/alice%40example.com%2Fdivorce-lawyer?resource={RESOURCE}")
    assert len(listed["label"]) == 16
    assert alone["label"] == listed["label"]
    assert set(map(frozenset, out.threads("turn", "observed", "reflected").values())) == {
        frozenset([listed["label"]])
    }


async def test_two_threads_have_two(tmp_path: Path) -> None:
    """Also where only the tenant or the resource differs; a request without a thread names none."""
    async with talking(tmp_path) as (run, talk, out):
        others = (
            run.chat(THREAD, key="sk-b"),
            run.chat(THREAD),
            run.chat("t"),
            Chat(run, {"authorization": "Bearer sk-a"}),
        )
        for chat in (talk, *others):
            await chat.say("hello")
    found = out.threads("turn")["turn"]
    assert len(found) == 5
    assert None in found


async def test_a_log_that_is_shared(tmp_path: Path) -> None:
    """Lines about what all threads of a resource have in common name it by a label of its own,
    which the list shows beside each."""
    async with talking(tmp_path, f"scope: resource, {REFLECTS}") as (run, talk, out):
        while not out.threads("reflected")["reflected"]:
            await say(run, talk, 1)
        (listed,) = (await shown(run))["threads"]
    assert out.threads("turn", "reflected") == {
        "turn": {listed["label"]},
        "reflected": {listed["resource_label"]},
    }
    assert listed["label"] != listed["resource_label"]


async def test_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer's failure, a store that cannot be read or written: told of the same label, and
    with no more words."""

    async def broken(*_: object) -> None:
        raise StorageError(f"no row for {THREAD}")

    async with talking(tmp_path) as (run, talk, out):
        run.models.faults.switch(Fault(kind="http", model="scripted-observer", status=401))
        await say(run, talk, 3)
        monkeypatch.setattr(
            "om_proxy.wire.apis.chat.chat_api.ChatApi.build_split", lambda *_: 1 / 0
        )
        monkeypatch.setattr(SqliteStore, "commit", broken)
        await say(run, talk, 1)
        monkeypatch.setattr(run.app.chat._engine, "open_turn", broken)
        await say(run, talk, 1)
    events = ("turn", "observe.failed", "split.failed", "memory.uncommitted", "memory.bypassed")
    (named,) = set(map(frozenset, out.threads(*events).values()))
    assert len(named) == 1
