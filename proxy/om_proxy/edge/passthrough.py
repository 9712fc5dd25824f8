"""Relay a request of any other route unchanged: any method, path, query and body, both ways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from starlette.types import Message, Receive, Scope, Send

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest, OmError
from om_proxy.edge.replies.relay import relay
from om_proxy.settings.config import UpstreamSettings
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


class RequestEnd(NamedTuple):
    """The end of a relayed request, in the words of the `turn` event."""

    status: int
    end: str


CLIENT_LEFT = RequestEnd(499, "disconnected")  # nginx's number for it


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
