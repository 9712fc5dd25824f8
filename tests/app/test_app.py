"""The whole program: its start and end, its own routes, and the requests it does not relay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.models import encodings
from om_proxy.app import app as app_module
from om_proxy.app.app import App
from om_proxy.app.store_opening import open_store
from om_proxy.common.errors import ConfigError, KeysAway, OmError, StorageError
from om_proxy.settings.config import Settings, StorageSettings, parse
from om_proxy.storage.promises import create_sqlite_promise, list_promises
from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    LEDGER_KEPT_DAYS,
    MAX_EVENT_AGE_S,
    SECONDS_PER_DAY,
    AuditRecord,
    LedgerQuery,
)
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.missing_package import hide_package


def settings_in(
    folder: Path, upstream: str = "http://127.0.0.1:9", more: str = "", *, required: bool = False
) -> Settings:
    return parse(
        f"""
        upstream: [{{base_url: "{upstream}/v1"}}]
        storage: {{url: "sqlite:///{folder}/om.db", required: {str(required).lower()}}}
        telemetry: {{log: "off"}}
        {more}
        """
    )


def list_live_threads() -> set[str]:
    """List the threads that would keep the process alive. Threads that are ending get time; the
    pool of `to_thread` ends with its loop."""
    lasting = [
        t
        for t in threading.enumerate()
        if not t.daemon and not t.name.startswith(("MainThread", "asyncio_"))
    ]
    for thread in lasting:
        thread.join(1.0)
    return {thread.name for thread in lasting if thread.is_alive()}


async def read_readiness(run: Running) -> dict[str, str]:
    """Return what `/readyz` answers once the proxy has started."""
    async with asyncio.timeout(30):
        while (answer := await run.http.get(f"{run.base}/readyz")).status_code == 503:  # noqa: ASYNC110 - see below
            await asyncio.sleep(
                0.01
            )  # ranks are loaded in a thread, which tells nobody else; bounded above
    assert answer.status_code == 200
    found: dict[str, str] = answer.json()
    return found


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not seen():  # noqa: ASYNC110 - of a server's inside, which tells nobody; bounded above
            await asyncio.sleep(0.001)


async def test_alive_and_ready(tmp_path: Path) -> None:
    """Both answer ok while everything works."""
    async with run_with_scripted_models(tmp_path) as run:
        assert await read_readiness(run) == {"status": "ok"}
        answer = await run.http.get(f"{run.base}/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_ready_with_what_the_store_promises(tmp_path: Path) -> None:
    """`?verbose` says it, and says nothing of a store that cannot be asked."""
    async with run_with_scripted_models(tmp_path) as run:
        assert await read_readiness(run) == {"status": "ok"}
        for query in ("verbose", "verbose=1", "a=b&verbose="):
            answer = (await run.http.get(f"{run.base}/readyz?{query}")).json()
            assert answer["status"] == "ok"
            assert answer["store"] == {
                "kind": "sqlite",
                "durable": "fsync",
                "encrypted": False,
                "separate_keys": False,
                "has_index": True,
                "erases": "now",
                "schema_version": list_migrations("sqlite")[-1].number,
                "promises": [*list_promises(create_sqlite_promise(is_in_memory=False))],
            }
        assert (await run.http.get(f"{run.base}/readyz?verbosely")).json() == {"status": "ok"}
        run.app._reopening._put_away()
        answer = (await run.http.get(f"{run.base}/readyz?verbose")).json()
        assert answer == {"status": "degraded", "reason": "om_storage", "store": None}


async def test_dates_are_the_store_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is ten minutes behind the store's dates its messages as the others do."""
    machine_clock = SqliteStore.clock

    async def clock(store: SqliteStore) -> float:
        return await machine_clock(store) + 600.0

    monkeypatch.setattr(SqliteStore, "clock", clock)
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")
        memory = await run.memory()
        assert memory.turn_at == run.clock() + 600.0
        assert {message.at for message in memory.tail} == {run.clock() + 600.0}


