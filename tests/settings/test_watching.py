"""A file that changes takes effect whole, or not at all."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.settings import Settings, WatchedSettings, load
from om_proxy.settings.watching import list_changed_keys

Next = Callable[[], Awaitable[bool]]


@asynccontextmanager
async def watching(file: Path, text: str) -> AsyncIterator[tuple[WatchedSettings, Next]]:
    """A watched file, and the wait for what became of its next change."""
    await asyncio.to_thread(file.write_text, text)
    changes: asyncio.Queue[bool] = asyncio.Queue()
    watched = WatchedSettings(
        load(file, {}), env={}, on_change=changes.put_nowait, check_interval_s=0.2
    )
    task = asyncio.create_task(watched.watch())
    yield watched, lambda: asyncio.wait_for(changes.get(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_valid_change_is_taken(tmp_path: Path) -> None:
    """The whole new configuration is in force, the old snapshot unchanged, and the log names what
    changed."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watching(file, "memory: {scope: thread}") as (watched, following):
            before = watched.current
            file.write_text("memory: {scope: resource, api_key: hush}")
            assert await following()
    assert (before.memory.scope, watched.current.memory.scope) == ("thread", "resource")
    assert [entry["event"] for entry in logs] == ["settings.reloaded"]
    assert logs[0]["changed"] == ["memory.api_key", "memory.scope"]
    assert "hush" not in str(logs)


@pytest.mark.parametrize("text", ["memory: {scope: all}", "memory: [", "", " \n"])
async def test_a_faulty_change_is_refused(tmp_path: Path, text: str) -> None:
    """The old configuration stays, the log says why; an empty file is one being written, not a wish
    for the defaults."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watching(file, "memory: {scope: resource}") as (watched, following):
            before = watched.current
            file.write_text(text)
            assert not await following()
            assert watched.current is before
            file.write_text("memory: {mode: shadow}")
            assert await following()
    assert watched.current.memory.mode == "shadow"
    assert [entry["event"] for entry in logs] == ["settings.refused", "settings.reloaded"]
    assert logs[0]["faults"]


@pytest.mark.parametrize(
    "text", ["auth: {keys: [sk-hush]}", "server: {admin_tokn: sk-hush}", "auth: {sk-hush: acme}"]
)
async def test_what_is_refused_is_not_repeated(tmp_path: Path, text: str) -> None:
    """The log says which setting it is, and nothing of a key that stands in the wrong place."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watching(file, "memory: true") as (_, following):
            file.write_text(text)
            assert not await following()
    (entry,) = logs
    assert text.partition(":")[0] in entry["faults"][0]
    assert "hush" not in str(entry)


async def test_a_replaced_file_is_still_watched(tmp_path: Path) -> None:
    """Editors and orchestrators put a new file in the old one's place, more than once."""
    file = tmp_path / "x.yaml"
    async with watching(file, "memory: true") as (watched, following):
        for scope in ("resource", "thread"):
            other = tmp_path / "other"
            other.write_text(f"memory: {{scope: {scope}}}")
            other.replace(file)
            assert await following()
            assert watched.current.memory.scope == scope


async def test_a_file_that_goes_is_refused(tmp_path: Path) -> None:
    """Deleting the file does not put the defaults in force; when it comes back, it counts."""
    file = tmp_path / "x.yaml"
    async with watching(file, "memory: {scope: resource}") as (watched, following):
        file.unlink()
        assert not await following()
        assert watched.current.memory.scope == "resource"
        file.write_text("memory: {scope: thread}")
        assert await following()


LATER = """
server: {host: localhost, port: 1, workers: 2, admin_token: read at each request}
storage: {url: "sqlite:///other.db", prefix: other}
limits: {in_flight: 5}
background: {concurrency: 3, observer_interval: 3s}
retention: {generations: 9}
telemetry: {log: json}
"""


async def test_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    """What is read once at the start is taken over too, and the log says that it waits for the next
    one; nothing else is named."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watching(file, "memory: true") as (_, following):
            file.write_text(LATER)
            assert await following()
    assert logs[-1]["event"] == "settings.restart_needed"
    assert logs[-1]["changed"] == [
        *(
            "background.concurrency",
            "retention.generations",
            "server.host",
            "server.port",
            "server.workers",
        ),
        *("storage.prefix", "storage.url", "telemetry.log"),
    ]


async def test_who_stops_watching_leaves_no_thread(tmp_path: Path) -> None:
    """Not even until it would have looked again: a process that is told to end does not wait for
    it."""
    before = set(threading.enumerate())
    file = tmp_path / "x.yaml"
    file.touch()
    task = asyncio.create_task(WatchedSettings(load(file, {}), env={}, check_interval_s=60).watch())
    await asyncio.sleep(0)  # as far as to its waiting
    (thread,) = set(threading.enumerate()) - before
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()


async def test_without_a_file_there_is_nothing_to_watch() -> None:
    """Settings made in code stay as they are."""
    watched = WatchedSettings(Settings(), env={})
    await asyncio.wait_for(watched.watch(), 30)
    assert watched.current == Settings()


def test_changed_keys_look_into_lists() -> None:
    """An upstream is compared key by key; a list of words as a whole."""
    before = Settings()
    upstream = before.upstream[0].model_copy(update={"base_url": "http://h", "match": ("a",)})
    after = before.model_copy(update={"upstream": (upstream, upstream)})
    changed = list_changed_keys(before, after)
    assert {"upstream.0.base_url", "upstream.0.match", "upstream.1.name"} <= set(changed)
    assert "upstream.0.name" not in changed
