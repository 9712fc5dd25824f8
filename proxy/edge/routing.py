"""Which model server a request goes to that is no chat completion: the one whose `match` fits the model it names, as for chat.

A caller's key must not reach a server that another model is meant for. Where nothing is named (files, lists, bodies that are
neither JSON nor a form, or too large to look into), it is the server for all models, or the first.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from starlette.types import Message, Receive, Scope

from proxy.edge.headers import header
from proxy.edge.site import Site
from proxy.settings import UpstreamSettings
from proxy.wire.named import model_of

LOOKED_INTO = 1 << 20  # bytes of a body that are read before any of it is passed on


class Route(NamedTuple):
    """`receive` gives the body from its beginning."""

    upstream: UpstreamSettings
    receive: Receive


async def route(scope: Scope, receive: Receive, site: Site) -> Route:
    """Raises BadRequest where the request names a model that no server is for."""
    anyway = site.upstream_for(None) or site.settings.upstream[0]
    if site.meets_all or scope["method"] != "POST":
        return Route(anyway, receive)
    messages = await _beginning(receive)
    body = b"".join(message.get("body", b"") for message in messages)
    model = model_of(body, header(scope["headers"], b"content-type") or b"")
    upstream = anyway if model is None else site.server_for(model)
    return Route(upstream, _again(messages, receive))


async def _beginning(receive: Receive) -> list[Message]:
    messages, size = [await receive()], 0
    while messages[-1].get("more_body") and (size := size + len(messages[-1].get("body", b""))) < LOOKED_INTO:
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    left = deque(messages)

    async def following() -> Message:
        return left.popleft() if left else await receive()

    return following
