"""The dashboard's page and files over HTTP."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import httpx
import pytest

from om_proxy.management.dashboard import pages
from om_proxy.management.dashboard.pages import load_site
from om_proxy.memory.events.parts import EditAction
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
    pages = load_site()
    return ["/om/", *(f"/om/assets/{pages.version}/{name}" for name in pages.assets)]


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


ROOT = Path(__file__).parents[3]
STATIC = ROOT / "proxy" / "om_proxy" / "management" / "dashboard" / "static"
VENDORED = [STATIC / "vendor", Path(__file__).parent / "axe"]
OWN_FILES = sorted(
    path
    for path in STATIC.rglob("*")
    if path.is_file() and path.suffix in (".js", ".css") and "vendor" not in path.parts
)
MAX_MODULE_LINES = 250
# of everything that the page loads at first, compressed
MAX_TRANSFERRED_BYTES = 150_000


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.name)
def test_vendored_files_are_what_their_list_says(folder: Path) -> None:
    """Each file stands in the list with its checksum, and each licence is there."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", text, flags=re.M))
    code = {path.name: path for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in code.items()
    } == listed
    licences = set(re.findall(r"`([\w.]*LICENSE\.txt)`", text))
    assert licences == {path.name for path in folder.glob("*LICENSE.txt")}
    assert licences


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_own_modules_are_small_and_ask_no_other_server(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < MAX_MODULE_LINES
    assert not re.search(r"https?://|url\(|@import", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet", text
    )


@pytest.mark.parametrize(
    "path", [path for path in OWN_FILES if path.suffix == ".js"], ids=lambda path: path.name
)
def test_every_import_is_a_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r'^(?:import|export|\}) .*?from "([^"]+)";$', text, flags=re.M)
    wanted = [(path.parent / name).resolve() for name in named]
    made = STATIC / "reasons.js"  # no file: it is made of the vocabulary
    assert [file for file in wanted if not file.is_file() and file != made.resolve()] == []
    assert text.count(' from "') == len(named)


def test_each_change_by_a_person_has_its_own_words() -> None:
    """Otherwise the page says of a note that was withdrawn that "a person changed the memory"."""
    text = (STATIC / "feed.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"^const ACTIONS = \{\n(.*?)^\};$", text, flags=re.M | re.S)
    words = dict(re.findall(r'^  "?([a-z-]+)"?: "([^"]+)",$', table, flags=re.M))
    assert sorted(words) == sorted(get_args(EditAction))
    assert len(words) == table.count("\n") == len(set(words.values()))


def test_the_page_names_its_files_by_the_version() -> None:
    """Every file that the page names is served, and nothing but files of this version."""
    found = load_site()
    page = found.page.plain.decode()
    named = re.findall(r'(?:href|src)="([^"]+)"', page)
    folder = f"assets/{found.version}/"
    assert named
    assert [name for name in named if not name.startswith(folder)] == []
    assert {name.removeprefix(folder) for name in named} <= set(found.assets)
    assert "{" not in page


def test_the_page_loads_every_module_at_once() -> None:
    """Otherwise a browser finds a module only when it has read the one that imports it."""
    page = load_site().page.plain.decode()
    named = re.findall(r'rel="modulepreload" href="assets/\w+/([^"]+)"', page)
    assert set(named) == {
        path.relative_to(STATIC).as_posix() for path in OWN_FILES if path.suffix == ".js"
    } | {"reasons.js"}


def test_another_file_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that keeps files forever gets the new ones under another name, whatever changed:
    a byte, a name, or where one file ends and the next begins."""

    def load_version(contents: dict[str, str]) -> str:
        folder = tmp_path / hashlib.sha256(repr(contents).encode()).hexdigest()
        (folder / "static").mkdir(parents=True)
        for name, text in {"index.html": "", **contents}.items():
            (folder / "static" / name).write_text(text, encoding="utf-8")
        monkeypatch.setattr(pages, "files", lambda _package: folder)
        load_site.cache_clear()
        return load_site().version

    try:
        versions = [
            load_version({"a.js": "1", "b.js": "2"}),
            load_version({"a.js": "1", "b.js": "3"}),
            load_version({"a.js": "12", "b.js": ""}),
            load_version({"a.js": "1", "c.js": "2"}),
        ]
    finally:
        load_site.cache_clear()
    assert len(set(versions)) == len(versions)


def test_what_is_compressed_is_what_is_plain() -> None:
    found = load_site()
    for asset in (found.page, *found.assets.values()):
        assert gzip.decompress(asset.gzipped) == asset.plain


def test_all_files_together_are_small() -> None:
    found = load_site()
    sizes = [len(asset.gzipped) for asset in (found.page, *found.assets.values())]
    assert sum(sizes) < MAX_TRANSFERRED_BYTES
