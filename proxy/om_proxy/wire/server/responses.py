"""Send the proxy's own responses, errors among them, in raw ASGI."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import orjson
from starlette.types import Message, Send

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import HttpInstead, MemoryAway, Moved, OmError, Overloaded
from om_proxy.wire.server.headers import Header

JSON_TYPE = b"application/json"
_PRIVATE_HEADERS: list[Header] = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


# of errors of the API `messages`; a status without its own is the client's fault below 500
_MESSAGES_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    413: "request_too_large",
    501: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


async def send_error(
    send: Send, exc: OmError, receipt: Sequence[Header] = (), api: ApiName = "chat"
) -> None:
    """Send an error in the shape of the request's API. `x-should-retry` tells the SDKs of all whether
    a retry can help."""
    await send_json(send, exc.status, _error_body(exc, api), [*_error_headers(exc), *receipt])


def encode_error(exc: OmError, api: ApiName) -> bytes:
    """Return the error's response in bytes, for a connection that ends with it."""
    content = orjson.dumps(_error_body(exc, api))
    headers = [*_content_headers(content), *_error_headers(exc), (b"connection", b"close")]
    lines = [b"%s: %s" % header for header in headers]
    status = b"HTTP/1.1 %d %s" % (exc.status, HTTPStatus(exc.status).phrase.encode())
    return b"\r\n".join([status, *lines, b"", content])


async def send_json(send: Send, status: int, body: object, headers: Sequence[Header] = ()) -> None:
    """Send a whole response with a JSON body."""
    await send_content(send, status, orjson.dumps(body), headers)


async def send_content(
    send: Send,
    status: int,
    content: bytes,
    headers: Sequence[Header] = (),
    content_type: bytes = JSON_TYPE,
) -> None:
    """Send a whole response whose body is encoded already."""
    all_headers = [*_content_headers(content, content_type), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": content})


def keep_private(send: Send) -> Send:
    """Return a `send` whose answers no cache keeps, and no browser takes for another type."""

    async def send_privately(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                header for header in message.get("headers", ()) if header[0] != b"cache-control"
            ]
            message = {**message, "headers": [*headers, *_PRIVATE_HEADERS]}
        await send(message)

    return send_privately


def _error_body(exc: OmError, api: ApiName) -> dict[str, object]:
    if api == "messages":
        fallback = "invalid_request_error" if exc.status < 500 else "api_error"
        kind = _MESSAGES_ERROR_TYPES.get(exc.status, fallback)
        return {"type": "error", "error": {"type": kind, "message": f"{exc} [{exc.code}]"}}
    param = getattr(exc, "param", None)
    body = {"message": str(exc), "type": "om_error", "param": param, "code": exc.code}
    return {"error": {**body, "entry": exc.entry} if isinstance(exc, Moved) else body}


def _error_headers(exc: OmError) -> list[Header]:
    retry = (b"x-should-retry", b"true" if exc.retryable else b"false")
    match exc:
        case Overloaded() | MemoryAway():
            return [retry, (b"retry-after", b"1")]
        case HttpInstead():  # RFC 9110 15.5.22: the response must name the protocol to use
            return [retry, (b"upgrade", b"HTTP/1.1"), (b"connection", b"Upgrade")]
        case _:
            return [retry]


def _content_headers(content: bytes, content_type: bytes = JSON_TYPE) -> list[Header]:
    return [(b"content-type", content_type), (b"content-length", str(len(content)).encode())]