async def test_old_records_go_by_the_store_s_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hour, also while nothing is written. How late it is, the store is asked each time."""
    monkeypatch.setattr(app_module, "PRUNE_INTERVAL_S", 0.001)
    ahead_s = 0.0
    machine_clock = SqliteStore.clock

    async def clock(store: SqliteStore) -> float:
        return await machine_clock(store) + ahead_s

    monkeypatch.setattr(SqliteStore, "clock", clock)
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")
        thread = {"authorization": "Bearer sk-a"}
        url = f"{run.base}/om/v1/threads/t"
        await run.http.patch(url, json={"title": "The dock"}, headers=thread)
        await run.app.store.add_audit([AuditRecord(run.clock.now, "who", "s", "what")])
        store, pruned = run.app.store, asyncio.Event()
        prune = store.prune

        async def prune_and_tell(now: float) -> None:
            await prune(now)
            pruned.set()

        monkeypatch.setattr(store, "prune", prune_and_tell)

        async def count_kept() -> tuple[int, int, int]:
            for _ in range(2):  # the first one may have begun before
                pruned.clear()
                await asyncio.wait_for(pruned.wait(), 30)
            events = (await store.events(None, None, None, 9)).events
            days = await store.sum_ledger(LedgerQuery(None, "day"))
            return len(events), len(await store.audit(None)), len(days)

        await run.app.ledger_writer.write()
        assert await count_kept() == (1, 2, 1)
        ahead_s = MAX_EVENT_AGE_S + 60
        assert await count_kept() == (0, 2, 1)
        ahead_s = AUDIT_KEPT_S + 60.0
        assert await count_kept() == (0, 0, 1)
        ahead_s = (LEDGER_KEPT_DAYS + 2.0) * SECONDS_PER_DAY
        assert await count_kept() == (0, 0, 0)


@pytest.mark.parametrize(("is_worker", "does_work"), [(False, False), (True, True)])
async def test_external_work_is_a_worker_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_worker: bool, does_work: bool
) -> None:
    """A process that serves only sends no webhooks and clears nothing out; a worker with the same
    settings does."""
    monkeypatch.setattr(app_module, "PRUNE_INTERVAL_S", 0.001)
    app = App(
        parse(
            f"""
            background: {{external: true}}
            storage: {{url: "sqlite:///{tmp_path}/om.db"}}
            telemetry: {{log: "off", webhooks: [{{url: "http://127.0.0.1:9/", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}]}}
            """
        ),
        is_worker=is_worker,
    )
    pruned, asked = asyncio.Event(), asyncio.Semaphore(0)
    is_external = app._is_external

    async def prune(now: float) -> None:
        pruned.set()

    def tell() -> bool:
        asked.release()
        return is_external()

    async with serve_on_loopback(app):
        monkeypatch.setattr(app.store, "prune", prune)
        monkeypatch.setattr(app, "_is_external", tell)
        assert bool(app._list_webhooks()) is does_work
        if does_work:
            await asyncio.wait_for(pruned.wait(), 30)
        for _ in range(20):  # times that it was asked whether to
            await asyncio.wait_for(asked.acquire(), 30)
        assert pruned.is_set() is does_work


class Ranks:
    """Ranks that load when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.here = 0, asyncio.Event()
        monkeypatch.setattr(encodings, "load_ranks", self.load)

    async def load(self, model: str = "") -> None:
        self.asked += 1
        await self.here.wait()


async def test_ready_when_the_first_count_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks load from the start on. Until then it is not ready; chat without memory is served at
    once, and chat with memory after they are loaded."""
    ranks = Ranks(monkeypatch)
    async with run_with_scripted_models(tmp_path) as run:
        answer = await run.http.get(f"{run.base}/readyz")
        assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (
            503,
            {"status": "starting"},
            "1",
        )
        assert (await run.http.get(f"{run.base}/healthz")).json() == {"status": "ok"}
        body = {"model": "scripted-actor", "messages": [{"role": "user", "content": "hi"}]}
        assert (
            await run.http.post(f"{run.base}/v1/chat/completions", json=body)
        ).status_code == 200
        assert ranks.asked == 1
        saying = asyncio.create_task(run.chat().say("The dock is 2.85 m high."))
        await until(lambda: ranks.asked == 2)
        ranks.here.set()
        assert (await saying)[1]["status"] == "raw"
        assert await read_readiness(run) == {"status": "ok"}


async def test_ready_without_anything_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no request has memory, no ranks are loaded, and it is ready at once."""
    ranks = Ranks(monkeypatch)
    async with run_with_scripted_models(tmp_path, "enabled: false") as run:
        assert (await run.http.get(f"{run.base}/readyz")).json() == {"status": "ok"}
        assert ranks.asked == 0


async def test_ready_when_the_first_search_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding model loads before it is ready, and one that cannot be loaded keeps nobody."""
    asked: list[Sequence[str]] = []
    may_go_on = asyncio.Event()

    async def warm_up(self: EmbeddingModels, models: Sequence[str]) -> None:
        asked.append(models)
        await may_go_on.wait()
        raise MemoryError

    monkeypatch.setattr(EmbeddingModels, "warm_up", warm_up)
    vectors = "retrieval: {vector: true, embedding_model: 'local:/no/model.onnx'}"
    async with run_with_scripted_models(tmp_path, vectors) as run:
        await until(lambda: bool(asked))
        assert (await run.http.get(f"{run.base}/readyz")).status_code == 503
        may_go_on.set()
        assert await read_readiness(run) == {"status": "ok"}
    assert asked == [("local:/no/model.onnx",)]


async def test_ready_though_ranks_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready anyway: each request that needs the ranks reports the failure itself."""

    async def failing(model: str = "") -> None:
        raise MemoryError

    monkeypatch.setattr(encodings, "load_ranks", failing)
    async with run_with_scripted_models(tmp_path) as run:
        assert (await read_readiness(run)) == {"status": "ok"}
        _, receipt = await run.chat().say("The dock is 2.85 m high.")
        assert (receipt["status"], receipt["reason"]) == ("degraded", "memory-error")


async def test_ending_while_ranks_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does not wait for ranks that are loading."""
    Ranks(monkeypatch)
    async with asyncio.timeout(60), run_with_scripted_models(tmp_path):
        pass


async def test_ready_without_memory(tmp_path: Path) -> None:
    """Without a store, chat is served: it is ready, and the answer says what is degraded."""
    async with run_with_scripted_models(tmp_path) as run:
        await read_readiness(run)
        await run.app.store.close()
        answer = await run.http.get(f"{run.base}/readyz")
        assert (answer.status_code, answer.json()) == (
            200,
            {"status": "degraded", "reason": "om_storage"},
        )
        assert (await run.http.get(f"{run.base}/healthz")).json() == {"status": "ok"}


async def test_chat_without_a_store(tmp_path: Path) -> None:
    """A failing store costs the memory, never the request
    (docs/contributing/behaviour.md#fail-open)."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.app.store.close()
        for stream in (False, True):
            reply, receipt = await run.chat().say("The dock is 2.85 m high.", stream=stream)
            assert reply.startswith("Noted: ")
            assert (receipt["status"], receipt["reason"]) == ("degraded", "storage")


async def test_websocket(tmp_path: Path) -> None:
    """A WebSocket gets a clear 501 on every path; nothing goes upstream."""
    async with run_with_scripted_models(tmp_path) as run:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        for path in (
            "/v1/realtime",
            "/v1/chat/completions",
            "/v1/responses/resp_1",
            "/t/t/v1/realtime",
        ):
            answer = await run.http.get(
                run.base + path, headers=upgrade | {"sec-websocket-key": "eA=="}
            )
            assert answer.status_code == 501
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("om_error", "om_unsupported")
            assert answer.headers["x-should-retry"] == "false"
        assert run.models.requests == []


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/responses", "/t/t/v1/responses", "/r/ada/t/t/responses"]
)
async def test_a_websocket_with_http_to_fall_back_to(tmp_path: Path, path: str) -> None:
    """Codex tries a WebSocket first, and after a 426 goes on with HTTP at once (RFC 9110
    15.5.22)."""
    async with run_with_scripted_models(
        tmp_path, more="auth: {keys: [{tenant: acme, key: sk-acme}]}"
    ) as run:
        upgrade = {"connection": "Upgrade", "upgrade": "WebSocket", "sec-websocket-version": "13"}
        answer = await run.http.get(
            run.base + path, headers=upgrade | {"sec-websocket-key": "eA=="}
        )
        assert answer.status_code == 426
        assert (answer.headers["upgrade"], answer.headers["connection"]) == ("HTTP/1.1", "Upgrade")
        assert answer.json()["error"]["code"] == "om_unsupported"
        assert answer.headers["x-should-retry"] == "false"
        assert run.models.requests == []


async def test_the_root_page(tmp_path: Path) -> None:
    """The root shows what answers here, without a key. A body sent there gets an error that names
    the API's path."""
    async with run_with_scripted_models(
        tmp_path, more="auth: {keys: [{tenant: acme, key: sk-acme}]}"
    ) as run:
        for path in ("/", "/t/kitchen", "/t/kitchen/"):
            answer = await run.http.get(run.base + path)
            assert (answer.status_code, answer.json()["service"]) == (200, "om-proxy")
        assert (await run.http.head(run.base + "/")).status_code == 200
        answer = await run.http.post(run.base + "/", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")
        assert run.models.requests == []


OWN = [
    "/metrics/",
    "/metrics/x",
    "/docs",
    "/favicon.ico",
    "/docs/oauth2-redirect",
    "/om/v2",
    "/%6fm/v1",
    "/om%2Fv1",
]
BELOW_A_THREAD = [
    "/t/t/om/v1/threads",
    "/t/t/healthz",
    "/r/ada/t/t/readyz",
    "/t/t/metrics",
    "/t/t/%6Fm/v1/threads",
]


@pytest.mark.parametrize("path", [*OWN, *BELOW_A_THREAD])
async def test_own_paths_are_never_forwarded(tmp_path: Path, path: str) -> None:
    """No model server answers these paths, and a thread's prefix does not bypass a rule for
    `/om/`."""
    async with run_with_scripted_models(tmp_path) as run:
        for method in ("GET", "POST"):
            answer = await run.http.request(method, run.base + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")
        assert run.models.requests == []


@pytest.mark.parametrize("path", ["/om", "/om/", "/om/assets/x"])
async def test_the_dashboard_is_never_forwarded(tmp_path: Path, path: str) -> None:
    async with run_with_scripted_models(tmp_path) as run:
        for method in ("GET", "POST"):
            answer = await run.http.request(method, run.base + path)
            assert answer.status_code in (200, 307, 308, 404, 405)
        assert run.models.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_the_intercepted_route(tmp_path: Path, path: str) -> None:
    """The chat route has a path with /v1 and one without."""
    async with run_with_scripted_models(tmp_path) as run:
        body = {"model": "scripted-actor", "messages": [{"role": "user", "content": "hello"}]}
        answer = await run.http.post(run.base + path, json=body, headers={"x-om-thread": "t"})
        assert (answer.status_code, answer.headers["x-om-status"]) == (200, "raw")
        assert (await run.memory()).count == 2


async def test_every_other_route_passes(tmp_path: Path) -> None:
    """Every other route reaches the upstream, and the proxy adds nothing."""
    async with run_with_scripted_models(tmp_path) as run:
        answer = await run.http.get(f"{run.base}/v1/models")
        assert answer.json()["object"] == "list"
        assert [name for name in answer.headers if name.startswith("x-om-")] == []


async def test_own_keys_guard_every_route(tmp_path: Path) -> None:
    """With `auth.keys`, only a request with a key reaches the upstream; the health routes stay
    open."""
    keys = "auth: {keys: [{tenant: acme, key: sk-acme}]}"
    async with run_with_scripted_models(tmp_path, more=keys) as run:
        assert (await run.http.get(f"{run.base}/v1/models")).status_code == 401
        allowed = await run.http.get(
            f"{run.base}/v1/models", headers={"authorization": "Bearer sk-acme"}
        )
        assert allowed.status_code == 200
        assert (await run.http.get(f"{run.base}/healthz")).status_code == 200


async def test_changed_settings_hold_for_the_next_request(tmp_path: Path) -> None:
    """A valid change of the file takes effect without a restart."""
    async with run_with_scripted_models(tmp_path) as run:
        assert (await run.chat().say("hello"))[1]["status"] == "raw"
        watched = run.app._watched
        watched.current = parse(
            f'upstream: [{{base_url: "{watched.current.upstream[0].base_url}"}}]\nmemory: false'
        )
        _, receipt = await run.chat().say("hello again")
        assert (receipt["status"], receipt["reason"]) == ("off", "disabled")


# ── start and end ─────────────────────────────────────────────────────────────────────────────────


async def test_a_failed_start_leaves_nothing_running(tmp_path: Path) -> None:
    """A failed start closes the store, so the process can end. Once the cause is gone, the same app
    starts."""
    before = list_live_threads()  # of other tests: they may end meanwhile
    await alter_database(tmp_path, "ALTER TABLE secret RENAME TO lost")
    app = App(settings_in(tmp_path, required=True))
    with pytest.raises(StorageError):
        await app.start()
    assert list_live_threads() <= before
    await alter_database(tmp_path, "ALTER TABLE lost RENAME TO secret")
    await app.start()
    await app.stop()
    assert list_live_threads() <= before


async def alter_database(folder: Path, sql: str) -> None:
    """Change a database of the proxy while nothing else has it open."""
    store = await open_store(StorageSettings(url=f"sqlite:///{folder}/om.db"))
    await store.close()
    with contextlib.closing(sqlite3.connect(folder / "om.db", isolation_level=None)) as db:
        db.execute(sql)


async def test_a_failed_start_does_not_serve(tmp_path: Path) -> None:
    """The server that runs the app does not begin to serve."""
    (tmp_path / "file").touch()
    app = App(settings_in(tmp_path / "file", required=True))  # no folder: nothing can be made in it
    with pytest.raises(OmError):
        async with serve_on_loopback(app, lifespan="on"):
            pytest.fail("it must not serve")


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://om@127.0.0.1/om", "asyncpg", "postgres"),
        ("redis://127.0.0.1/0", "redis", "redis"),
    ],
)
async def test_a_store_without_its_driver(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str
) -> None:
    """The error says how to install it."""
    hide_package(monkeypatch, driver, f"om_proxy.storage.{extra}")
    with pytest.raises(ConfigError, match=rf"'observational-memory-proxy\[{extra}\]'"):
        await open_store(StorageSettings(url=url))


async def test_settings_of_a_server_reach_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of `storage` that is about a server."""
    from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore  # takes the driver

    opened: list[tuple[Any, ...]] = []

    async def remember(url: str, options: Any, **named: Any) -> None:
        opened.append((url, options, named))

    monkeypatch.setattr(PostgresStore, "open", remember)
    url = "postgres://om@127.0.0.1/om"
    section = (
        f'url: "{url}", prefix: mine, connections: 3, prepared: false, timeout: 2s, durable: false'
    )
    storage = parse(f"storage: {{{section}}}").storage
    await open_store(storage, 5, create=False, on_connection_lost=opened.clear)
    options = PostgresOptions("mine", 3, prepared=False, timeout_s=2.0, durable=False)
    named = {
        "generations": 5,
        "create": False,
        "on_connection_lost": opened.clear,
        "masters": None,
        "separate": None,
        "moves_keys": False,
    }
    assert opened == [(url, options, named)]
    await open_store(parse(f'storage: {{url: "{url}"}}').storage)
    assert opened[1][1] == PostgresOptions()


async def test_settings_of_a_redis_reach_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    from om_proxy.storage.redis.store import RedisOptions, RedisStore  # takes the driver

    opened: list[tuple[Any, ...]] = []

    async def remember(url: str, options: Any, **named: Any) -> None:
        opened.append((url, options, named))

    monkeypatch.setattr(RedisStore, "open", remember)
    url = "rediss://127.0.0.1:6379/3"
    section = f'url: "{url}", prefix: mine, connections: 3, timeout: 2s, durable: false'
    storage = parse(f"storage: {{{section}}}").storage
    await open_store(storage, 5, create=False, on_connection_lost=opened.clear)
    named = {
        "generations": 5,
        "create": False,
        "on_connection_lost": opened.clear,
        "masters": None,
        "separate": None,
        "moves_keys": False,
    }
    assert opened == [(url, RedisOptions("mine", 3, timeout_s=2.0, durable=False), named)]
    await open_store(parse(f'storage: {{url: "{url}"}}').storage)
    assert opened[1][1] == RedisOptions()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:geheim@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=geheim",
        "rediss://127.0.0.1:1/0?ssl_ca_certs=/geheim",
        "postgresql://om:geheim@127.0.0.1:1/om?connect_timeout=1",
        "postgresql://om@127.0.0.1:1/om?password=geheim",
        "postgresql://om:geheim@127.0.0.1:1/om?sslmode=nonsense",
    ],
)
async def test_a_server_that_cannot_be_used(url: str) -> None:
    """The error names the server without its password."""
    with pytest.raises(OmError) as failed:
        await open_store(StorageSettings(url=url))
    assert "geheim" not in str(failed.value)
    assert "storage.url" in str(failed.value)


async def test_a_stop_loses_no_turn(tmp_path: Path) -> None:
    """A turn whose reply a client got is still stored after a restart."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")
    async with run_with_scripted_models(tmp_path) as run:
        assert (await run.memory()).count == 2


