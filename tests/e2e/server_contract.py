"""What the proxy promises on every store that is a server, over real sockets: a conversation with
notes, a server that is killed, slow or cut off, and a start without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
from structlog.testing import capture_logs

from tests.e2e.running import Running, run_with_scripted_models
from tests.support.waiting import until
from tests.support.wire import Wire, open_wire

# enough for an observation of each other turn
LONG = "The dock of the harbour is 2.85 m high and 14 m wide. " * 30
PASSWORD = "geheim"  # of each of these servers


class OwnServer(Protocol):
    """A server of one test's own. What it has stored outlives `kill`."""

    port: int

    def start(self) -> None: ...

    def kill(self) -> None: ...


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


def serve_in_vain(tmp_path: Path, section: str) -> str:
    """Run `serve` with this storage, which it refuses with status 3. Return its only line."""
    config = tmp_path / "om.yaml"
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
    assert ended.stdout == ""
    [line] = ended.stderr.strip().splitlines()
    return line


class ServerContract:
    """A test file of a store has the fixtures `server`, one that runs, and `storage`, the section
    that names it."""

    address: str  # of the server in a log, where {port} stands for its port

    @pytest.fixture
    async def wire(self, server: OwnServer) -> AsyncIterator[Wire]:
        """A way to the server that can be disturbed."""
        async with open_wire("127.0.0.1", server.port) as wire:
            yield wire

    @pytest.fixture
    def wired_storage(self, server: OwnServer, wire: Wire, storage: str) -> str:
        """The section of a store that is reached by the wire."""
        return storage.replace(f":{server.port}/", f":{wire.port}/")

    async def test_a_conversation_until_its_notes_are_applied(
        self, tmp_path: Path, storage: str
    ) -> None:
        """Messages are observed, notes activated, and prompts carry them; another process goes
        on."""
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
        self, tmp_path: Path, server: OwnServer, storage: str
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

    async def test_a_commit_whose_connection_is_cut(
        self, tmp_path: Path, wire: Wire, wired_storage: str
    ) -> None:
        """The server has written a turn, and its answer never comes: the proxy finds out, and the
        turn is stored once. Both for a thread's first turn and for a later one."""
        async with run_with_scripted_models(tmp_path, storage=wired_storage) as run:
            for number, text in enumerate(("one", "two", "three"), 1):
                if number != 2:
                    wire.cut_at_answer(b'"content":"%s"' % text.encode())
                await send_newest(run, text)
                await until(lambda: is_ready(run))
            assert wire.cuts == 2
            assert await read_said(run) == ["one", "two", "three"]

    async def test_a_server_that_says_nothing(
        self, tmp_path: Path, wire: Wire, wired_storage: str
    ) -> None:
        """It accepts connections and answers nothing: no request waits for long, and once it answers,
        every turn is there."""
        async with run_with_scripted_models(
            tmp_path, storage=wired_storage.replace("5s", "2s")
        ) as run:
            assert await send_newest(run, "one") == "raw"
            wire.stall()
            assert await send_newest(run, "two") == "degraded"
            assert await send_newest(run, "three") == "degraded"
            assert not await is_ready(run)
            wire.restore()
            await until(lambda: is_ready(run))
            assert await send_newest(run, "four") == "applied"
            assert await read_said(run) == ["one", "two", "three", "four"]

    async def test_a_server_far_away(self, tmp_path: Path, wire: Wire, wired_storage: str) -> None:
        """Each answer takes 200 ms: memory works all the same, and no turn is missing."""
        async with run_with_scripted_models(tmp_path, storage=wired_storage) as run:
            await send_newest(run, "one")
            wire.latency_s = 0.1
            assert await send_newest(run, "two") == "applied"
            assert await send_newest(run, "three") == "applied"
            assert await is_ready(run)
            wire.restore()
            assert await read_said(run) == ["one", "two", "three"]

    @pytest.mark.parametrize("sent_count", [1, 4], ids=["newest only", "window"])
    async def test_a_start_without_its_server(
        self, tmp_path: Path, server: OwnServer, storage: str, sent_count: int
    ) -> None:
        """Chat goes on without memory, `readyz` says so, and one line a minute names the address
        without its password. Memory comes with the server, and holds what was said without it, also
        what the client shows no more."""
        server.kill()
        with capture_logs() as events:
            async with run_with_scripted_models(tmp_path, storage=storage) as run:
                history: list[dict[str, str]] = []
                for text in ("one", "two", "three", "four"):
                    history.append({"role": "user", "content": text})
                    reply, receipt = await run.chat().send(history[-sent_count:])
                    history.append({"role": "assistant", "content": reply})
                    assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
                assert not await is_ready(run)
                server.start()
                await until(lambda: is_ready(run))
                history.append({"role": "user", "content": "five"})
                _, receipt = await run.chat().send(history[-sent_count:])
                assert receipt["status"] == "applied"
                assert await read_said(run) == ["one", "two", "three", "four", "five"]
        [complaint] = [event for event in events if event["event"] == "storage.unavailable"]
        assert complaint["log_level"] == "error"
        assert self.address.format(port=server.port) in complaint["said"]
        assert PASSWORD not in str(events)
