"""Bodies that are no JSON in UTF-8, and what the headers of an answer say, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from om_proxy.management.api.requests import is_large_body
from om_proxy.management.api.route_table import ADMIN_ROUTES
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, OWN, ask_route, fill_path

SAID = "Where is crate 7?"
BAD_BODIES = (
    b'{"text": "\xff"}',
    b'{"\xff": 1}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xe9t\xe9"}]}',
    '{"text": "x"}'.encode("utf-16"),
    b"\xff",
    b"[" * 60_000,
    b'{"text": ' + b"[" * 60_000,
)


async def post(run: Running, method: str, path: str, body: bytes, kind: str) -> httpx.Response:
    headers = {**OWN, "content-type": kind}
    return await run.http.request(method, run.base + path, headers=headers, content=body)


async def test_a_body_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It is 400 with the proxy's own words, on each route that takes a body, and nothing changes.
    Only a chat request is read as its own route reads it."""
    wrong = []
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("crates").say(SAID)
        for route in ADMIN_ROUTES:
            if route.body is None:
                continue
            kind = route.body.content_type if is_large_body(route.body) else "application/json"
            path = await fill_path(run, route)
            for body in BAD_BODIES:
                got = await post(run, route.method, f"/om/v1{path}", body, kind)
                error = got.json().get("error", {})
                if got.status_code != 400 or error.get("type") != "om_error":
                    wrong.append((route.method, route.path, body[:20], got.status_code))
        for body in BAD_BODIES:
            got = await post(run, "POST", "/om/mcp", body, "application/json")
            if got.status_code != 400 or "error" not in got.json():
                wrong.append(("POST", "/om/mcp", body[:20], got.status_code))
    assert wrong == []


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_no_cache_keeps_an_answer(tmp_path: Path, credential: str) -> None:
    """Of memory and of refusals, on every route; no browser takes one for another type."""
    answers: list[httpx.Response] = []
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    headers = CREDENTIALS[credential]
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await run.chat("crates").say(SAID)
        for route in ADMIN_ROUTES:
            if "events" not in route.path and route.method != "DELETE":
                answers.append(await ask_route(run, route, headers))
        answers += [
            await run.http.get(f"{run.base}/om/v1/{path}", headers=headers)
            for path in ("openapi.json", "no-such-page", "threads/crates/events", "import")
        ]
        answers.append(await post(run, "POST", "/om/mcp", b"{}", "application/json"))
        tag = answers[0].headers.get("etag", '"x"')
        answers.append(
            await run.http.get(
                f"{run.base}/om/v1/threads/crates", headers={**OWN, "if-none-match": "*", "x": tag}
            )
        )
    assert answers[-1].status_code == 304
    assert [str(answer.url) for answer in answers if not is_private(answer)] == []


def is_private(answer: httpx.Response) -> bool:
    return list(read_privacy(answer)) == ["no-store", "nosniff"]


def read_privacy(answer: httpx.Response) -> Iterator[str]:
    yield from answer.headers.get_list("cache-control")
    yield from answer.headers.get_list("x-content-type-options")
