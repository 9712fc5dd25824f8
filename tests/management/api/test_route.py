"""Every change leaves a record, and so does the first reading of text in an hour. The routes are
read from the table, so that a new one is held to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.turns.preview import ContextPreviewer
from om_proxy.management.api.requests import is_large_body
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES, find_route
from om_proxy.storage.values.records import AuditRecord
from om_proxy.wire.apis.api import Unreadable
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import (
    ADMIN_TOKEN,
    BODIES,
    CHANGES,
    CREDENTIALS,
    OWN,
    QUERIES,
    ask,
    ask_route,
    fill_path,
)

CANARY_WORD = "zanzibar"
TEXT_ROUTES = [route for route in ADMIN_ROUTES if route.shows_text and not route.changes_memory]
PAGES_OF_TEXT = [route for route in TEXT_ROUTES if route.method == "GET"]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        await running.chat("crates").say(f"Where is crate 7 of {CANARY_WORD}?")
        yield running


async def list_audit(run: Running, headers: dict[str, str] = OWN) -> list[dict[str, Any]]:
    """Return the records, the oldest first."""
    answer = await ask(run, "GET", "/audit", headers)
    assert answer.status_code == 200
    items: list[dict[str, Any]] = answer.json()["items"]
    return items[::-1]


def has_changed(answer: httpx.Response) -> bool:
    return answer.status_code < 300


@pytest.mark.parametrize("route", CHANGES, ids=lambda r: f"{r.method} {r.path}")
async def test_every_change_leaves_a_record(run: Running, route: AdminRoute) -> None:
    """One that was refused leaves none. The caller reads its own records, without any name."""
    refused = await ask_route(run, route, OWN | {"if-match": '"999"'})
    assert not has_changed(refused)
    assert await list_audit(run) == []
    label = (await ask(run, "GET", "/threads")).json()["items"][0]["label"]
    answer = await ask_route(run, route, OWN)
    records = await list_audit(run)
    assert [record["what"] for record in records] == [route.name] * has_changed(answer)
    for record in records:
        assert record["who"] not in ("admin", "local", "cli")
        assert record["at"] == run.clock.now
        if route.names_thread:
            assert record["label"] == label
    assert "crates" not in json.dumps(records)
    assert await list_audit(run, CREDENTIALS["foreign"]) == []
    assert await list_audit(run, CREDENTIALS["admin"]) == records


async def test_who_changed_what(run: Running) -> None:
    """The admin and a caller are told apart; what was forgotten is counted."""
    tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    await ask(run, "PATCH", "/threads/crates", OWN, {"title": "Crates"})
    await ask(run, "DELETE", f"/tenants/{tenant}", CREDENTIALS["admin"])
    first, second = await list_audit(run)
    assert (first["what"], first["counts"]) == ("set_title", {})
    assert (second["who"], second["what"], second["label"]) == ("admin", "forget_tenant", "")
    assert (second["counts"]["threads"], second["counts"]["messages"]) == (1, 2)


async def test_a_pin_names_its_author_as_the_audit_does(run: Running) -> None:
    """One word for one person: nobody has to guess which record belongs to a pin."""
    tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    path = "/threads/crates/pins"
    own = await ask(run, "POST", path, OWN, {"text": "x"})
    more = await ask(run, "POST", f"{path}?tenant={tenant}", CREDENTIALS["admin"], {"text": "y"})
    authors = [pin["by"] for pin in more.json()["items"]]
    assert authors == [record["who"] for record in await list_audit(run)]
    assert authors[0] == own.json()["items"][0]["by"] != "own"
    assert authors[1] == "admin"


@pytest.mark.parametrize("route", TEXT_ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_reading_of_text_leaves_one_record_an_hour(run: Running, route: AdminRoute) -> None:
    for _ in range(2):
        answer = await ask_route(run, route, OWN)
    found = await list_audit(run)
    assert [record["what"] for record in found] == [route.name] * has_changed(answer)
    run.clock.now += 3_600
    await ask_route(run, route, OWN)
    assert len(await list_audit(run)) == 2 * len(found)


@pytest.mark.parametrize("route", PAGES_OF_TEXT, ids=lambda r: f"{r.method} {r.path}")
async def test_a_question_for_the_head_is_no_reading(run: Running, route: AdminRoute) -> None:
    """HEAD sends no text."""
    path = await fill_path(run, route)
    query = QUERIES.get((route.method, route.path), "")
    answer = await ask(run, "HEAD", f"{path}?{query}")
    assert answer.content == b""
    assert await list_audit(run) == []


async def test_one_reading_is_that_of_any_route(run: Running) -> None:
    for path in ("/observations", "/messages", "/messages?excerpt=true"):
        await ask(run, "GET", f"/threads/crates{path}")
    assert [record["what"] for record in await list_audit(run)] == ["show_notes"]


@pytest.mark.parametrize(
    ("path", "name"),
    [("/events", "answer_events"), ("/threads/crates/events", "answer_thread_events")],
)
async def test_events_are_a_reading(run: Running, path: str, name: str) -> None:
    """They hold the words of notes, as a list and as a stream."""
    for accept in ("application/json", "text/event-stream"):
        headers = OWN | {"accept": accept}
        async with run.http.stream("GET", f"{run.base}/om/v1{path}", headers=headers) as answer:
            assert answer.headers["content-type"] == accept
            await anext(answer.aiter_bytes())
        run.clock.now += 3_600
    assert [record["what"] for record in await list_audit(run)] == [name] * 2


async def test_figures_alone_are_no_reading(tmp_path: Path) -> None:
    """The admin token without texts reads none, and leaves no record."""
    more = f"server: {{admin_token: {ADMIN_TOKEN}, admin_reads: false}}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await run.chat("crates").say("Where is crate 7?")
        tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
        path = f"/threads/crates/messages?tenant={tenant}"
        answer = await ask(run, "GET", path, CREDENTIALS["admin"])
        assert [line["raw"] for line in answer.json()["items"]] == [None, None]
        assert await list_audit(run) == []


async def test_a_change_whose_record_is_refused(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change stands and is answered; its record comes with the next one."""
    add_audit = run.app.store.add_audit
    is_full = True

    async def fail(records: Sequence[AuditRecord]) -> None:
        if is_full:
            raise StorageError("database or disk is full")
        await add_audit(records)

    monkeypatch.setattr(run.app.store, "add_audit", fail)
    answer = await ask(run, "PATCH", "/threads/crates", OWN, {"title": "One"})
    assert (answer.status_code, answer.json()["title"]) == (200, "One")
    assert await list_audit(run) == []
    is_full = False
    await ask(run, "DELETE", "/threads/crates")
    assert [record["what"] for record in await list_audit(run)] == ["set_title", "forget_thread"]


