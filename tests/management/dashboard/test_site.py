"""The dashboard's files: what is vendored, what is our own, and what their folder is named after."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest

from om_proxy.management.dashboard import site
from om_proxy.management.dashboard.site import load_site
from om_proxy.memory.events.parts import EditAction

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
    assert [name for name in named if not (path.parent / name).resolve().is_file()] == []
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
    }


def test_another_file_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that keeps files forever gets the new ones under another name, whatever changed:
    a byte, a name, or where one file ends and the next begins."""

    def load_version(contents: dict[str, str]) -> str:
        folder = tmp_path / hashlib.sha256(repr(contents).encode()).hexdigest()
        (folder / "static").mkdir(parents=True)
        for name, text in {"index.html": "", **contents}.items():
            (folder / "static" / name).write_text(text, encoding="utf-8")
        monkeypatch.setattr(site, "files", lambda _package: folder)
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
