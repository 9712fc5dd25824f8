"""Serve the dashboard's page and its files.

They hold nothing about any thread, so everybody may read them; the API below `/om/v1` asks for a
credential. The policy lets the page run its own files, ask its own server, and nothing else: the
browser itself refuses markup that is made of text.
"""

from __future__ import annotations

import asyncio

from starlette.types import Scope, Send

from om_proxy.common.errors import BadMethod, NotFound
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import require_open_api
from om_proxy.management.dashboard.site import Asset, Site, load_site
from om_proxy.wire.server import responses
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