async def test_a_record_that_waits_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("crates").say("Where is crate 7?")
        with monkeypatch.context() as patch:
            patch.setattr(run.app.store, "add_audit", fail)
            await ask(run, "PATCH", "/threads/crates", OWN, {"title": "One"})
        assert await list_audit(run) == []
    async with run_with_scripted_models(tmp_path) as run:
        assert [record["what"] for record in await list_audit(run)] == ["set_title"]


async def fail(*_: object) -> None:
    raise StorageError("database or disk is full")


async def test_a_change_that_the_store_breaks_off(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it may be done, so it is recorded."""
    forget_batch = run.app.store.forget_batch

    async def fail(*arguments: Any) -> None:
        await forget_batch(*arguments)
        raise StorageError("Input/output error")

    monkeypatch.setattr(run.app.store, "forget_batch", fail)
    assert (await ask(run, "DELETE", "/resources/crates")).status_code == 503
    [record] = await list_audit(run)
    assert (record["what"], record["counts"]) == ("forget_resource", {"unfinished": 1})


async def test_pages_of_the_audit(run: Running) -> None:
    for number in range(5):
        await ask(run, "PATCH", "/threads/crates", OWN, {"title": f"{number}"})
    ids: list[int] = []
    cursor = ""
    while cursor is not None:
        page = (await ask(run, "GET", f"/audit?limit=2&cursor={cursor}")).json()
        ids += [record["id"] for record in page["items"]]
        cursor = page["cursor"]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 5


@pytest.mark.parametrize("fault", [Unreadable(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")])
async def test_a_fault_behind_the_body_is_not_the_callers(
    run: Running, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """A stored text that cannot be read does not mean that the body was no chat request."""

    async def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(ContextPreviewer, "preview", fail)
    body = BODIES["POST", "/threads/{thread}/context"]
    answer = await ask(run, "POST", "/threads/crates/context", OWN, body)
    assert answer.status_code == 500
    assert "chat request" not in answer.text


def test_every_handler_has_its_route() -> None:
    for route in ADMIN_ROUTES:
        assert find_route(route.handler) is route


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=lambda r: r.name)
def test_a_handler_takes_what_its_row_names(route: AdminRoute) -> None:
    """The query and the body that are parsed for it. Handlers of pins serve two paths."""
    query, body = get_args(get_type_hints(route.handler)["call"])
    assert query in (route.query, Any)
    assert body == (bytes if is_large_body(route.body) else route.body or NoneType)