async def test_what_waits_is_not_for_another_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records and figures are keyed with the old secret. They are lost with it, and counted."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat().say("The dock is 2.85 m high.")

        async def refuse(*_: object) -> None:
            raise StorageError("database or disk is full")

        with monkeypatch.context() as full:
            full.setattr(SqliteStore, "add_audit", refuse)
            url = f"{run.base}/om/v1/threads/t"
            answer = await run.http.delete(url, headers={"authorization": "Bearer sk-a"})
            assert answer.status_code == 200
            with capture_logs() as lines:
                await run.app._reopening.on_open(b"another secret" * 3, False)
        lost = {
            line["event"]: (line["error"], line.get("records", line.get("lines")))
            for line in lines
            if line["event"].endswith(".lost")
        }
        assert lost == {
            "audit.lost": ("OtherDatabase", 1),
            "ledger.lost": ("OtherDatabase", 1),
        }
        with capture_logs() as lines:
            await run.app.ledger_writer.write()
        assert lines == []


def test_processes_do_not_look_for_work_in_step() -> None:
    """Each look comes after another time, which stays near what the setting says."""
    app = App(parse("background: {observer_interval: 10s}"))
    intervals = {app._observer_interval_s() for _ in range(100)}
    assert len(intervals) > 1
    assert 8 <= min(intervals) <= max(intervals) <= 12


