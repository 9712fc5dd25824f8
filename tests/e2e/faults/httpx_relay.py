"""A relay over plain httpx, as one would write it first: its pool is known to break under
hang-ups."""

from __future__ import annotations

import asyncio
from types import TracebackType

import httpx
from starlette.types import Receive, Scope, Send

from om_proxy.wire.server.disconnect import ClientDisconnected, read_body, wait_for_disconnect


class HttpxRelay:
    """An ASGI app that passes every request on to `base`, and gives a call up when its client
    leaves."""

    def __init__(self, base: str, connections: int) -> None:
        self._base = base.removesuffix("/v1")
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._http = httpx.AsyncClient(
            trust_env=False, timeout=httpx.Timeout(60.0, pool=5.0), limits=limits
        )

    async def __aenter__(self) -> HttpxRelay:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, 1 << 20)
        except ClientDisconnected:
            return
        relaying = asyncio.create_task(self._relay(scope, body, send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
        relaying.cancel()
        leaving.cancel()
        await asyncio.wait((relaying, leaving))
        if not relaying.cancelled() and relaying.exception() is not None and not leaving.done():
            await send({"type": "http.response.start", "status": 502, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = [
            (n, v)
            for n, v in scope["headers"]
            if n not in (b"host", b"content-length", b"transfer-encoding")
        ]
        async with self._http.stream(
            scope["method"], self._base + scope["path"], content=body, headers=headers
        ) as answer:
            kept = [
                (n.lower(), v) for n, v in answer.headers.raw if n.lower() != b"transfer-encoding"
            ]
            await send(
                {"type": "http.response.start", "status": answer.status_code, "headers": kept}
            )
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
