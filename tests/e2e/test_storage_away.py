"""A database that cannot be used at the start, or goes away while serving: chat goes on, everybody
is told, and memory comes back."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from om_proxy.app.app import App
from om_proxy.common.errors import StorageError
from om_proxy.settings.config import parse
from om_proxy.storage.reopening_store import ReopeningStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.support.permissions import enforce_permission_bits
from tests.support.waiting import until


async def readiness(run: Running) -> str:
    return str((await run.http.get(f"{run.base}/readyz")).json()["status"])


async def ready(run: Running) -> bool:
    return await readiness(run) == "ok"


async def degraded(run: Running) -> bool:
    return await readiness(run) == "degraded"


async def has_threads(run: Running, counts: dict[str, int]) -> bool:
    """Whether each thread has as many messages."""
    return {memory.key.thread: memory.count for memory in await run.memories()} == counts


def remove(file: Path) -> None:
    """With what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def spoil(file: Path, how: str) -> None:
    if how == "corrupt":
        file.write_bytes(b"this is no database " * 1_000)
    else:  # of another program
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE thread (words TEXT)")


@pytest.mark.parametrize("how", ["corrupt", "foreign"])
async def test_a_file_that_is_bad_at_the_start(tmp_path: Path, how: str) -> None:
    """Chat is served without memory; once the file is good, memory comes by itself, and stays over
    the next start."""
    file = tmp_path / "om.db"
    spoil(file, how)
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        reply, receipt = await chat.say("hello")
        assert reply
        assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
        await until(lambda: degraded(run))
        remove(file)
        await until(lambda: ready(run))
        _, receipt = await chat.say("and now")
        assert receipt["status"] == "raw"
        kept = await run.memory()
    async with run_with_scripted_models(tmp_path) as run:
        assert await run.memory() == kept


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_place_that_is_read_only_at_the_start(tmp_path: Path, what: str) -> None:
    """Chat is served without memory, and the log names the cause once; once the place can be
    written, memory goes on where it was."""
    folder = tmp_path / "data"
    folder.mkdir()
    async with run_with_scripted_models(folder) as run:
        await run.chat().say("The dock is 2.85 m high.")
    place, mode = (folder, 0o700) if what == "folder" else (folder / "om.db", 0o600)
    with enforce_permission_bits(tmp_path), capture_logs() as events:
        place.chmod(mode & 0o500)
        async with run_with_scripted_models(folder) as run:
            for text in ("Is it?", "And now?"):
                reply, receipt = await run.chat("other").say(text)
                assert reply
                assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
            assert await degraded(run)
            complaints = [event for event in events if event["event"] == "storage.unavailable"]
            assert [(event["log_level"], event["error"]) for event in complaints] == [
                ("error", "StorageError")
            ]
            assert "where this process may write" in complaints[0]["said"]
            place.chmod(mode)
            await until(lambda: ready(run))
            _, receipt = await run.chat().send([{"role": "user", "content": "Which dock?"}])
            assert receipt["status"] == "applied"
            await until(lambda: has_threads(run, {"t": 4, "other": 4}))


async def test_a_read_only_place_refuses_the_start_where_memory_is_required(tmp_path: Path) -> None:
    """`storage.required: true`, for those who would rather not serve than forget."""
    (tmp_path / "om.db").touch()
    settings = parse(f'storage: {{url: "sqlite:///{tmp_path}/om.db", required: true}}')
    with enforce_permission_bits(tmp_path):
        (tmp_path / "om.db").chmod(0o400)
        with pytest.raises(StorageError, match="where this process may write"):
            await App(settings).start()