async def test_two_processes_on_one_store(tmp_path: Path) -> None:
    """Each process sees what the other stored, so a conversation may go on in the other."""
    models = ScriptedServer()
    async with (
        run_with_scripted_models(tmp_path, models=models) as one,
        run_with_scripted_models(tmp_path, models=models) as two,
    ):
        chat = one.chat()
        await chat.say("first")
        chat.running = two
        await chat.say("second")
        chat.running = one
        await chat.say("third")
        assert (await one.memory()) == (await two.memory())
        assert (await two.memory()).count == 6


async def test_no_upstream(tmp_path: Path) -> None:
    """An unreachable upstream is a 502 in OpenAI's shape, and the question is stored."""
    app = App(settings_in(tmp_path))
    async with (
        serve_on_loopback(app) as base,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        answer = await http.post(
            f"{base}/v1/chat/completions", json=body, headers={"x-om-thread": "t"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            502,
            "om_upstream_unreachable",
        )
        await app.background.wait_idle()
        (info,) = await app.store.threads(None)
        assert info.messages == 1


async def test_an_unsupported_protocol(tmp_path: Path) -> None:
    """A server that passes a raw WebSocket was started wrongly, and the error says how to start
    it."""
    app = App(settings_in(tmp_path))

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="ws='none'"):
        await app({"type": "websocket"}, never, never)  # type: ignore[arg-type]  # it must not even be asked


async def test_a_database_of_another_key_leaves_chat_without_memory(tmp_path: Path) -> None:
    """It starts, says why, and needs the key that the database was made with."""
    first, second = ("A" * 43, "B" * 43)
    settings = replace_storage(settings_in(tmp_path), encryption_key=first)
    store = await open_store(settings.storage)
    await store.secret()
    await store.close()
    other = replace_storage(settings, encryption_key=second)
    with pytest.raises(StorageError, match="another master key"):
        await open_store(other.storage)
    app = App(other)
    await app.start()
    assert not app._reopening.has_opened
    await app.stop()
    required = replace_storage(other, required=True)
    with pytest.raises(StorageError, match="another master key"):
        await App(required).start()


async def test_a_key_store_that_is_away_leaves_chat_without_memory(tmp_path: Path) -> None:
    """At the start and afterwards. The error names it without its password."""
    keys = tmp_path / "keys.db"
    settings = replace_storage(
        settings_in(tmp_path), encryption_key="A" * 43, keys_url=f"sqlite:///{keys}"
    )
    await (await open_store(settings.storage)).close()
    gone = keys.rename(tmp_path / "gone.db")
    app = App(settings)
    await app.start()
    await wait_ready(app, "degraded")
    assert not app._reopening.has_opened
    assert not keys.exists()
    gone.rename(keys)
    await wait_ready(app, "ok")
    keys.rename(gone)
    app._write_probe._ok_until = 0.0
    await wait_ready(app, "degraded")
    await app.stop()
    required = replace_storage(settings, required=True)
    with pytest.raises(StorageError, match=r"^storage\.keys_url names no key store"):
        await App(required).start()
    # a port where nobody listens
    with contextlib.closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://me:hush@127.0.0.1:{unused.getsockname()[1]}/keys"
        away = replace_storage(settings, keys_url=url)
        with pytest.raises(KeysAway, match=r"^storage\.keys_url: postgresql://me@127") as caught:
            await open_store(away.storage)
    assert "hush" not in str(caught.value)


async def wait_ready(app: App, status: str) -> None:
    """Wait until the readiness probe answers this."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        while not sent or json.loads(sent[-1]["body"])["status"] != status:
            await app.send_ready({"type": "http", "query_string": b""}, send)
            await asyncio.sleep(0.01)


def replace_storage(settings: Settings, **more: object) -> Settings:
    storage = settings.storage.model_dump(exclude_unset=True) | more
    return settings.model_copy(update={"storage": StorageSettings.model_validate(storage)})


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ('models: {"scripted-*": {enabled: false}}', "off", "disabled"),
        (
            'models: {"scripted*": {observation: {message_tokens: 500}}, "*[a]ctor": {observation: {buffer_tokens: 800}}}',
            "degraded",
            "memory-error",
        ),
    ],
    ids=["memory off for a model", "overrides that contradict each other"],
)
async def test_overrides_of_a_model(tmp_path: Path, more: str, status: str, reason: str) -> None:
    """A model's own settings can switch memory off, and contradictory settings fail no request
    (docs/contributing/behaviour.md#fail-open)."""
    async with run_with_scripted_models(tmp_path, more=more) as run:
        reply, receipt = await run.chat().say("hello")
        assert reply.startswith("Noted")
        assert (receipt["status"], receipt["reason"]) == (status, reason)
        assert await run.memories() == []


async def test_a_store_that_opens_late_is_used_by_its_own_clock(tmp_path: Path) -> None:
    """The machine's clock is wrong, and the store is away at the start: once it is used, nothing is
    dated by the wrong one."""
    file = tmp_path / "om.db"
    file.write_bytes(b"no database at all" * 100)
    app = App(settings_in(tmp_path))
    await app.start()
    await wait_ready(app, "degraded")
    app._store_clock._machine_clock = lambda: time.time() - 600.0
    take_store, errors_s = app._reopening.on_open, list[float]()

    async def note_error(secret: bytes, is_known: bool) -> None:
        errors_s.append(abs(app._clock() - time.time()))
        await take_store(secret, is_known)

    app._reopening.on_open = note_error
    assert abs(app._clock() - time.time()) > 60.0
    file.unlink()
    await wait_ready(app, "ok")
    await app.stop()
    assert [error_s < 60.0 for error_s in errors_s] == [True]
