"""The admin API under `/om/v1`: JSON about threads, and what people change about them
(docs/spec/http.md#admin-api).

The admin token sees all tenants and names one with `tenant=`; a caller's own credential sees its own. What is unknown and what is
somebody else's look the same. Changing anything takes a JSON body or the method DELETE, about which a browser asks first, and a request
of another site's page is refused: so no page that a user of a loopback server happens to visit can do it.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
from starlette.types import Receive, Scope, Send

from om_proxy.edge import answers
from om_proxy.edge.headers import header
from om_proxy.edge.site import Site
from om_proxy.errors import BadRequest, NotFound, OmError, Unauthorized
from om_proxy.logs import thread_label
from om_proxy.memory import identity
from om_proxy.memory.model import Key, Memory, hub_of
from om_proxy.memory.naming import canonical_name
from om_proxy.steering import Steering
from om_proxy.storage.base import Forgotten, ThreadInfo

LARGEST = 64 * 2**10  # bytes of a body
PAGE, MOST = 100, 1_000  # threads of a list
ROOT = ["", "om", "v1", "threads"]


class AdminApi:
    """`GET /threads`; `GET`, `PATCH`, `DELETE /threads/{thread}`; `PATCH …/settings`; `POST …/undo`. A thread's name is percent-encoded."""

    def __init__(self, steering: Steering, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._steering = steering
        self._secret = secret
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send, site: Site) -> None:
        try:
            status, body = 200, await self._answered(scope, receive, site)
        except OmError as exc:
            await answers.error(send, exc)
        except answers.Disconnected:
            return
        else:
            await answers.as_json(send, status, body)

    async def _answered(self, scope: Scope, receive: Receive, site: Site) -> object:
        same_site(scope, site)
        path = [unquote(part) for part in scope["raw_path"].decode("latin-1").split("/")]
        if path[:4] != ROOT or len(path) > 6:
            raise NotFound("there is no such page; the admin API is at /om/v1/threads")
        query = _query(scope)
        tenant = self._tenant(scope, site, query)
        if len(path) == 4:
            _must_be(scope, "GET")
            return await self._listed(tenant, query)
        if tenant is None:
            raise BadRequest("with the admin token, say whose thread: add ?tenant=… as the list of threads shows it")
        thread = _stored_name(path[4])
        key = Key(tenant, _stored_name(query.get("resource", "")) or thread, thread)
        return await self._of_thread(scope, receive, key, path[5] if len(path) == 6 else "")

    def _tenant(self, scope: Scope, site: Site, query: Mapping[str, str]) -> str | None:
        """Whose threads the caller may see; None: everybody's."""
        sent, known = _admin_token(scope), site.settings.server.admin_token
        if sent is not None:
            if known is None or not hmac.compare_digest(sent, known.get_secret_value().encode()):
                raise Unauthorized("X-OM-Admin is not the admin token (server.admin_token)")
            return query.get("tenant")
        own = identity.tenant(scope["headers"], site.identity, self._secret)
        if own is None or site.identity.token_required:
            raise Unauthorized("send the admin token as X-OM-Admin")  # users of one application share its credential
        return own

    async def _listed(self, tenant: str | None, query: Mapping[str, str]) -> object:
        limit = query.get("limit", str(PAGE))
        if not re.fullmatch(r"[0-9]{1,4}", limit) or not 0 < int(limit) <= MOST:
            raise BadRequest(f"limit must be a number from 1 to {MOST}", param="limit")
        resource = _stored_name(query["resource"]) if "resource" in query else None
        found = await self._steering.threads(tenant, resource, _cursor(query, tenant), int(limit))
        more = len(found) == int(limit)
        last = "\t".join(found[-1].key) if more else None
        return {"threads": [{**self._named(info.key), **_line(info)} for info in found], "cursor": last}

    async def _of_thread(self, scope: Scope, receive: Receive, key: Key, what: str) -> object:
        match scope["method"], what:
            case "GET", "":
                memory = await self._steering.memory(key)
            case "PATCH", "":
                memory = await self._steering.entitle(key, _title(await _object(scope, receive)))
            case "DELETE", "":
                return self._receipt(key, await self._steering.forget(key))
            case "PATCH", "settings":
                memory = await self._steering.set_thresholds(key, await _object(scope, receive))
            case "POST", "undo":
                await _object(scope, receive)
                memory = await self._steering.undo(key)
            case _, "" | "settings" | "undo":
                raise BadRequest("not with this method", "om_bad_method")
            case _:
                raise NotFound("there is no such page")
        return self._status(memory)

    def _named(self, key: Key) -> dict[str, object]:
        """With what the log calls the thread, and what it calls the log that a resource's threads may share."""
        return {
            "tenant": key.tenant,
            "resource": key.resource,
            "thread": key.thread,
            "label": thread_label(self._secret, key),
            "resource_label": thread_label(self._secret, hub_of(key)),
        }

    def _receipt(self, key: Key, forgotten: Forgotten) -> dict[str, object]:
        """What went with a thread, and whether its bytes are gone too. It names the thread by its label only."""
        return {
            "at": self._clock(),
            "scope": "thread",
            "label": thread_label(self._secret, key),
            "forgotten": {
                "threads": forgotten.threads,
                "messages": forgotten.messages,
                "observations": forgotten.observations,
                "generations": forgotten.generations,
                "reflections": forgotten.reflections,
            },
            "bytes": {"database": forgotten.database, "log": forgotten.log, "backups": "not_covered"},
        }

    def _status(self, memory: Memory) -> dict[str, object]:
        limits = self._steering.effective(memory).limits
        return {
            **self._named(memory.key),
            "title": memory.title,
            "title_pinned": memory.title_pinned,
            "scope": memory.scope,
            "generation": memory.generation,
            "messages": {"count": memory.count, "pending_tokens": memory.pending, "threshold": limits.observe_at},
            "observations": {
                "count": len(memory.log),
                "tokens": memory.log_tokens,
                "threshold": limits.reflect_at,
                "reflections": sum(o.kind == "reflection" for o in memory.log),
            },
            "chunks": [{"tokens": o.tokens, "source_tokens": o.source_tokens} for o in memory.chunks],
            "settings": orjson.loads(memory.overrides) if memory.overrides else {},
            "failures": memory.trouble.failures,
            "parked": memory.trouble.parked,
        }


