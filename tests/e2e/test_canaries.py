"""Words of conversations, notes, names and keys, and every place that must not show them.

One furnished proxy serves all tests of this file, with the admin token kept from text. Its routes
are read from their table, so that a new route is asked too. Everything there has also failed in
words of the conversation (repeating.py).

No text and no key may be in any of these places. Names stand in the admin API, in events and in
webhooks, which are about threads; not in logs, metrics and traces.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from starlette.types import Receive, Scope, Send

from om_proxy.engine.event_feed.envelope import name_hook
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.observability import spans
from om_proxy.testing import loopback
from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.furnished import (
    MEMORY_SETTINGS,
    NAME_CANARIES,
    OWN,
    SCOPE_OVERRIDE_SETTINGS,
    TEXT_CANARIES,
    Furniture,
    furnish,
    list_examples,
)
from tests.e2e.repeating import RepeatingServer, fail_in_words
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.e2e.test_event_streams import list_events, open_stream, take
from tests.e2e.written import LogLines, collect_log_lines
from tests.management.api.test_admin_api import ask as ask_admin

ADMIN = {"x-om-admin": "a-long-admin-token"}


def find_turn(route: AdminRoute) -> int:
    """Return when a route is asked: what removes or uses up a thing comes after what shows it."""
    removes_all = route.method == "DELETE" and not route.path.endswith("{id}")
    return 4 if removes_all else ("GET", "PATCH", "DELETE", "POST").index(route.method)


ROUTES_IN_TURN = sorted(ADMIN_ROUTES, key=find_turn)


@pytest.fixture(scope="module")
def logged() -> Iterator[LogLines]:
    with collect_log_lines() as found:
        yield found


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


@pytest.fixture(scope="module")
def traced(patched: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that have ended."""
    exporter, create_provider = InMemorySpanExporter(), spans.create_provider
    patched.setattr(spans, "BatchSpanProcessor", SimpleSpanProcessor)
    patched.setattr(spans, "create_provider", lambda: create_provider(exporter))
    return exporter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


