"""Read the dashboard's files, and name their folder after what they hold."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_CONTENT_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_PAGE_NAME = "index.html"
# stand in the page for the folder of its files, and for links that load every module at once: the
# browser else finds out about a module only when it has read the one that imports it
_FOLDER_PLACEHOLDER = "{assets}"
_PRELOADS_PLACEHOLDER = "{preloads}"
_VENDOR_FOLDER = "vendor/"
_VERSION_CHARS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent, plain and compressed."""

    content_type: bytes
    plain: bytes
    gzipped: bytes


@dataclass(frozen=True, slots=True)
class Site:
    """The page, and its files by their paths below the folder of this version."""

    version: str  # a hash of every file: another file makes another version
    page: Asset
    assets: Mapping[str, Asset]


@cache
def load_site() -> Site:
    """Read and compress all files. It takes some 20 ms, so it waits for the first visitor."""
    contents = dict(_read_folder(files("om_proxy.management.dashboard") / "static", ""))
    digest = hashlib.sha256()
    for path, content in sorted(contents.items()):
        digest.update(b"%d %s %d\n" % (len(path), path.encode(), len(content)))
        digest.update(content)
    version = digest.hexdigest()[:_VERSION_CHARS]
    page = contents.pop(_PAGE_NAME).decode()
    page = page.replace(_PRELOADS_PLACEHOLDER, _link_modules(contents))
    page = page.replace(_FOLDER_PLACEHOLDER, f"assets/{version}")
    return Site(
        version,
        _make_asset(_PAGE_NAME, page.encode()),
        {path: _make_asset(path, content) for path, content in contents.items()},
    )


def _link_modules(paths: Iterable[str]) -> str:
    own = sorted(
        path for path in paths if path.endswith(".js") and not path.startswith(_VENDOR_FOLDER)
    )
    return "\n".join(
        f'<link rel="modulepreload" href="{_FOLDER_PLACEHOLDER}/{path}">' for path in own
    )


def _read_folder(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    """Read the files that are sent; licences and checksums stay in the wheel."""
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read_folder(entry, f"{prefix}{entry.name}/")
        elif _find_suffix(entry.name) in _CONTENT_TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _find_suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _make_asset(path: str, content: bytes) -> Asset:
    gzipped = gzip.compress(content, mtime=0)
    return Asset(_CONTENT_TYPES[_find_suffix(path)], content, gzipped)
