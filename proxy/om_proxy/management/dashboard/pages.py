"""Serve the dashboard's page and its files; open and end its session, by the link that the server
printed.

The files hold nothing about any thread, so everybody may read them; the API below `/om/v1` asks for a
credential. The policy lets the page run its own files, ask its own server, and nothing else: the
browser itself refuses markup that is made of text.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadMethod, NotFound, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.vocabulary import REASON_ROWS, REFUSED_ROW
from om_proxy.management.api.access import (
    is_sign_in_open,
    read_host,
    require_open_api,
    require_same_site,
)
from om_proxy.management.api.sign_in import SESSION_HEADER, SESSION_LIFE_S, SignIn, name_cookie
from om_proxy.settings.identity.client_names import list_client_pages
from om_proxy.wire.server import responses
from om_proxy.wire.server.disconnect import read_body
from om_proxy.wire.server.headers import Header, find_header

PAGE_PATH = b"/om/"
ASSETS_PATH = b"/om/assets/"
_PATH_WITHOUT_SLASH = b"/om"
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_SAFETY_HEADERS: list[Header] = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
# the folder's name changes with any file, so a file never does
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK_AGAIN = (b"cache-control", b"no-cache")


def is_dashboard_path(raw_path: bytes) -> bool:
    """Return whether a path of the proxy's own below `/om` is the dashboard's."""
    return raw_path in (PAGE_PATH, _PATH_WITHOUT_SLASH) or raw_path.startswith(ASSETS_PATH)


async def send_dashboard(scope: Scope, send: Send, config: EdgeConfig) -> None:
    """Send the page or one of its files. Raise NotFound, also where the API is switched off."""
    require_open_api(config)
    if scope["method"] not in ("GET", "HEAD"):
        await responses.send_error(send, BadMethod(), [(b"allow", b"GET, HEAD")])
        return
    path: bytes = scope["raw_path"]
    if path == _PATH_WITHOUT_SLASH:
        await _send(send, 308, [(b"location", b"om/")])
        return
    site = await asyncio.to_thread(load_site)
    if path != PAGE_PATH:
        await _send_asset(scope, send, _find_asset(site, path), [_FOREVER])
        return
    etag = b'"%s"' % site.version.encode()
    headers = [_ASK_AGAIN, (b"etag", etag)]
    if find_header(scope["headers"], b"if-none-match") in (etag, b"W/" + etag):
        await _send(send, 304, headers)
    else:
        await _send_asset(scope, send, site.page, headers)


def _find_asset(site: Site, path: bytes) -> Asset:
    version, _, name = path.removeprefix(ASSETS_PATH).decode("latin-1").partition("/")
    asset = site.assets.get(name)
    if version != site.version or asset is None:
        raise NotFound("the dashboard has no such file; load its page again")
    return asset


async def _send_asset(scope: Scope, send: Send, asset: Asset, headers: list[Header]) -> None:
    is_gzip_accepted = b"gzip" in (find_header(scope["headers"], b"accept-encoding") or b"")
    body = asset.gzipped if is_gzip_accepted else asset.plain
    encoding = [(b"content-encoding", b"gzip")] if is_gzip_accepted else []
    about = [(b"content-type", asset.content_type), (b"vary", b"Accept-Encoding"), *encoding]
    await _send(send, 200, [*about, *headers], body)


async def _send(send: Send, status: int, headers: list[Header], body: bytes = b"") -> None:
    length = [] if status == 304 else [(b"content-length", b"%d" % len(body))]
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*length, *headers, *_SAFETY_HEADERS]})
    await send({"type": "http.response.body", "body": body})


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
    contents["reasons.js"] = _write_reasons()
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


def _write_reasons() -> bytes:
    """Return the module with the words of each reason, [meaning, advice, page], and the page of each
    client."""
    words = {
        name: (row.meaning, row.advice, row.page)
        for row in (*REASON_ROWS, REFUSED_ROW)
        for name in row.names
    }
    return b"export const REASONS = %b;\nexport const CLIENT_PAGES = %b;\n" % (
        msgspec.json.encode(words),
        msgspec.json.encode(list_client_pages()),
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


SESSION_PATH = b"/om/session"
MAX_TOKEN_BYTES = 200
_COOKIE_ATTRIBUTES = b"Path=/om; HttpOnly; SameSite=Strict"


async def send_session(
    scope: Scope, receive: Receive, send: Send, config: EdgeConfig, sign_in: SignIn | None
) -> None:
    """Open a session for the token in the body (POST), or end it (DELETE). Raise the errors of
    access, and ClientDisconnected."""
    require_open_api(config)
    require_same_site(scope, config)
    if sign_in is None or not is_sign_in_open(scope, config):
        raise NotFound("this server signs nobody in by a link")
    value, life_s = b"", 0
    match scope["method"]:
        case "POST":
            if not sign_in.take_link(await read_body(receive, MAX_TOKEN_BYTES)):
                raise Unauthorized(
                    "this link was used already, or is too old: om-proxy prints another at its "
                    "next start"
                )
            value, life_s = sign_in.open_session(), SESSION_LIFE_S
        case "DELETE":
            pass
        case _:
            raise BadMethod()
    pair = name_cookie(read_host(scope)) + b"=" + value
    cookie = b"%s; Max-Age=%d; %s" % (pair, life_s, _COOKIE_ATTRIBUTES)
    headers = [(b"set-cookie", cookie)]
    if value:
        headers.append((SESSION_HEADER, sign_in.make_page_half(value)))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
