"""Serve the admin API under `/om/v1`: JSON about threads, and what people change about them
(docs/spec/http.md#admin-api).

The admin token names a tenant with `tenant=` (access.py). An unknown thread and another caller's
thread look the same. Every change needs a JSON body or the method DELETE, so a browser sends a
preflight before it asks from another site.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from om_proxy.edge.admin.access import find_visible_tenant, require_same_site
from om_proxy.edge.admin.handlers import AdminHandlers, normalize_stored_name
from om_proxy.edge.admin.openapi import build_openapi
from om_proxy.edge.admin.requests import (
    MAX_ADMIN_BODY_BYTES,
    AdminCall,
    ChatRequest,
    parse_body,
    parse_etag,
    parse_query,
    read_tenant,
)
from om_proxy.edge.admin.route_table import (
    ADMIN_ROOT,
    ADMIN_ROUTES,
    OPENAPI_PATH,
    AdminRoute,
)
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.errors import BadMethod, BadRequest, NotFound, OmError
from om_proxy.memory.model import Key
from om_proxy.server import responses
from om_proxy.server.headers import Header
from om_proxy.server.request_body import ClientDisconnected, read_body
from om_proxy.thread_admin import ThreadAdmin
from om_proxy.thread_reader import ThreadReader
from om_proxy.turns.preview import ContextPreviewer

_CONFIG_KEY = "om.edge_config"  # in a request's scope, on its way through the router


class AdminApi:
    """The routes of `ADMIN_ROUTES`, served after the checks of access."""

    def __init__(
        self,
        thread_admin: ThreadAdmin,
        thread_reader: ThreadReader,
        previewer: ContextPreviewer,
        secret: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._handlers = AdminHandlers(thread_admin, thread_reader, previewer, secret, clock)
        self._secret = secret
        routes: defaultdict[str, dict[str, AdminRoute]] = defaultdict(dict)
        for route in ADMIN_ROUTES:
            routes[route.path][route.method] = route
        self._router = Router(
            [
                *(self._serve_path(path, by_method) for path, by_method in routes.items()),
                Route(ADMIN_ROOT + OPENAPI_PATH, _OpenApiPage(), methods=["GET"]),
            ],
            redirect_slashes=False,
            default=_refuse_path,
        )

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, config: EdgeConfig
    ) -> None:
        # names are decoded after routing: `%2F` in a name is not a separator of the path
        path = scope["raw_path"].decode("latin-1")
        routed = {**scope, "path": path, "root_path": "", "app": self, _CONFIG_KEY: config}
        try:
            require_same_site(scope, config)
            await self._router(routed, receive, send)
        except HTTPException as exc:  # the router's 405
            await responses.send_error(send, BadMethod(), _encode_headers(exc.headers))
        except OmError as exc:
            await responses.send_error(send, exc)
        except ClientDisconnected:
            return

    def _serve_path(self, path: str, by_method: Mapping[str, AdminRoute]) -> Route:
        return Route(ADMIN_ROOT + path, _Endpoint(by_method, self._answer), methods=list(by_method))

    async def _answer(self, route: AdminRoute, scope: Scope, receive: Receive, send: Send) -> None:
        config: EdgeConfig = scope[_CONFIG_KEY]
        headers = scope["headers"]
        # access first: who may not ask is told nothing about the query
        named = read_tenant(scope["query_string"])
        tenant = find_visible_tenant(scope, config, named, self._secret)
        query = parse_query(route.query, scope["query_string"])
        call = AdminCall(
            tenant=tenant,
            query=query,
            key=_find_key(route, scope, tenant, query),
            entry_id=_find_entry_id(scope),
            body=await _read_body(route, scope, receive),
            expected_version=parse_etag(headers, b"if-match"),
            headers=headers,
            config=config,
        )
        answer = await route.handler(self._handlers, call)
        version: int | None = getattr(answer, "version", None)
        if version is None:
            await _send_answer(send, answer, [])
            return
        etag = (b"etag", b'"%d"' % version)
        if route.method == "GET" and parse_etag(headers, b"if-none-match") == version:
            await _send_not_modified(send, etag)
        else:
            await _send_answer(send, answer, [etag])


class _Endpoint:
    """One path as an ASGI app; its methods share it, so the router's 405 can name them all."""

    def __init__(self, by_method: Mapping[str, AdminRoute], answer: Callable[..., Any]) -> None:
        self._by_method = by_method
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._answer(self._by_method[method], scope, receive, send)


class _OpenApiPage:
    """The OpenAPI document. It holds nothing about any thread, so everybody may read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await responses.send_json(send, 200, build_openapi())


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound(f"there is no such page; {ADMIN_ROOT}{OPENAPI_PATH} lists those there are")


def _find_key(route: AdminRoute, scope: Scope, tenant: str | None, query: Struct) -> Key | None:
    """Return the thread that the path names; None on a route about no single thread."""
    if not route.names_thread:
        return None
    if tenant is None:
        raise BadRequest(
            "with the admin token, say whose thread: add ?tenant=… as the list of threads shows it",
            param="tenant",
        )
    thread = normalize_stored_name(unquote(scope["path_params"]["thread"]))
    resource: str | None = getattr(query, "resource", None)
    return Key(tenant, normalize_stored_name(resource or "") or thread, thread)


def _find_entry_id(scope: Scope) -> int | None:
    """Return the number that the path names; None if it names none. Raise NotFound for another
    word."""
    word: str | None = scope["path_params"].get("id")
    if word is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", word):
        raise NotFound("an entry's id is a number")
    return int(word)


async def _read_body(route: AdminRoute, scope: Scope, receive: Receive) -> Any:
    if route.body is None:
        return None
    config: EdgeConfig = scope[_CONFIG_KEY]
    is_chat = route.body is ChatRequest
    max_bytes = config.settings.limits.body if is_chat else MAX_ADMIN_BODY_BYTES
    body = await read_body(receive, max_bytes)
    return parse_body(route.body, body, scope["headers"])


async def _send_answer(send: Send, answer: Struct, headers: list[Header]) -> None:
    await responses.send_content(send, 200, msgspec.json.encode(answer), headers)


async def _send_not_modified(send: Send, etag: Header) -> None:
    await send({"type": "http.response.start", "status": 304, "headers": [etag]})
    await send({"type": "http.response.body", "body": b""})


def _encode_headers(headers: Mapping[str, str] | None) -> list[Header]:
    return [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
