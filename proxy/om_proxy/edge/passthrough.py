"""Every route we have no business with: any method, path, query and body, as it came, both ways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from starlette.types import Message, Receive, Scope, Send

from om_proxy.edge import answers
from om_proxy.edge.disconnect import told, watching, while_there
from om_proxy.edge.headers import Header, header
from om_proxy.edge.tee import relay
from om_proxy.errors import BadRequest, OmError
from om_proxy.settings import UpstreamSettings
from om_proxy.upstream import Upstream, join

# What could lead out of the upstream's base path, there or at a proxy in between: an empty or a dot segment (with parameters too:
# Java servers take `..;a` for `..`), a separator or an end of string in disguise, and bytes that are no part of an address at all.
_UNSAFE = re.compile(rb"//|/(?:\.|%2e){1,2}(?:[/;]|%3b|\Z)|%2f|%5c|\\|%00|[^\x21-\x7e]|[?#]", re.IGNORECASE)


class Passed(NamedTuple):
    """How a relayed request ended, in the words of the `turn` event."""

    status: int
    end: str


CLIENT_LEFT = Passed(499, "disconnected")  # nginx's number for it


async def passthrough(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    upstream: Upstream,
    settings: UpstreamSettings,
    headers: Sequence[Header],
    body: bytes | None = None,
    receipt: Sequence[Header] = (),
) -> Passed:
    """Relay one request. A body that was read already is given as `body`; else it is passed on as it comes, unbuffered.

    `headers` are what travels on of the request's (Site.sent_on). `receive` may refuse the request, by an OmError for its first message.
    """
    try:
        url = join(settings.base_url, checked_path(scope["raw_path"]), scope["query_string"])
        first: Message = await receive() if body is None else {"type": "http.request", "body": body}
    except OmError as exc:
        return await refuse(send, exc, receipt)
    if first["type"] == "http.disconnect":
        return CLIENT_LEFT

    async def exchange(content: bytes | _Upload, gone: asyncio.Future[None]) -> Passed:
        watched = None if settings.on_disconnect == "drain" else gone
        asking = upstream.send(
            scope["method"],
            url,
            headers,
            content,
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            setting=settings.place,
        )
        try:
            answer = await while_there(watched, asking)
        except OmError as exc:
            return await refuse(send, exc, receipt)
        if answer is None:
            return CLIENT_LEFT
        relayed = await relay(answer, send, receipt=receipt, disconnected=watched)
        return Passed(answer.status, relayed.outcome)

    if first.get("more_body"):
        length = header(scope["headers"], b"content-length")
        headers = [*headers, (b"content-length", length)] if length is not None else headers
        async with _Upload(first, receive, told(scope)) as upload:
            return await exchange(upload, upload.gone)
    else:
        async with watching(scope, receive) as gone:
            return await exchange(first.get("body", b""), gone)


async def refuse(send: Send, exc: OmError, receipt: Sequence[Header]) -> Passed:
    await answers.error(send, exc, receipt)
    return Passed(exc.status, exc.code)


def checked_path(raw_path: bytes) -> str:
    """The path as the client wrote it, its escapes untouched. Raises BadRequest for one that may mean another than it says."""
    if not raw_path.startswith(b"/") or _UNSAFE.search(raw_path):
        raise BadRequest(
            "this path cannot be relayed; send it without empty, `..` or encoded separator segments", "om_bad_path"
        )
    return raw_path.decode("ascii")


class _Upload:
    """A request body as it comes; once it has come, the watch for the client's leaving. Both need `receive`, one at a time; while
    the upstream takes no more, nobody is in there, and only our own server's connections tell (`told`)."""

    def __init__(self, first: Message, receive: Receive, told: asyncio.Future[None] | None) -> None:
        self._first = first
        self._receive = receive
        self._told = told
        self._watch: asyncio.Task[None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> _Upload:
        if self._told is not None:
            self._told.add_done_callback(self._leave)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.gone.cancel()
        if self._told is not None:
            self._told.remove_done_callback(self._leave)
        if self._watch is not None:
            self._watch.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message = self._first
        while message["type"] == "http.request":
            if chunk := message.get("body", b""):  # an empty one would be the end of a chunked body
                yield chunk
            if not message.get("more_body"):
                self._watch = asyncio.create_task(self._until_gone())
                return
            message = await self._receive()
        self._leave()
        raise answers.Disconnected  # breaks the request to the upstream off: half a body must not look whole

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self, _: object = None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
