"""Relay a request of any other route unchanged: any method, path, query and body, both ways.

If it names a thread, or a coding agent's session, it is reported: with a receipt, a log line, and one
warning for its client and route. Otherwise a user of embeddings, or of an API that `identity.apis`
leaves out, never learns why nothing is remembered (docs/contributing/http.md#receipt). What clients
ask beside their requests with memory, such as how many tokens a prompt has, warns of nothing, nor
does a WebSocket in place of a post. A caller that invents a credential for each request counts as a
new client each time, so the number of warnings in a minute is limited.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from starlette.types import Message, Receive, Scope, Send

from om_proxy.common.apis import ApiName
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import BadRequest, HttpInstead, OmError
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.exchange import build_base_receipt
from om_proxy.edge.relay import relay
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts, UnreachedTurnEnded
from om_proxy.observability.logs import WarningLimit, get_thread_label
from om_proxy.settings.config import UpstreamSettings
from om_proxy.settings.identity.callers import Caller, identify_off_route
from om_proxy.settings.identity.client_names import name_client
from om_proxy.wire.server import responses
from om_proxy.wire.server.disconnect import (
    ClientDisconnected,
    DisconnectWatch,
    get_disconnect_future,
    run_unless_disconnected,
)
from om_proxy.wire.server.headers import Header, find_header
from om_proxy.wire.upstream import Upstream, join_url

# Path parts that could lead out of the upstream's base path, there or at a proxy in between: an
# empty or dot segment (also with parameters: Java servers read `..;a` as `..`), an encoded
# separator or end of string, and bytes that no address may contain.
_UNSAFE_PATH = re.compile(
    rb"//|/(?:\.|%2e){1,2}(?:[/;]|%3b|\Z)|%2f|%5c|\\|%00|[^\x21-\x7e]|[?#]", re.IGNORECASE
)

logger = structlog.get_logger("turn")

# pairs of client and route; above it, the pair that came longest ago may get another warning
MAX_WARNED_CLIENTS = 1_024
MAX_WARNINGS_A_MINUTE = 20  # per process; the next warning logged says how many were left out
ROUTE_ADVICE = "this route has no memory; have the client post to {paths} (docs/clients)"
TURN_ROUTES: Mapping[ApiName, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
# of these APIs' own clients, about a conversation that has memory all the same
HELPER_ROUTES = frozenset(
    ("/v1/responses/compact", "/v1/responses/input_tokens", "/v1/messages/count_tokens")
)
# in which coding agents name their sessions, which are no threads of ours
AGENT_SESSION_HEADERS = (b"x-claude-code-session-id", b"session_id", b"session-id")
# only these words are logged: a path may end in an id
KNOWN_ROUTES = frozenset(
    (
        *("responses", "messages", "chat", "completions", "embeddings", "models", "files"),
        *("uploads", "batches", "audio", "images", "moderations", "assistants", "threads"),
        *("vector_stores", "conversations", "realtime", "rerank"),
    )
)  # fmt: skip


class RequestEnd(NamedTuple):
    """The end of a relayed request, in the words of the `turn` event."""

    status: int
    end: str


CLIENT_LEFT: RequestEnd = RequestEnd(499, "disconnected")  # nginx's number for it


async def relay_unchanged(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    upstream: Upstream,
    settings: UpstreamSettings,
    headers: Sequence[Header],
    body: bytes | None = None,
    receipt: Sequence[Header] = (),
    api: ApiName = "chat",
) -> RequestEnd:
    """Relay one request. `body` is the body if it was read already; None streams it unbuffered.

    `headers` are the headers to send upstream (EdgeConfig.select_upstream_headers). `receive` may
    refuse the request: then it raises an OmError instead of its first message.
    """
    try:
        url = join_url(settings.base_url, check_path(scope["raw_path"]), scope["query_string"])
        first: Message = await receive() if body is None else {"type": "http.request", "body": body}
    except OmError as exc:
        return await send_refusal(send, exc, receipt, api)
    if first["type"] == "http.disconnect":
        return CLIENT_LEFT

    async def relay_content(
        content: bytes | _Upload, disconnected: asyncio.Future[None] | None
    ) -> RequestEnd:
        if settings.on_disconnect == "drain":
            disconnected = None
        sending = upstream.send(
            scope["method"],
            url,
            headers,
            content,
            connect_timeout_s=settings.connect_timeout,
            read_timeout_s=settings.read_timeout,
            path_in_settings=settings.path_in_settings,
        )
        try:
            answer = await run_unless_disconnected(disconnected, sending)
        except OmError as exc:
            return await send_refusal(send, exc, receipt, api)
        if answer is None:
            return CLIENT_LEFT
        relayed = await relay(answer, send, receipt=receipt, disconnected=disconnected)
        return RequestEnd(answer.status, relayed.outcome)

    if first.get("more_body"):
        length = find_header(scope["headers"], b"content-length")
        headers = [*headers, (b"content-length", length)] if length is not None else headers
        async with _Upload(first, receive, get_disconnect_future(scope)) as upload:
            return await relay_content(upload, upload.disconnected)
    else:
        async with DisconnectWatch(scope, receive) as disconnected:
            return await relay_content(first.get("body", b""), disconnected)


async def send_refusal(
    send: Send, exc: OmError, receipt: Sequence[Header], api: ApiName
) -> RequestEnd:
    await responses.send_error(send, exc, receipt, api)
    return RequestEnd(exc.status, exc.code)


def check_path(raw_path: bytes) -> str:
    """Return the path as the client wrote it, with its escapes. Raise BadRequest for a path that a
    server may read as another one."""
    if not raw_path.startswith(b"/") or _UNSAFE_PATH.search(raw_path):
        raise BadRequest(
            "this path cannot be relayed; "
            "send it without empty, `..` or encoded separator segments",
            "om_bad_path",
        )
    return raw_path.decode("ascii")


class _Upload:
    """A request body that is streamed upstream; afterwards, the watch for the client's disconnect.

    Both call `receive`, one after the other. While the upstream reads nothing, neither calls it:
    then only the future of the proxy's own server (`server_disconnect`) reports a disconnect.
    """

    def __init__(
        self, first: Message, receive: Receive, server_disconnect: asyncio.Future[None] | None
    ) -> None:
        self._first = first
        self._receive = receive
        self._server_disconnect = server_disconnect
        self._watch: asyncio.Task[None] | None = None
        self.disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> _Upload:
        if self._server_disconnect is not None:
            self._server_disconnect.add_done_callback(self._mark_disconnected)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.disconnected.cancel()
        if self._server_disconnect is not None:
            self._server_disconnect.remove_done_callback(self._mark_disconnected)
        if self._watch is not None:
            self._watch.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message = self._first
        while message["type"] == "http.request":
            if chunk := message.get("body", b""):  # an empty chunk would end a chunked body
                yield chunk
            if not message.get("more_body"):
                self._watch = asyncio.create_task(self._watch_disconnect())
                return
            message = await self._receive()
        self._mark_disconnected()
        # this aborts the request to the upstream: half a body must not look complete
        raise ClientDisconnected

    async def _watch_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._mark_disconnected()

    def _mark_disconnected(self, _: object = None) -> None:
        if not self.disconnected.done():
            self.disconnected.set_result(None)


@dataclass(frozen=True, slots=True)
class Unreached:
    """A request that names a thread on a route without memory."""

    caller: Caller
    route: str
    program: str
    api: ApiName
    advice: str
    started: float = field(default_factory=time.perf_counter)

    @property
    def base_receipt(self) -> list[Header]:
        return build_base_receipt(Status.OFF, Reason.ROUTE, self.caller)


class UnreachedRequests:
    """The log lines of these requests, and one warning for each client and route."""

    def __init__(
        self, secret: bytes, facts: Facts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._secret = secret
        self._facts = facts
        self._clock = clock
        self._limit = WarningLimit(MAX_WARNINGS_A_MINUTE, lambda: self._clock())  # noqa: PLW0108 - the clock may be replaced
        self._warned: BoundedCache[tuple[str, str, str], bool] = BoundedCache(
            max_items=MAX_WARNED_CLIENTS
        )

    def find(self, scope: Scope, config: EdgeConfig, api: ApiName) -> Unreached | None:
        """Return the request as one without memory; None if it names no thread and no session."""
        caller = identify_off_route(scope["headers"], config.identity, self._secret, time.time())
        if caller is None:
            if not any(name in AGENT_SESSION_HEADERS for name, _ in scope["headers"]):
                return None
            caller = Caller(None, None)
        paths = " or ".join(TURN_ROUTES[name] for name in config.settings.identity.apis)
        return Unreached(
            caller,
            _name_route(scope["raw_path"]),
            name_client(scope["headers"]),
            api,
            ROUTE_ADVICE.format(paths=paths),
        )

    def log_request(self, unreached: Unreached, end: RequestEnd) -> None:
        """Log the end of the request, as the routes with memory do."""
        if unreached.route not in HELPER_ROUTES and end.status != HttpInstead.status:
            self._warn_once(unreached)
        self._facts.emit(
            UnreachedTurnEnded(
                unreached.caller.key,
                end.status,
                unreached.route,
                end.end,
                total_ms=(time.perf_counter() - unreached.started) * 1_000,
                api=unreached.api,
                client=unreached.program,
            )
        )

    def _warn_once(self, unreached: Unreached) -> None:
        client = get_thread_label(self._secret, Key(unreached.caller.tenant or "", "", "")) or ""
        pair = (client, unreached.program, unreached.route)
        if self._warned.get(pair):
            return
        left_out = self._limit.take()
        if left_out is None:
            return  # the pair's next request may get the warning
        self._warned.put(pair, True)
        logger.warning(
            "memory.unreached",
            client=client,
            program=unreached.program,
            route=unreached.route,
            advice=unreached.advice,
            **left_out,
        )


def _name_route(raw_path: bytes) -> str:
    """Return the API that a path belongs to, as one of the known words."""
    segments = [part for part in raw_path.decode("latin-1").split("/") if part and part != "v1"]
    whole = "/v1/" + "/".join(segments)
    if whole in HELPER_ROUTES:
        return whole
    return f"/v1/{segments[0]}" if segments and segments[0] in KNOWN_ROUTES else "other"
