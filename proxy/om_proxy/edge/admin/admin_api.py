"""The admin API under `/om/v1`: JSON about threads, and what people change about them
(docs/spec/http.md#admin-api).

The admin token names a tenant with `tenant=` (access.py). An unknown thread and another caller's
thread look the same. Every change needs a JSON body or the method DELETE, so a browser sends a
preflight first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
from starlette.types import Receive, Scope, Send

from om_proxy.edge.admin.access import find_visible_tenant, require_same_site
from om_proxy.edge.admin.descriptions import (
    build_forget_receipt,
    describe_status,
    describe_thread,
)
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.errors import BadRequest, NotFound, OmError
from om_proxy.identity.naming import normalize_name
from om_proxy.memory.model import Key
from om_proxy.server import responses
from om_proxy.server.headers import find_header
from om_proxy.server.request_body import ClientDisconnected, read_body
from om_proxy.thread_admin import ThreadAdmin

MAX_ADMIN_BODY_BYTES = 64 * 2**10
DEFAULT_THREADS_LISTED, MAX_THREADS_LISTED = 100, 1_000
THREADS_PATH_SEGMENTS = ["", "om", "v1", "threads"]


class AdminApi:
    """`GET /threads`; `GET`, `PATCH`, `DELETE /threads/{thread}`; `PATCH …/settings`; `POST
    …/undo`. A thread's name is percent-encoded."""

    def __init__(
        self, thread_admin: ThreadAdmin, secret: bytes, clock: Callable[[], float] = time.time
    ) -> None:
        self._thread_admin = thread_admin
        self._secret = secret
        self._clock = clock

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, config: EdgeConfig
    ) -> None:
        try:
            status, body = 200, await self._answer_request(scope, receive, config)
        except OmError as exc:
            await responses.send_error(send, exc)
        except ClientDisconnected:
            return
        else:
            await responses.send_json(send, status, body)

    async def _answer_request(self, scope: Scope, receive: Receive, config: EdgeConfig) -> object:
        require_same_site(scope, config)
        path = [unquote(part) for part in scope["raw_path"].decode("latin-1").split("/")]
        if path[:4] != THREADS_PATH_SEGMENTS or len(path) > 6:
            raise NotFound("there is no such page; the admin API is at /om/v1/threads")
        query = _parse_query(scope)
        tenant = find_visible_tenant(scope, config, query, self._secret)
        if len(path) == 4:
            _require_method(scope, "GET")
            return await self._list_threads(tenant, query)
        if tenant is None:
            raise BadRequest(
                "with the admin token, say whose thread: "
                "add ?tenant=… as the list of threads shows it"
            )
        thread = _normalize_stored_name(path[4])
        key = Key(tenant, _normalize_stored_name(query.get("resource", "")) or thread, thread)
        return await self._answer_for_thread(scope, receive, key, path[5] if len(path) == 6 else "")

    async def _list_threads(self, tenant: str | None, query: Mapping[str, str]) -> object:
        limit = query.get("limit", str(DEFAULT_THREADS_LISTED))
        if not re.fullmatch(r"[0-9]{1,4}", limit) or not 0 < int(limit) <= MAX_THREADS_LISTED:
            raise BadRequest(
                f"limit must be a number from 1 to {MAX_THREADS_LISTED}", param="limit"
            )
        resource = _normalize_stored_name(query["resource"]) if "resource" in query else None
        found = await self._thread_admin.list_threads(
            tenant, resource, _parse_cursor(query, tenant), int(limit)
        )
        more = len(found) == int(limit)
        last = "\t".join(found[-1].key) if more else None
        return {
            "threads": [describe_thread(info, self._secret) for info in found],
            "cursor": last,
        }

    async def _answer_for_thread(
        self, scope: Scope, receive: Receive, key: Key, what: str
    ) -> object:
        match scope["method"], what:
            case "GET", "":
                memory = await self._thread_admin.load_memory(key)
            case "PATCH", "":
                memory = await self._thread_admin.set_title(
                    key, _parse_title(await _read_json_object(scope, receive))
                )
            case "DELETE", "":
                forgotten = await self._thread_admin.forget(key)
                return build_forget_receipt(key, forgotten, self._clock(), self._secret)
            case "PATCH", "settings":
                memory = await self._thread_admin.set_thresholds(
                    key, await _read_json_object(scope, receive)
                )
            case "POST", "undo":
                await _read_json_object(scope, receive)
                memory = await self._thread_admin.undo_reflection(key)
            case _, "" | "settings" | "undo":
                raise BadRequest("not with this method", "om_bad_method")
            case _:
                raise NotFound("there is no such page")
        limits = self._thread_admin.effective_settings(memory).limits
        return describe_status(memory, limits, self._secret)


def _normalize_stored_name(name: str) -> str:
    """Normalize a name. An invalid name is looked up unchanged, and is not found."""
    return normalize_name(name) or name


def _require_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise BadRequest("not with this method", "om_bad_method")


def _parse_query(scope: Scope) -> dict[str, str]:
    """Return the query's values by name; the last value of a repeated name counts."""
    return {
        name: values[-1]
        for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()
    }


def _parse_cursor(query: Mapping[str, str], tenant: str | None) -> Key | None:
    parts = query.get("cursor", "").split("\t")
    if parts == [""]:
        return None
    if len(parts) != 3 or tenant not in (None, parts[0]):
        raise BadRequest("cursor is none that a list gave", param="cursor")
    return Key(*parts)


async def _read_json_object(scope: Scope, receive: Receive) -> dict[str, Any]:
    """Read the body, a JSON object. `Content-Type` must say so: then a browser sends a preflight
    before it posts from another site."""
    kind = (
        (find_header(scope["headers"], b"content-type") or b"").partition(b";")[0].strip().lower()
    )
    if kind != b"application/json":
        raise BadRequest(
            "send a JSON object with Content-Type: application/json", param="Content-Type"
        )
    try:
        found = orjson.loads(await read_body(receive, MAX_ADMIN_BODY_BYTES) or b"{}")
    except orjson.JSONDecodeError as exc:
        raise BadRequest("the body is no JSON") from exc
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


def _parse_title(body: Mapping[str, Any]) -> str | None:
    title = body.get("title", "")
    if set(body) != {"title"} or not (title is None or isinstance(title, str)):
        raise BadRequest(
            'send {"title": "…"} to pin a title, {"title": null} to leave titles to the observer',
            param="title",
        )
    return title
