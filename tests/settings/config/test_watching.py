"""A change of the file takes effect whole, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.settings.config import Settings, WatchedSettings, load, watching
from om_proxy.settings.config.watching import list_changed_keys, needs_a_restart

Next = Callable[[], Awaitable[bool]]


@asynccontextmanager
async def watch_file(file: Path, text: str) -> AsyncIterator[tuple[WatchedSettings, Next]]:
    """A watched file, and a function that waits for its next change and returns whether it was
    applied."""
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


async def test_a_valid_change_is_applied(tmp_path: Path) -> None:
    """The new configuration is in force whole, the old snapshot is unchanged, and the log names
    what changed."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watch_file(file, "memory: {scope: thread}") as (watched, following):
            before = watched.current
            file.write_text("memory: {scope: resource, api_key: hush}")
            assert await following()
    assert (before.memory.scope, watched.current.memory.scope) == ("thread", "resource")
    assert [entry["event"] for entry in logs] == ["settings.reloaded"]
    assert logs[0]["changed"] == ["memory.api_key", "memory.scope"]
    assert "hush" not in str(logs)


@pytest.mark.parametrize("text", ["memory: {scope: all}", "memory: [", "", " \n"])
async def test_a_faulty_change_is_refused(tmp_path: Path, text: str) -> None:
    """The old configuration stays and the log says why. An empty file is refused too: an editor may
    be writing it."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watch_file(file, "memory: {scope: resource}") as (watched, following):
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
async def test_a_refused_credential_is_not_logged(tmp_path: Path, text: str) -> None:
    """The log names the setting, and does not repeat a key that is in the wrong place."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watch_file(file, "memory: true") as (_, following):
            file.write_text(text)
            assert not await following()
    (entry,) = logs
    assert text.partition(":")[0] in entry["faults"][0]
    assert "hush" not in str(entry)


async def test_a_replaced_file_is_still_watched(tmp_path: Path) -> None:
    """Editors and orchestrators replace the file, more than once."""
    file = tmp_path / "x.yaml"
    async with watch_file(file, "memory: true") as (watched, following):
        for scope in ("resource", "thread"):
            other = tmp_path / "other"
            other.write_text(f"memory: {{scope: {scope}}}")
            other.replace(file)
            assert await following()
            assert watched.current.memory.scope == scope


def test_a_change_before_the_watch_begins(tmp_path: Path) -> None:
    """`catch_up` applies it at once, and refuses it as the watch does."""
    file = tmp_path / "x.yaml"
    file.write_text("memory: {scope: thread}")
    watched = WatchedSettings(load(file, {}), env={})
    for text in ("memory: {scope: resource}", "memory: {scope: all}"):
        file.write_text(text)
        watched.catch_up()
        assert watched.current.memory.scope == "resource"


async def test_a_deleted_file_is_refused(tmp_path: Path) -> None:
    """Deleting the file does not put the defaults in force. When it is back, it counts."""
    file = tmp_path / "x.yaml"
    async with watch_file(file, "memory: {scope: resource}") as (watched, following):
        file.unlink()
        assert not await following()
        assert watched.current.memory.scope == "resource"
        file.write_text("memory: {scope: thread}")
        assert await following()


async def test_a_file_that_is_empty_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer empties the file first, and then writes what stood there. That is no change."""
    text, other = "memory: {scope: resource}", "memory: {scope: thread}"
    reads = chain((text, "", text), repeat(other))
    monkeypatch.setattr(watching, "_read_if_possible", lambda _: next(reads))
    with capture_logs() as logs:
        async with watch_file(tmp_path / "x.yaml", text) as (watched, following):
            assert await following()
    assert watched.current.memory.scope == "thread"
    assert [entry["event"] for entry in logs] == ["settings.reloaded"]


LATER = """
server: {host: localhost, port: 1, workers: 2, admin_token: read at each request}
storage: {url: "sqlite:///other.db", prefix: other}
limits: {in_flight: 5}
background: {concurrency: 3, observer_interval: 3s}
retention: {generations: 9}
telemetry: {log: json}
"""


@pytest.mark.parametrize(
    "changed",
    [
        "server: {api: admin, admin_reads: false}",
        "telemetry: {webhooks: [{url: 'https://h/x', secret: whsec_YW5vdGhlciBrZXkgb2YgMjQgYnl0ZXMh, text: true}]}",
        "telemetry: {metrics_token: another}",
    ],
)
async def test_what_is_live_needs_no_restart(tmp_path: Path, changed: str) -> None:
    """Also a part of a webhook, which is a key of its own."""
    file = tmp_path / "x.yaml"
    hook = "telemetry: {webhooks: [{url: 'https://h/x', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}]}"
    with capture_logs() as logs:
        async with watch_file(file, hook) as (_, following):
            file.write_text(changed)
            assert await following()
    assert logs[-1]["event"] == "settings.reloaded"
    assert logs[-1]["changed"]


@pytest.mark.parametrize(
    ("key", "needs_restart"),
    [
        ("telemetry.webhooks", False),
        ("telemetry.webhooks.0.secret", False),
        ("telemetry.webhooks_of_tomorrow", True),
        ("server.api", False),
        ("server.port", True),
        ("memory.enabled", False),
        ("background.external", False),
    ],
)
def test_keys_that_need_a_restart(key: str, needs_restart: bool) -> None:
    assert needs_a_restart(key) is needs_restart


async def test_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    """Settings that are read once at the start change too, and the log names exactly those as
    waiting for a restart."""
    file = tmp_path / "x.yaml"
    with capture_logs() as logs:
        async with watch_file(file, "memory: true") as (_, following):
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


async def test_without_a_file_there_is_nothing_to_watch() -> None:
    """Without a file, `watch` returns at once and the settings stay."""
    watched = WatchedSettings(Settings(), env={})
    await asyncio.wait_for(watched.watch(), 30)
    assert watched.current == Settings()


def test_changed_keys_look_into_lists() -> None:
    """Upstreams are compared key by key; a list of words is compared whole."""
    before = Settings()
    upstream = before.upstream[0].model_copy(update={"base_url": "http://h", "match": ("a",)})
    after = before.model_copy(update={"upstream": (upstream, upstream)})
    changed = list_changed_keys(before, after)
    assert {"upstream.0.base_url", "upstream.0.match", "upstream.1.name"} <= set(changed)
    assert "upstream.0.name" not in changed
