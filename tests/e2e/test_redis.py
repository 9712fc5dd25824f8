"""Redis keeps the contract of servers, and what only Redis does: it is full, or loses the end of its
log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from om_proxy.common.errors import OmError
from tests.e2e.running import run_with_scripted_models
from tests.e2e.server_contract import (
    ServerContract,
    is_ready,
    read_said,
    send_newest,
    serve_in_vain,
)
from tests.support.own_redis import PASSWORD, OwnRedis, own_redis
from tests.support.waiting import until


@pytest.fixture
def server() -> Iterator[OwnRedis]:
    with own_redis() as made:
        made.start()
        yield made


@pytest.fixture
def storage(server: OwnRedis) -> str:
    return f'url: "{server.url}", connections: 4, timeout: 5s'


class TestRedis(ServerContract):
    """The whole contract."""

    address = "redis://127.0.0.1:{port}/0"


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


def test_a_command_line_that_cannot_start(tmp_path: Path, server: OwnRedis) -> None:
    """A server that may drop memories: one line and status 3; no password in it."""
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    line = serve_in_vain(tmp_path, f'url: "{server.url}", required: true')
    assert "set maxmemory-policy noeviction" in line
    assert PASSWORD not in line
