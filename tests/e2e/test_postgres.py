"""PostgreSQL keeps the contract of servers, and what only PostgreSQL does: it becomes read-only, is
restored from a backup, or has no connection left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from om_proxy.app.app import App
from om_proxy.common.errors import StorageError
from om_proxy.settings.config import parse
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.postgres.queries import MARK_DELIVERED, MARK_UNLOCKED_DELIVERED
from om_proxy.storage.postgres.session import Session
from tests.e2e.running import run_with_scripted_models
from tests.e2e.server_contract import (
    ServerContract,
    is_ready,
    read_said,
    send_newest,
    serve_in_vain,
)
from tests.support.own_postgres import OwnPostgres, own_postgres
from tests.support.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnPostgres]:
    with own_postgres() as server:
        yield server


@pytest.fixture
def server(cluster: OwnPostgres) -> Iterator[OwnPostgres]:
    """A server that runs, and has no connection to spare for idlers."""
    cluster.start("max_connections=12", "superuser_reserved_connections=0")
    yield cluster
    cluster.kill()


@pytest.fixture
def storage(server: OwnPostgres, request: pytest.FixtureRequest) -> str:
    """The section, with a schema of the test's own."""
    name = f"om_{abs(hash(request.node.name)):x}"[:30]
    return f'url: "{server.url}", prefix: {name}, connections: 4, timeout: 5s'


class TestPostgres(ServerContract):
    """The whole contract."""

    address = "postgresql://postgres@127.0.0.1:{port}/postgres"


async def test_a_server_that_becomes_read_only(
    tmp_path: Path, server: OwnPostgres, storage: str
) -> None:
    """As a primary that is made a standby, or whose disk is full: chat goes on, and every turn is
    there once the server takes writes again."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        await send_newest(run, "one")
        await set_read_only(server, "on")
        await send_newest(run, "two")
        await send_newest(run, "three")
        assert not await is_ready(run)
        await set_read_only(server, "off")
        await until(lambda: is_ready(run))
        assert await send_newest(run, "four") == "applied"
        assert await read_said(run) == ["one", "two", "three", "four"]


async def set_read_only(server: OwnPostgres, value: str) -> None:
    """Let the server refuse writes of every session, or not."""
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


async def test_a_backup_that_is_restored(tmp_path: Path, server: OwnPostgres, storage: str) -> None:
    """Its versions may be those of other states: nothing that was read before counts. Here the
    version stays, and the text is another."""
    asked = await ask_after_a_restore(tmp_path, server, storage)
    assert b"My boat is tan." in asked
    assert b"red" not in asked


async def test_a_cache_that_is_kept_over_a_reconnect(
    tmp_path: Path, server: OwnPostgres, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would show it."""
    monkeypatch.setattr(ConnectionPool, "_note_loss", lambda _: None)
    assert b"red" in await ask_after_a_restore(tmp_path, server, storage)


