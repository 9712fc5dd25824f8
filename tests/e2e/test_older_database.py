"""A database that an older om-proxy wrote is opened and gone on with: its threads are known, their
prompts are as they were.

`tests/storage/older/0002.sql` is the dump of one that was written with migrations 1 and 2: a thread
with a log of its own, and two threads that share a log. `0002.json` holds what their clients had
said, and the prompts that the older program sent next.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from om_proxy.memory.message_list import MessageList
from om_proxy.storage.sqlite.store import SqliteStore
from tests.e2e.running import run_with_scripted_models

OLDER = Path(__file__).parents[1] / "storage" / "older"
SMALL = "observation: {message_tokens: 300, buffer_tokens: 60, block_timeout: 2s}, reflection: {observation_tokens: 150}"
SCOPES = {"lone": "thread", "one": "resource", "two": "resource"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "om.db")) as database:
        database.executescript((OLDER / "0002.sql").read_text())
    return tmp_path


def told(body: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """What the memory tells in a prompt, its framing left out: the lines of its notes, and the
    messages behind them. What other conversations said since is told otherwise now: with their
    notes, where those are ready."""
    messages = body["messages"]
    block = next(m["content"] for m in messages if "<observations>" in str(m["content"]))
    raw = [
        m
        for m in messages
        if m["role"] != "system" and not m["content"].startswith("Note from the system")
    ]
    return re.findall(
        r"^\s*\*.*|^<thread.*", block.partition("</observations>")[0], flags=re.MULTILINE
    ), raw


async def test_it_goes_on(folder: Path) -> None:
    """Every thread is recognised by its whole history, and its next prompt tells byte for byte what
    the older program told."""
    older = json.loads((OLDER / "0002.json").read_text())
    for name, scope in SCOPES.items():
        async with run_with_scripted_models(folder, f"{SMALL}, scope: {scope}") as run:
            talk = run.chat(name, **({"x-om-resource": "ada"} if scope == "resource" else {}))
            talk.history = older["histories"][name]
            run.clock.now += 60
            _, receipt = await talk.say("What goes where?")
            assert receipt["status"] == "applied"
            sent = [seen.body for seen in run.models.requests if seen.model == "scripted-actor"]
            expected = older["sent"][name]
            assert told(json.loads(sent[-1])) == told(json.loads(expected))
            await run.app.background.wait_idle()
            (memory,) = [m for m in await run.memories() if m.key.thread == name]
            assert memory.count == len(talk.history) - 1
            assert MessageList.of(memory.tail).encodings <= {
                "o200k_base"
            }  # counted anew after the reply


async def test_its_counts_are_of_an_unknown_encoding(folder: Path) -> None:
    """They serve until a reply has come; nothing else of a row has changed."""
    with closing(sqlite3.connect(folder / "om.db")) as database:
        before = database.execute(
            "SELECT thread_id, seq, tokens, raw FROM message ORDER BY 1, 2"
        ).fetchall()
    store = await SqliteStore.open(folder / "om.db")
    infos = await store.threads(None)
    memories = [await store.load(info.key) for info in infos]
    assert {m.encoding for memory in memories for m in memory.tail} == {""}
    assert all(memory.row_id for memory in memories)
    # what lists show was counted by the migration
    assert [info.pending_tokens for info in infos] == [m.pending_tokens for m in memories]
    own_logs = [(i, m) for i, m in zip(infos, memories, strict=True) if m.scope == "thread"]
    assert [i.log_tokens for i, _ in own_logs] == [m.log.tokens for _, m in own_logs]
    assert any(info.log_tokens for info in infos)
    assert any(info.pending_tokens for info in infos)
    log = [o for memory in memories for o in memory.log.entries]
    assert {o.depth for o in log if o.kind == "reflection"} == {1}
    assert {o.depth for o in log if o.kind != "reflection"} <= {0}
    await store.close()
    with closing(sqlite3.connect(folder / "om.db")) as database:
        assert (
            database.execute(
                "SELECT thread_id, seq, tokens, raw FROM message ORDER BY 1, 2"
            ).fetchall()
            == before
        )