async def test_a_file_that_a_newer_release_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a rolling upgrade, a process that may not write to the file any more serves chat without
    memory, and says so. If the change is taken back, its memory goes on."""
    defaults = ReopeningStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "schema_check_interval_s", 0.01)
    monkeypatch.setitem(defaults, "reopen_interval_s", 0.01)

    def set_min_writer(migration: int) -> None:
        with closing(sqlite3.connect(tmp_path / "om.db")) as db, db:
            db.execute("UPDATE schema SET min_writer = ?", (migration,))

    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")
        # in a thread: a transaction of the server that is under way needs the loop to end
        await asyncio.to_thread(set_min_writer, 9_999)
        await until(lambda: degraded(run))
        answer = (await run.http.get(f"{run.base}/readyz")).json()
        assert answer["reason"] == "om_storage"
        _, receipt = await run.chat().say("Is it?")
        assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")
        await asyncio.to_thread(set_min_writer, 1)
        await until(lambda: ready(run))
        _, receipt = await run.chat().send([{"role": "user", "content": "Which dock?"}])
        assert receipt["status"] == "applied"


async def test_a_file_with_a_secret_of_its_own(tmp_path: Path) -> None:
    """A backup put in a bad file's place: its threads are found again, since what they are keyed
    with comes with it."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")
    (tmp_path / "om.db").rename(tmp_path / "backup.db")
    spoil(tmp_path / "om.db", "corrupt")
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("Is it?")
        (tmp_path / "backup.db").replace(tmp_path / "om.db")
        await until(lambda: ready(run))
        _, receipt = await run.chat().send([{"role": "user", "content": "Which dock?"}])
        assert receipt["status"] == "applied"
        assert (await run.memory()).count == 6


class GatedModels(ScriptedServer):
    """A model server whose answers wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_asked = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.is_asked.set()
        await self.gate.wait()
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("sent_count", [1, 4], ids=["newest only", "window"])
async def test_what_is_said_before_the_store_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_count: int
) -> None:
    """A process that starts while its store is away keeps the turns of every client, and of a reply
    that is under way when the store comes. Until then it does not know the secret that names their
    tenants: they join the threads of the same credentials, and no others. Nor does it know the
    store's clock, by which they are dated."""

    async def read_clock(_: SqliteStore) -> float:
        return time.time() + 3_600.0

    monkeypatch.setattr(SqliteStore, "clock", read_clock)
    async with run_with_scripted_models(tmp_path) as run:
        chat, other = run.chat(), run.chat(key="sk-other")
        for one in (chat, other):
            one.history.clear()
            await one.say("before")
    (tmp_path / "om.db").rename(tmp_path / "good.db")
    spoil(tmp_path / "om.db", "corrupt")
    models = GatedModels()

    async def say(client: Chat, text: str) -> None:
        client.history.append({"role": "user", "content": text})
        reply, _ = await client.send(client.history[-sent_count:])
        client.history.append({"role": "assistant", "content": reply})

    async with run_with_scripted_models(tmp_path, models=models) as run:
        chat.running = other.running = run
        for number in range(4):
            await say(chat, f"away {number}")
        await say(other, "mine")
        models.gate.clear()
        models.is_asked.clear()
        under_way = asyncio.create_task(say(chat, "under way"))
        await models.is_asked.wait()
        (tmp_path / "good.db").replace(tmp_path / "om.db")
        await until(lambda: ready(run))
        models.gate.set()
        await under_way
        await say(chat, "back")

        async def find_threads() -> list[list[str]]:
            stored = [await run.app.store.messages(m.key, 0) for m in await run.memories()]
            return [[orjson.loads(m.item.raw)["content"] for m in thread] for thread in stored]

        async def is_all_stored() -> bool:
            return sum(map(len, await find_threads())) >= len(chat.history) + len(other.history)

        await until(is_all_stored)
        expected = [[message["content"] for message in one.history] for one in (chat, other)]
        assert sorted(await find_threads()) == sorted(expected)
        ages_s = [
            time.time() + 3_600.0 - message.at for m in await run.memories() for message in m.tail
        ]
        assert min(ages_s) > -1.0
        assert max(ages_s) < 60.0


async def test_a_file_that_is_deleted_while_serving(tmp_path: Path) -> None:
    """Noticed within a second: a new file takes its place, and what is said from then on is in it,
    also for a thin client."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await chat.say("one")
        remove(tmp_path / "om.db")
        await asyncio.sleep(1.1)  # within which it is noticed
        await chat.send([{"role": "user", "content": "two"}])
        await until(lambda: ready(run))
        await chat.send([{"role": "user", "content": "three"}])
        await run.app.background.wait_idle()
        (only,) = await run.memories()
        said = [m.item.raw for m in only.tail]
        assert [any(word in raw for raw in said) for word in (b"one", b"two", b"three")] == [
            False,
            True,
            True,
        ]
    with closing(sqlite3.connect(tmp_path / "om.db")) as db:
        assert db.execute("SELECT count(*) FROM message").fetchone() == (4,)
