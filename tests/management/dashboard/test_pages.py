"""The dashboard's page and files over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from om_proxy.management.dashboard.site import load_site
from tests.e2e.running import Running, run_with_scripted_models

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path) as running:
        yield running


async def get(run: Running, path: str, **headers: str) -> httpx.Response:
    return await run.http.get(f"{run.base}{path}", headers=headers)


def list_paths() -> list[str]:
    site = load_site()
    return ["/om/", *(f"/om/assets/{site.version}/{name}" for name in site.assets)]


async def test_every_file_has_the_policy(run: Running) -> None:
    """On each answer: a file that is opened by itself runs nothing either."""
    for path in list_paths():
        answer = await get(run, path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers


async def test_files_are_kept_and_the_page_is_asked_for_again(run: Running) -> None:
    for path in list_paths()[1:]:
        kept = (await get(run, path)).headers["cache-control"]
        assert kept == "public, max-age=31536000, immutable"
    page = await get(run, "/om/")
    assert page.headers["cache-control"] == "no-cache"
    again = await get(run, "/om/", **{"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await get(run, "/om/", **{"if-none-match": '"old"'})).status_code == 200


async def test_files_are_compressed_where_the_client_reads_it(run: Running) -> None:
    for path in list_paths():
        packed = await get(run, path, **{"accept-encoding": "gzip"})
        plain = await get(run, path, **{"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) != len(plain.content)
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    "path",
    [
        "/om/assets/",
        "/om/assets/0123456789abcdef/main.js",
        "/om/assets/{version}/",
        "/om/assets/{version}/index.html",
        "/om/assets/{version}/vendor/README.md",
        "/om/assets/{version}/../index.html",
        "/om/assets/{version}/%2e%2e/site.py",
        "/om/assets/{version}/main.js/",
        "/om/index.html",
        "/om/other",
        "/om//",
        "/om%2F",
        "/t/crates/om/",
    ],
)
async def test_there_is_no_other_file(run: Running, path: str) -> None:
    url = httpx.URL(run.base).copy_with(
        raw_path=path.replace("{version}", load_site().version).encode()
    )
    answer = await run.http.get(url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")
    assert run.models.requests == []


async def test_the_path_without_its_slash_leads_to_the_page(run: Running) -> None:
    """By a relative address: a reverse proxy may have a path of its own in front."""
    answer = await get(run, "/om")
    assert (answer.status_code, answer.headers["location"]) == (308, "om/")
    assert (await run.http.get(f"{run.base}/om", follow_redirects=True)).status_code == 200


@pytest.mark.parametrize("path", ["/om", "/om/"])
async def test_nothing_can_be_sent(run: Running, path: str) -> None:
    answer = await run.http.post(f"{run.base}{path}", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_head_request_gets_the_same_head(run: Running) -> None:
    head = await run.http.head(f"{run.base}/om/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == (await get(run, "/om/")).headers["content-length"]


async def test_there_is_no_dashboard_without_the_api(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, more='server: {api: "off"}') as off:
        for path in ("/om", *list_paths()):
            answer = await get(off, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")
