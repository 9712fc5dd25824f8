"""The proxy on Redis, over real sockets: a conversation with notes, a server that is killed, full or
cut off, and a start without one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.errors import OmError
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.own_redis import PASSWORD, OwnRedis, own_redis
from tests.support.wire import open_wire

# enough for an observation of each other turn
LONG = "The dock of the harbour is 2.85 m high and 14 m wide. " * 30


@pytest.fixture
def server() -> Iterator[OwnRedis]:
    with own_redis() as made:
        made.start()
        yield made


@pytest.fixture
def storage(server: OwnRedis) -> str:
    return f'url: "{server.url}", connections: 4, timeout: 5s'


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def is_ready(run: Running) -> bool:
    return bool((await run.http.get(f"{run.base}/readyz")).json()["status"] == "ok")


async def send_newest(run: Running, text: str) -> str:
    """Send a thin client's turn. Return its status."""
    reply, receipt = await run.chat().send([{"role": "user", "content": text}])
    assert reply
    return receipt["status"]


async def read_said(run: Running) -> list[str]:
    """Return what the client said, as stored."""
    messages = await run.app.store.messages((await run.memory()).key, 0)
    said = [json.loads(m.item.raw)["content"] for m in messages if m.item.role == "user"]
    assert len(messages) == 2 * len(said)
    return said


async def test_a_conversation_until_its_notes_are_applied(tmp_path: Path, storage: str) -> None:
    """Messages are observed, notes activated, and prompts carry them; another process goes on."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        chat = run.chat()
        for turn in range(8):
            _, receipt = await chat.say(f"{turn}. {LONG}")
            await run.app.background.wait_idle()
        assert receipt["status"] == "applied"
        memory = await run.memory()
        assert memory.log.entries
        assert memory.coverage > 0
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        assert await run.memory() == memory
        chat.running = run
        _, receipt = await chat.say("And how wide is it?")
        assert receipt["status"] == "applied"
        assert (await run.memory()).count == memory.count + 2


async def test_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, server: OwnRedis, storage: str
) -> None:
    """Every chat request is answered meanwhile, and every turn that was answered is stored
    afterwards, without a restart; also of a client that sends its newest message alone."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        assert await send_newest(run, "one") == "raw"
        server.kill()
        assert await send_newest(run, "two") == "degraded"
        assert await send_newest(run, "three") == "degraded"
        assert not await is_ready(run)
        server.start()
        await until(lambda: is_ready(run))
        assert await send_newest(run, "four") != "degraded"
        assert await read_said(run) == ["one", "two", "three", "four"]


async def test_a_server_that_is_full(tmp_path: Path, server: OwnRedis, storage: str) -> None:
    """It refuses every write. Chat goes on, and once it has room, every turn is there."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        assert await send_newest(run, "one") == "raw"
        server.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(OmError, match="it is full; raise its maxmemory"):
            await run.app._reopening.ping()
        await send_newest(run, "two")
        await send_newest(run, "three")
        assert not await is_ready(run)
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await until(lambda: is_ready(run))
        assert await send_newest(run, "four") != "degraded"
        assert await read_said(run) == ["one", "two", "three", "four"]


async def test_a_commit_whose_connection_is_cut(tmp_path: Path, server: OwnRedis) -> None:
    """The server has written a turn, and its answer never comes: the proxy finds out, and the turn
    is stored once. Both for a thread's first turn and for a later one."""
    async with open_wire("127.0.0.1", server.port) as wire:
        url = server.url.replace(str(server.port), str(wire.port))
        storage = f'url: "{url}", connections: 4, timeout: 5s'
        async with run_with_scripted_models(tmp_path, storage=storage) as run:
            for number, text in enumerate(("one", "two", "three"), 1):
                if number != 2:
                    wire.cut_at_answer(b'"content":"%s"' % text.encode())
                await send_newest(run, text)
                await until(lambda: is_ready(run))
            assert wire.cuts == 2
            assert await read_said(run) == ["one", "two", "three"]


async def test_a_log_that_lost_its_end(tmp_path: Path, server: OwnRedis, storage: str) -> None:
    """The server comes back without its newest turn, and gives its version out again: nothing that
    was read before counts."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        await send_newest(run, "My boat is red.")
        [log] = server.folder.glob("appendonlydir/*.incr.aof")
        kept = log.read_bytes()
        await send_newest(run, "It is fast.")
        server.kill()
        log.write_bytes(kept)
        server.start()
        await send_newest(run, "Which colour?")
        asked = run.models.requests_to("scripted-actor")[-1].body
        assert b"My boat is red." in asked
        assert b"It is fast." not in asked


async def test_a_start_without_its_server(tmp_path: Path, server: OwnRedis, storage: str) -> None:
    """Chat goes on without memory, `readyz` says so, and one line a minute names the address without
    its password. Memory comes with the server."""
    server.kill()
    with capture_logs() as events:
        async with run_with_scripted_models(tmp_path, storage=storage) as run:
            for text in ("one", "two"):
                reply, receipt = await run.chat().say(text)
                assert reply
                assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
            assert not await is_ready(run)
            server.start()
            await until(lambda: is_ready(run))
            _, receipt = await run.chat().say("three")
            assert receipt["status"] == "raw"
    [complaint] = [event for event in events if event["event"] == "storage.unavailable"]
    assert complaint["log_level"] == "error"
    assert f"redis://127.0.0.1:{server.port}/0" in complaint["said"]
    assert PASSWORD not in str(events)


def test_a_command_line_that_cannot_start(tmp_path: Path, server: OwnRedis) -> None:
    """A server that may drop memories: one line and status 3; no password in it."""
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    config = tmp_path / "om.yaml"
    section = f'url: "{server.url}", required: true'
    config.write_text(f"storage: {{{section}}}\nserver: {{port: 0}}\n", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "om_proxy", "serve", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 3
    [line] = ended.stderr.strip().splitlines()
    assert "set maxmemory-policy noeviction" in line
    assert PASSWORD not in ended.stderr + ended.stdout