async def ask_after_a_restore(tmp_path: Path, server: OwnPostgres, storage: str) -> bytes:
    """Return the prompt after a restart, since which another text stands in the store."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        assert await send_newest(run, "My boat is red.") == "raw"
        server.kill()
        server.start()
        await rewrite_messages(server, storage, b"red", b"tan")
        await send_newest(run, "Which colour?")
        return run.models.requests_to("scripted-actor")[-1].body


async def rewrite_messages(server: OwnPostgres, storage: str, old: bytes, new: bytes) -> None:
    schema = storage.partition("prefix: ")[2].partition(",")[0]
    connection = await asyncpg.connect(server.url)
    try:
        changed = await connection.execute(
            f"""UPDATE "{schema}".message SET raw =
            decode(replace(encode(raw, 'hex'), $1, $2), 'hex')""",  # noqa: S608 - a test's own name
            old.hex(),
            new.hex(),
        )
        assert changed == "UPDATE 2"
    finally:
        await connection.close()


async def test_a_server_without_connections(
    tmp_path: Path, server: OwnPostgres, storage: str
) -> None:
    """Others hold every connection at the start, then leave: memory comes by itself."""
    others = [await asyncpg.connect(server.url) for _ in range(12)]
    with capture_logs() as events:
        async with run_with_scripted_models(tmp_path, storage=storage) as run:
            reply, receipt = await run.chat().say("hello")
            assert reply
            assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
            for other in others:
                await other.close()
            await until(lambda: is_ready(run))
            _, receipt = await run.chat().say("and now")
            assert receipt["status"] == "applied"  # what was said meanwhile waited
    [complaint] = [event for event in events if event["event"] == "storage.unavailable"]
    assert "no connection left" in complaint["said"]
    assert "geheim" not in str(events)


async def test_a_server_whose_connections_others_take(
    tmp_path: Path, server: OwnPostgres, storage: str
) -> None:
    """While serving: every request is answered, and every turn of a thin client is there once they
    have left."""
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        await send_newest(run, "one")
        others = await take_all_connections(server)
        assert await send_newest(run, "two") == "degraded"
        assert await send_newest(run, "three") == "degraded"
        assert not await is_ready(run)
        for other in others:
            await other.close()
        await until(lambda: is_ready(run))
        assert await send_newest(run, "four") == "applied"
        assert await read_said(run) == ["one", "two", "three", "four"]


async def take_all_connections(server: OwnPostgres) -> list[asyncpg.Connection]:
    """Open connections until the server refuses more, and none is left of om-proxy's own."""
    taken: list[asyncpg.Connection] = []
    end_ours = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'om-proxy'"""
    async with asyncio.timeout(60):
        while True:
            try:
                taken.append(await asyncpg.connect(server.url))
            except asyncpg.TooManyConnectionsError:
                if not await taken[0].fetchval(end_ours):
                    return taken


async def test_a_turn_takes_two_statements(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads what has come since, one stores the turn. After the reply, where nothing is due,
    only those replies are marked that went out since the last time, all together."""
    thread, sent = "kitchen-rebuild", []
    marks = (MARK_DELIVERED, MARK_UNLOCKED_DELIVERED)

    def watch(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(session: Session, sql: str, *parameters: object) -> Any:
            if thread in str(parameters) and sql not in marks:
                sent.append(sql)
            return await method(session, sql, *parameters)

        return ask

    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        chat = run.chat(thread)
        await chat.say("one")  # nothing is stored before
        await run.app.background.wait_idle()
        for name in ("select", "execute"):
            monkeypatch.setattr(Session, name, watch(getattr(Session, name)))
        for text in ("two", "three", "four"):
            sent.clear()
            await chat.say(text)
            await run.app.background.wait_idle()
            reading, storing = sent
            assert "UPDATE" not in reading
            assert "UPDATE om.thread" in storing


async def test_a_start_without_its_server_where_memory_is_required(
    server: OwnPostgres, storage: str
) -> None:
    """`storage.required: true`, for those who would rather not serve than forget."""
    server.kill()
    with pytest.raises(StorageError, match=r"storage\.url: postgresql://postgres@127\.0\.0\.1"):
        await App(parse(f"storage: {{{storage}, required: true}}")).start()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('url: "postgresql://om:geheim@127.0.0.1:1/om", required: true', "cannot be reached"),
        (
            'url: "postgresql://om:geheim@nowhere.invalid/om", required: true',
            "the name of its host is not known",
        ),
        ('url: "mysql://om:geheim@127.0.0.1/om"', "must be sqlite:///<file> or postgresql://"),
        (
            'url: "postgresql://om:ge/heim@127.0.0.1/om"',
            "must be sqlite:///<file> or postgresql://",
        ),
        ('url: "postgresql://127.0.0.1/om", prefix: pg_om', "must not begin with pg_"),
    ],
    ids=[
        "no server",
        "no such host",
        "another database",
        "a slash in the password",
        "a reserved schema",
    ],
)
def test_a_command_line_that_cannot_start(tmp_path: Path, section: str, said: str) -> None:
    """One line and status 3; no password in it."""
    line = serve_in_vain(tmp_path, section)
    assert said in line
    assert "heim" not in line
