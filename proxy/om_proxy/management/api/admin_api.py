"""Serve the admin API under `/om/v1`: JSON about threads, and what people change about them
(docs/contributing/http.md#admin-api).

The admin token names a tenant with `tenant=` (access.py). An unknown thread and another caller's
thread look the same. Every change needs a JSON body or the method DELETE, so a browser sends a
preflight before it asks from another site.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send
from xxhash import xxh3_64_hexdigest

from om_proxy.common.errors import BadMethod, BadRequest, NotFound, OmError, TooLarge
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import admit_visitor, require_open_api, require_same_site
from om_proxy.management.api.admin_call import AdminCall, AdminServices, AnyCall
from om_proxy.management.api.answers import StreamedAnswer, hide_text, send_streamed
from om_proxy.management.api.openapi import build_openapi
from om_proxy.management.api.requests import (
    MAX_ADMIN_BODY_BYTES,
    find_entry_id,
    find_key,
    is_large_body,
    parse_body,
    parse_query,
    read_tenant,
)
from om_proxy.management.api.route import ADMIN_ROOT, OPENAPI_PATH, AdminRoute, answer_route
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.work_queues import WorkQueues
from om_proxy.wire.server.disconnect import ClientDisconnected, read_body
from om_proxy.wire.server.headers import Header, find_header

_CONFIG_KEY = "om.edge_config"  # in a request's scope, on its way through the router


class AdminApi:
    """The routes of `ADMIN_ROUTES`, served after the checks of access. Each request waits for a
    slot of its route's kind of work."""

    def __init__(self, services: AdminServices, queues: WorkQueues) -> None:
        self._services = services
        self._queues = queues
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
            require_open_api(config)
            require_same_site(scope, config)
            await self._router(routed, receive, send)
        except HTTPException as exc:  # the router's 405
            await responses.send_error(send, BadMethod(), _encode_headers(exc.headers))
        except OmError as exc:
            self._services.facts.emit_refusal(exc)
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
        services = self._services
        visitor = admit_visitor(
            scope, config, named, services.secret, services.clock(), services.sign_in
        )
        if route.is_text:
            visitor.require_text()
        query = parse_query(route.query, scope["query_string"])
        names: Mapping[str, str] = scope["path_params"]
        key = find_key(names, visitor.tenant, query)
        call: AnyCall = AdminCall(
            services=services,
            visitor=visitor,
            query=visitor.confine(key, query, is_for_one_resource=route.is_for_one_resource),
            key=key,
            path_names={name: unquote(word) for name, word in names.items()},
            entry_id=find_entry_id(names),
            body=await _read_body(route, scope, receive),
            expected_version=parse_expected_version(headers),
            headers=headers,
            wants_body=scope["method"] != "HEAD",
            config=config,
        )
        if call.expected_version is not None and route.changes_memory and not route.names_thread:
            raise BadRequest("only a thread has a version", param="if-match")
        share = await services.known_tenants.find_share(
            visitor.tenant, config, is_admin=visitor.is_admin
        )
        with await self._queues.take(route.work, share, scope):
            answer = await answer_route(route, call)
            if not isinstance(answer, StreamedAnswer):
                await _send_answer(answer, route, call, send)
                return
        async with aclosing(answer.pieces):
            with await self._queues.take(answer.work, share, scope):
                await send_streamed(answer, scope, receive, send)


async def _send_answer(answer: Struct, route: AdminRoute, call: AnyCall, send: Send) -> None:
    status = 202 if route.may_go_on and not getattr(answer, "is_done", True) else 200
    if not call.visitor.may_read_text:
        answer = hide_text(answer)
    content = msgspec.json.encode(answer)
    version: int | None = getattr(answer, "version", None)
    if version is None:
        await responses.send_content(send, status, content)
        return
    tag = write_entity_tag(version, content)
    if route.method == "GET" and is_known_to_client(call.headers, tag):
        await _send_not_modified(send, (b"etag", tag))
    else:
        await responses.send_content(send, status, content, [(b"etag", tag)])


@dataclass(frozen=True, slots=True, eq=False)
class _Endpoint:
    """One path as an ASGI app; its methods share it, so the router's 405 can name them all."""

    by_method: Mapping[str, AdminRoute]
    answer: Callable[..., Any]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self.answer(self.by_method[method], scope, receive, send)


class _OpenApiPage:
    """The OpenAPI document. It holds nothing about any thread, so everybody may read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await responses.send_json(send, 200, build_openapi())


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound(f"there is no such page; {ADMIN_ROOT}{OPENAPI_PATH} lists those there are")


async def _read_body(route: AdminRoute, scope: Scope, receive: Receive) -> Any:
    if route.body is None:
        return None
    config: EdgeConfig = scope[_CONFIG_KEY]
    is_large = is_large_body(route.body)
    max_bytes = config.settings.limits.body if is_large else MAX_ADMIN_BODY_BYTES
    try:
        body = await read_body(receive, max_bytes)
    except TooLarge as exc:
        if is_large:
            raise
        raise TooLarge(f"a body has at most {MAX_ADMIN_BODY_BYTES} bytes here; send less") from exc
    return parse_body(route.body, body, scope["headers"])


async def _send_not_modified(send: Send, etag: Header) -> None:
    await send({"type": "http.response.start", "status": 304, "headers": [etag]})
    await send({"type": "http.response.body", "body": b""})


def _encode_headers(headers: Mapping[str, str] | None) -> list[Header]:
    return [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]


# Write and compare entity tags (RFC 9110, section 8.8.3).
#
# A tag holds the version of the thread, which a change compares, and a digest of the answer. The same
# version has other answers after a change of the settings, and to callers who may read no text.


_TAG_PATTERN = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_VERSION_PATTERN = re.compile(rb'(?:W/)?"(-?[0-9]{1,18})(?:-[0-9a-f]{1,32})?"')


def write_entity_tag(version: int, content: bytes) -> bytes:
    """Return the tag of an answer with this content."""
    return b'"%d-%s"' % (version, xxh3_64_hexdigest(content).encode())


def is_known_to_client(headers: Sequence[Header], tag: bytes) -> bool:
    """Return whether `If-None-Match` names the tag: as the only one, in a list, or with `*`. Weak
    tags count, because servers in between make tags weak (RFC 9110, section 13.1.2)."""
    return any(known in (b"*", tag) for known in _iterate_known_tags(headers))


def _iterate_known_tags(headers: Sequence[Header]) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"if-none-match":
            yield value.strip()  # `*`
            yield from _TAG_PATTERN.findall(value)


def parse_expected_version(headers: Sequence[Header]) -> int | None:
    """Return the version that `If-Match` names; None without the header, or for `*`. The digest does
    not count: a change of the settings is no change of the thread. Raise BadRequest for another
    tag."""
    value = find_header(headers, b"if-match")
    if value is None or value.strip() == b"*":
        return None
    number = _VERSION_PATTERN.fullmatch(value.strip())
    if number is None:
        raise BadRequest(
            "send the ETag of an earlier answer, with its quotes; one alone", param="if-match"
        )
    return int(number[1])