class Hook:
    """A receiver of webhooks, and the bodies that it got."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.name = ""  # as the store knows it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await loopback.read_body(receive)
        self.requests.append(f"{scope['path']} {scope['headers']} {body.decode()}")
        await loopback.send_json(send, 200, {})


@pytest.fixture(scope="module")
def hook() -> Hook:
    return Hook()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furniture(
    logged: LogLines,
    traced: InMemorySpanExporter,
    hook: Hook,
    patched: pytest.MonkeyPatch,
    folder: Path,
) -> AsyncIterator[Furniture]:
    more = f"server: {{admin_token: {ADMIN['x-om-admin']}, admin_reads: false}}{SCOPE_OVERRIDE_SETTINGS}"
    async with serve_on_loopback(hook, lifespan="off") as url:
        hook.name = name_hook(f"{url}/hook")
        receiver = f'{{url: "{url}/hook", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}'
        async with run_with_scripted_models(
            folder,
            MEMORY_SETTINGS,
            models=RepeatingServer(),
            more=more,
            telemetry=f"otel: true, webhooks: [{receiver}]",
            model_timeout_s=60.0,
        ) as running:
            await wait_for_hook(running, hook.name)
            broken = Chat(running, {**OWN, "x-om-thread": "canarythread-broken"})
            statuses = await fail_in_words(broken, "canaryprompt broken", patched)
            assert {400, 401, 429, 500} < set(statuses)
            assert statuses.count(200) > 8
            yield await furnish(running)


async def wait_for_hook(run: Running, name: str) -> None:
    """Wait until the hook has got all events so far. A new one gets what happens from then on."""
    position = await run.app.store.event_position()
    async with asyncio.timeout(120):
        while True:
            state = await run.app.store.webhook_state(name)
            if state is not None and state.cursor >= position:
                return
            await asyncio.sleep(0.05)  # the store tells nobody; bounded by the time-out


@pytest.fixture
def run(furniture: Furniture) -> Running:
    return furniture.run


async def ask(
    run: Running, route: AdminRoute, path: str, headers: dict[str, str], body: Any
) -> httpx.Response:
    return await ask_admin(run, route.method, path, headers, body)


def find_canaries(content: str, canaries: dict[str, str]) -> set[str]:
    """Return which kinds of canaries stand in the text."""
    return {kind for kind, word in canaries.items() if word in content}


@pytest.mark.asyncio(loop_scope="module")
async def test_the_owner_is_shown_each_kind(run: Running, furniture: Furniture) -> None:
    """So the tests below can fail."""
    shown: set[str] = set()
    for route in (route for route in ROUTES_IN_TURN if route.method == "GET"):
        for example in list_examples(route, await furniture.list_places()):
            answer = await ask(run, route, example.write_path(), OWN, example.body)
            shown |= find_canaries(answer.text, TEXT_CANARIES)
            assert find_canaries(answer.text, {"key": "canarykey"}) == set(), example.path
    assert shown == set(TEXT_CANARIES)


@pytest.mark.asyncio(loop_scope="module")
async def test_events_stream_none_to_them(run: Running, furniture: Furniture) -> None:
    """Their owner is streamed the notes."""
    tenant = furniture.tenant
    count = len(await list_events(run, **OWN))
    path = f"/events?cursor=0&tenant={tenant}"
    for headers, shown in ((ADMIN | {"authorization": ""}, False), (OWN, True)):
        async with open_stream(run, path, **headers) as pieces:
            streamed = "".join(piece["data"] for piece in await take(pieces, count))
        assert ("prompt" in find_canaries(streamed, TEXT_CANARIES)) == shown
        assert shown or find_canaries(streamed, TEXT_CANARIES) == set()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", ROUTES_IN_TURN, ids=lambda r: f"{r.method} {r.path}")
async def test_who_may_read_no_text_is_shown_none(
    run: Running, furniture: Furniture, route: AdminRoute
) -> None:
    """With every query that a route has, of every thread, entry and resource."""
    tenant = furniture.tenant
    statuses = set()
    for example in list_examples(route, await furniture.list_places()):
        path = example.write_path(tenant=tenant)
        answer = await ask(run, route, path, ADMIN, example.body)
        assert find_canaries(answer.text, TEXT_CANARIES) == set(), path
        assert find_canaries(answer.text, {"key": "canarykey"}) == set(), path
        statuses.add(answer.status_code)
        if route.is_text:
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "om_forbidden")
    # a pin of the resource is one of its threads' too, and goes by either route
    may_be_gone = route.path == "/resources/{resource}/pins/{id}"
    # the body is a conversation that these threads do not hold
    conflicts = (route.method, route.path) == ("POST", "/threads/{thread}/messages")
    assert route.is_text or may_be_gone or statuses & {200, 202, 409 if conflicts else 200}, (
        statuses
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_the_log_holds_none(run: Running, logged: LogLines) -> None:
    """Neither text nor a name nor a key."""
    assert logged.events("observed")
    assert logged.events("observe.failed")
    assert logged.events("memory.bypassed")
    assert logged.events("inline.failed")
    assert find_canaries(logged.text, TEXT_CANARIES | NAME_CANARIES) == set()


@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_hold_none(run: Running) -> None:
    """Nor do those that name a model, an error or a status."""
    answer = await run.http.get(f"{run.base}/metrics", headers=ADMIN)
    assert answer.status_code == 200
    for name in ("om_requests_total", "om_usage_tokens_total", "om_failures_total"):
        assert re.search(rf"^{name}{{.*}} [1-9]", answer.text, flags=re.M), name
    assert find_canaries(answer.text, TEXT_CANARIES | NAME_CANARIES) == set()


@pytest.mark.asyncio(loop_scope="module")
async def test_spans_hold_none(run: Running, traced: InMemorySpanExporter) -> None:
    """Neither their names and attributes, nor an event, an exception or a description of a
    status."""
    finished = traced.get_finished_spans()
    named = {span.name.partition(" ")[0] for span in finished}
    assert named >= {"chat", "create_memory", "update_memory", "delete_memory"}
    failed = {span.name for span in finished if span.status.status_code is StatusCode.ERROR}
    assert failed >= {"chat scripted-actor", "create_memory"}
    written = "".join(span.to_json() for span in finished)
    assert find_canaries(written, TEXT_CANARIES | NAME_CANARIES) == set()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_webhook_without_text_gets_none(run: Running, hook: Hook) -> None:
    """It gets every event. Each names its thread, and holds no text and no key."""
    await wait_for_hook(run, hook.name)
    written = "".join(hook.requests)
    for kind in ("activation", "buffering-end", "buffering-failed", "thread-update", "edited"):
        assert f'"type":"data-om-{kind}"' in written, kind
    assert find_canaries(written, TEXT_CANARIES | {"key": "canarykey"}) == set()
    assert find_canaries(written, NAME_CANARIES) == {"thread", "resource"}


@pytest.mark.asyncio(loop_scope="module")
async def test_comments_without_text_hold_none(run: Running) -> None:
    """With `inline,text` the same events show the notes."""
    for choice, shown in (("inline", False), ("inline,text", True)):
        comments = ""
        headers = {**OWN, "x-om-thread": f"canarythread-{shown}", "x-om-events": choice}
        for number in range(16):
            message = {
                "role": "user",
                "content": f"Crate {number}: canaryprompt weighs 9 kg. " * 9,
            }
            body = {"model": "scripted-actor", "messages": [message], "stream": True}
            url = f"{run.base}/v1/chat/completions"
            answer = await run.http.post(url, json=body, headers=headers)
            comments += answer.text.partition("data: ")[0]
            await run.app.background.wait_idle()
        assert "data-om-activation" in comments
        assert find_canaries(comments, {"key": "canarykey"}) == set()
        assert bool(find_canaries(comments, TEXT_CANARIES)) == shown


@pytest.mark.asyncio(loop_scope="module")
async def test_tables_of_figures_and_of_the_audit_hold_none(run: Running, folder: Path) -> None:
    """As they lie on the disk. A webhook's place is there too."""
    await run.app.ledger_writer.write()
    with closing(sqlite3.connect(f"file:{folder}/om.db?mode=ro", uri=True)) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        chosen = [name for name in tables if re.match("ledger|audit|webhook|receipt", name)]
        rows = {name: str(db.execute(f"SELECT * FROM {name}").fetchall()) for name in chosen}  # noqa: S608 # a name of the schema
    for name in ("ledger", "audit", "webhook"):
        assert any(name in table and len(text) > 20 for table, text in rows.items()), name
    assert find_canaries("".join(rows.values()), TEXT_CANARIES | {"key": "canarykey"}) == set()
