"""What a user's token opens on the admin API where tokens are not required."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import fields

from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.settings.identity.user_token import Claims, sign_claims
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, BODIES, OWN, QUERIES
from tests.settings.identity.test_thread_names_sessions import OPENCODE, SUB_AGENT

SIGNING = "0123456789abcdef0123456789abcdef"
CANARY = "violin-of-bob"
# headers that name a conversation, and none that a token opens: a sub-agent's has its own thread
NAMING_HEADERS = {
    "none": {},
    "thread": {"x-om-thread": "trip"},
    "session": OPENCODE,
    "sub-agent": SUB_AGENT,
}


def sign(secret: str = SIGNING, **claims: Any) -> dict[str, str]:
    named = Claims(**{"resource": "ada", "exp": time.time() + 3_600.0, **claims})
    return {**OWN, "x-om-token": sign_claims(named, secret.encode())}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}\n            auth: {{token_secret: {SIGNING}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        for resource, thread, said in (
            ("ada", "trip", "a boat"),
            ("ada", "home", "a shed"),
            ("bob", "trip", CANARY),
        ):
            await running.chat(thread, **{"x-om-resource": resource}).say(said)
        yield running


async def get(run: Running, path: str, headers: dict[str, str]) -> httpx.Response:
    return await run.http.get(f"{run.base}/om/v1{path}", headers=headers)


async def look_up(run: Running, thread: str, headers: dict[str, str]) -> httpx.Response:
    url = f"{run.base}/om/v1/threads/{thread}/recall?resource=ada"
    return await run.http.post(url, headers=headers, json={"mode": "search", "query": "shed"})


async def list_threads(run: Running, headers: dict[str, str]) -> set[str]:
    items = (await get(run, "/threads", headers)).json()["items"]
    return {f"{item['resource']}/{item['thread']}" for item in items}


async def test_a_token_opens_its_resource(run: Running) -> None:
    """Its threads and their list; another resource's thread looks like one that does not exist."""
    assert await list_threads(run, OWN) == {"ada/trip", "ada/home", "bob/trip"}
    assert await list_threads(run, sign()) == {"ada/trip", "ada/home"}
    assert await list_threads(run, {**sign(), "x-om-admin": ADMIN_TOKEN}) == {
        "ada/trip",
        "ada/home",
    }
    for path, status in (
        ("/threads/trip?resource=bob", 404),
        ("/threads/trip", 404),
        ("/resources/bob/pins", 404),
        ("/threads?resource=bob", 404),
        ("/export?resource=bob", 404),
        ("/resources", 403),
        ("/stats", 403),
        ("/stats?resource=ada", 403),
        ("/events", 403),
    ):
        assert ((await get(run, path, sign())).status_code, path) == (status, path)


@pytest.mark.parametrize("naming", NAMING_HEADERS)
async def test_no_header_narrows_a_token_for_a_resource(run: Running, naming: str) -> None:
    """Its lists and each of its threads are open, whatever thread a header names."""
    sent = {**sign(), **NAMING_HEADERS[naming]}
    assert await list_threads(run, sent) == {"ada/trip", "ada/home"}
    for thread in ("trip", "home"):
        assert (await get(run, f"/threads/{thread}?resource=ada", sent)).status_code == 200
    assert "a shed" in (await look_up(run, "trip", sent)).text


@pytest.mark.parametrize("naming", NAMING_HEADERS)
async def test_a_token_for_a_thread_opens_that_thread(run: Running, naming: str) -> None:
    """Not its neighbours of the same resource, nor lists, whatever conversation a header names."""
    only = {**sign(thread="trip"), **NAMING_HEADERS[naming]}
    assert (await get(run, "/threads/trip?resource=ada", only)).status_code == 200
    for path, status in (
        ("/threads/home?resource=ada", 404),
        ("/threads", 403),
        ("/search?q=shed&resource=ada", 403),
        ("/export?resource=ada", 403),
    ):
        assert ((await get(run, path, only)).status_code, path) == (status, path)
    assert "a shed" not in (await look_up(run, "trip", only)).text
    home = f"{run.base}/om/v1/threads/home?resource=ada"
    for method, sent in (("PATCH", {"json": {"title": "Mine"}}), ("DELETE", {})):
        refused = await run.http.request(method, home, headers=only, **sent)
        assert (refused.status_code, method) == (404, method)


def fill_names(path: str, resource: str, tenant: str = "t") -> str:
    for name, value in (("{thread}", "trip"), ("{resource}", resource), ("{id}", "1")):
        path = path.replace(name, value)
    return path.replace("{seq}", "1").replace("{receipt}", "r").replace("{tenant}", tenant)


async def test_a_token_opens_what_the_row_says(run: Running) -> None:
    """A path that names a thread or a resource is open by itself. Another one is open if its row
    says so, whatever the names in its query are: `/stats` has a `resource` too, and is shut."""
    tenant = (await get(run, "/threads", OWN)).json()["items"][0]["tenant"]
    for route in ADMIN_ROUTES:
        is_open = (
            route.is_for_one_resource or "{thread}" in route.path or "{resource}" in route.path
        )
        takes_resource = "resource" in {field.encode_name for field in fields(route.query)}
        assert takes_resource or not route.is_for_one_resource, route.path
        query = QUERIES.get((route.method, route.path), "").replace("resource=crates", "")
        url = f"{run.base}/om/v1{fill_names(route.path, 'ada', tenant)}?{query}"
        got = await run.http.request(
            route.method, f"{url}&resource=ada" if takes_resource else url, headers=sign()
        )
        assert (got.status_code != 403) == is_open, (route.method, route.path)


async def test_no_route_shows_another_resource(run: Running) -> None:
    """Every route, asked for the other resource and for none, with a valid token."""
    for route in ADMIN_ROUTES:
        if route.path.endswith("/stream"):
            continue
        path = fill_names(route.path, "bob")
        query = QUERIES.get((route.method, route.path), "").replace("resource=crates", "")
        body = BODIES.get((route.method, route.path))
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        for more in ("", "resource=bob"):
            url = f"{run.base}/om/v1{path}?{'&'.join(part for part in (query, more) if part)}"
            got = await run.http.request(route.method, url, headers=sign(), **sent)
            assert CANARY not in got.text, (route.method, url)
            assert got.status_code < 500
    assert await list_threads(run, OWN) == {"ada/trip", "ada/home", "bob/trip"}


@pytest.mark.parametrize(
    "token",
    [
        sign("another-secret-another-secret-32"),
        sign(exp=1.0),
        sign(aud="elsewhere"),
        {**OWN, "x-om-token": "garbage"},
    ],
    ids=["signed elsewhere", "expired", "for another audience", "garbage"],
)
async def test_a_bad_token_is_refused(run: Running, token: dict[str, str]) -> None:
    """Also beside the admin token, and on every route."""
    for path in ("/threads", "/threads/trip?resource=ada", "/search?q=boat"):
        for headers in (token, {**token, "x-om-admin": ADMIN_TOKEN}):
            assert (await get(run, path, headers)).status_code == 401
