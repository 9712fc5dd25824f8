"""A store is copied through every kind of store, and a proxy on each copy goes on where the first
one stood."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from om_proxy.cli import main
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

# enough for an observation of each other turn
LONG = "The dock of the harbour is 2.85 m high and 14 m wide. " * 30
KINDS = ("first", "postgres", "redis", "last")


@pytest.fixture
def storages(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The keys of `storage` of a SQLite file, a PostgreSQL, a Redis and another file."""
    postgres, redis = find_postgres_url(), find_redis_url()
    with own_schema(postgres) as schema, own_prefix(redis) as prefix:
        patient = "connections: 4, timeout: 30s"
        storages = {
            "first": f'url: "sqlite:///{tmp_path}/first.db"',
            "postgres": f'url: "{postgres}", prefix: {schema}, {patient}',
            "redis": f'url: "{redis}", prefix: {prefix}, {patient}',
            "last": f'url: "sqlite:///{tmp_path}/last.db"',
        }
        for name, keys in storages.items():
            (tmp_path / f"{name}.yaml").write_text(f"storage: {{{keys}}}\n")
        yield storages


@asynccontextmanager
async def run_at_present(folder: Path, storage: str) -> AsyncIterator[Running]:
    """Run a proxy whose clock is the machine's, as that of a server is."""
    async with run_with_scripted_models(folder, storage=storage) as run:
        if "sqlite" in storage:
            run.clock.now = time.time()
        yield run


async def run_command(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


def count_different_exports() -> int:
    return len({Path(f"{kind}.jsonl").read_bytes() for kind in KINDS})


async def go_on(run: Running, chat: Chat) -> tuple[Any, str]:
    """Speak once more. Return the prompt that went upstream and the receipt's status."""
    chat = Chat(run, chat.headers, copy.deepcopy(chat.history))
    _, receipt = await chat.say("And how wide is it?")
    return run.models.requests_to("scripted-actor")[-1].messages, receipt["status"]


async def test_every_copy_goes_on(
    tmp_path: Path,
    storages: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the notes applied and the same prompt, byte for byte; the exports are identical."""
    monkeypatch.chdir(tmp_path)
    async with run_at_present(tmp_path, storages["first"]) as run:
        chats = [run.chat("a"), run.chat("b", **{"x-om-resource": "team"})]
        for turn in range(8):
            for chat in chats:
                await chat.say(f"{turn}. {LONG}")
                await run.app.background.wait_idle()
    for one, next_one in pairwise(KINDS):
        assert (
            await run_command("store", "copy", f"{one}.yaml", f"{next_one}.yaml", "--verify") == 0
        )
        assert "verified: both stores are equal" in capsys.readouterr().out
    for kind in KINDS:
        export = ("export", "--all", "--with-secret", "--output", f"{kind}.jsonl")
        assert await run_command(*export, "--config", f"{kind}.yaml") == 0
    assert await asyncio.to_thread(count_different_exports) == 1
    told = []
    for kind in KINDS:
        async with run_at_present(tmp_path, storages[kind]) as run:
            told.append([await go_on(run, chat) for chat in chats])
    for (prompt, status), *others in zip(*told, strict=True):
        assert status == "applied"
        assert others == [(prompt, status)] * (len(KINDS) - 1)