def _admin_token(scope: Scope) -> bytes | None:
    """Raises BadRequest for two: a server before us may have checked the other one."""
    sent = [value for name, value in scope["headers"] if name == b"x-om-admin"]
    if len(sent) > 1:
        raise BadRequest(f"header x-om-admin was sent {len(sent)} times; send it once", "om_bad_header", "x-om-admin")
    return sent[0] if sent else None


def same_site(scope: Scope, site: Site) -> None:
    """Raises Unauthorized for a request that a page of another site has made, and on a loopback bind for one to a name that only
    resolves there (DNS rebinding)."""
    host = (header(scope["headers"], b"host") or b"").decode("latin-1")
    origin = header(scope["headers"], b"origin")
    try:
        foreign = origin is not None and urlsplit(origin.decode("latin-1")).netloc != host
    except ValueError as exc:
        raise Unauthorized("Origin cannot be read") from exc
    if foreign:
        raise Unauthorized("the admin API answers no pages of other sites")
    if site.identity.loopback and not identity.is_loopback(host):
        raise Unauthorized("ask for the admin API by a loopback address or as localhost")


def _stored_name(name: str) -> str:
    """What cannot be a name is looked for as it is, and not found."""
    return canonical_name(name) or name


def _must_be(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise BadRequest("not with this method", "om_bad_method")


def _query(scope: Scope) -> dict[str, str]:
    """Of a name that comes twice, the last."""
    return {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}


def _cursor(query: Mapping[str, str], tenant: str | None) -> Key | None:
    parts = query.get("cursor", "").split("\t")
    if parts == [""]:
        return None
    if len(parts) != 3 or tenant not in (None, parts[0]):
        raise BadRequest("cursor is none that a list gave", param="cursor")
    return Key(*parts)


async def _object(scope: Scope, receive: Receive) -> dict[str, Any]:
    """The body, a JSON object; its type must be said, so that a browser asks before it sends one from another site."""
    kind = (header(scope["headers"], b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise BadRequest("send a JSON object with Content-Type: application/json", param="Content-Type")
    try:
        found = orjson.loads(await answers.read_body(receive, LARGEST) or b"{}")
    except orjson.JSONDecodeError as exc:
        raise BadRequest("the body is no JSON") from exc
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


def _title(body: Mapping[str, Any]) -> str | None:
    title = body.get("title", "")
    if set(body) != {"title"} or not (title is None or isinstance(title, str)):
        raise BadRequest(
            'send {"title": "…"} to pin a title, {"title": null} to leave titles to the observer', param="title"
        )
    return title


def _line(info: ThreadInfo) -> dict[str, object]:
    return {
        "title": info.title,
        "created_at": info.created_at,
        "turn_at": info.turn_at,
        "messages": info.messages,
        "generation": info.generation,
        "failures": info.failures,
        "parked": info.parked,
    }
