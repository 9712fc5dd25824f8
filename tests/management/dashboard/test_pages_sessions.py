"""The dashboard's session over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from om_proxy.management.api.sign_in import SESSION_LIFE_S, SignIn
from tests.e2e.running import Running, run_with_scripted_models

HEADER = "x-om-session"


@pytest.fixture
def sign_in() -> SignIn:
    return SignIn()


@pytest.fixture
async def run(tmp_path: Path, sign_in: SignIn) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, sign_in=sign_in) as running:
        await running.chat("plan", key="sk-a").say("One.")
        yield running


async def open_session(run: Running, sign_in: SignIn, **headers: str) -> httpx.Response:
    token = sign_in.link_to("").rpartition("/")[2]
    return await run.http.post(f"{run.base}/om/session", content=token, headers=headers)


async def list_threads(run: Running, **headers: str) -> int:
    answer = await run.http.get(f"{run.base}/om/v1/threads", headers=headers)
    answer.raise_for_status()
    return len(answer.json()["items"])


async def test_the_link_opens_a_session_of_the_admin(run: Running, sign_in: SignIn) -> None:
    """The cookie counts with the page's own header, and a credential counts before it."""
    opened = await open_session(run, sign_in)
    cookie = opened.headers["set-cookie"]
    port = urlsplit(run.base).port
    assert opened.status_code == 204
    assert opened.headers["cache-control"] == "no-store"
    assert cookie.startswith(f"om-session-{port}=")
    assert cookie.endswith(f"; Max-Age={SESSION_LIFE_S}; Path=/om; HttpOnly; SameSite=Strict")
    session = {HEADER: opened.headers[HEADER]}
    assert await list_threads(run) == 0
    assert await list_threads(run, **{HEADER: "1"}) == 0, "all ports of this machine see the cookie"
    assert await list_threads(run, **session) == 1
    assert await list_threads(run, **session, authorization="Bearer sk-b") == 0
    ended = await run.http.delete(f"{run.base}/om/session")
    assert "=; Max-Age=0;" in ended.headers["set-cookie"]
    assert await list_threads(run, **session) == 0


async def test_the_link_is_refused_a_second_time(run: Running, sign_in: SignIn) -> None:
    await open_session(run, sign_in)
    run.http.cookies.clear()
    again = await open_session(run, sign_in)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "used already" in again.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:1"},  # another port of this machine
        {"origin": "https://example.com"},
        {"host": "example.com"},
        {"x-forwarded-for": "203.0.113.9"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_no_other_site_or_machine_uses_link_or_session(
    run: Running, sign_in: SignIn, headers: dict[str, str]
) -> None:
    refused = await open_session(run, sign_in, **headers)
    assert refused.status_code in (401, 404)
    opened = await open_session(run, sign_in)
    session = {HEADER: opened.headers[HEADER]}
    assert await list_threads(run, **session) == 1
    answer = await run.http.get(f"{run.base}/om/v1/threads", headers={**session, **headers})
    assert answer.status_code == 401 or answer.json()["items"] == []


async def test_other_methods_and_long_bodies_are_refused(run: Running) -> None:
    url = f"{run.base}/om/session"
    assert (await run.http.get(url)).status_code == 405
    assert (await run.http.post(url, content=b"x" * 201)).status_code == 413


async def test_a_server_without_a_link_has_no_session(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path) as run:
        assert (await run.http.post(f"{run.base}/om/session")).status_code == 404


async def test_a_server_for_others_takes_no_link(tmp_path: Path, sign_in: SignIn) -> None:
    """The listener is not loopback's, whatever was created for it."""
    more = "server: {host: 0.0.0.0, admin_token: a-long-admin-token}"
    async with run_with_scripted_models(tmp_path, more=more, sign_in=sign_in) as run:
        assert (await open_session(run, sign_in)).status_code == 404
