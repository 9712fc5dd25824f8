"""List the APIs that have memory, and find the room of each by its name.

No other module imports `wire/apis/<name>/`. The rooms of the APIs beside chat are imported when the
first request or message of theirs comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from msgspec.structs import replace

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item
from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import Api, Request, Unreadable
from om_proxy.wire.apis.chat.chat_api import CHAT, cut_beginning, drop_texts, read_beginning
from om_proxy.wire.apis.chat.plain_form import encode_message, fit_message
from om_proxy.wire.apis.chat.reply import read_usage

__all__ = [
    "APIS",
    "CHAT",
    "cut_beginning",
    "drop_texts",
    "get_api",
    "read_beginning",
    "read_item",
    "read_usage",  # of the API that most memory models are asked by
    "rewrite_body",
    "view_message",
]

# those that were asked for so far
APIS: dict[str, Api] = {"chat": CHAT}


def get_api(name: ApiName) -> Api:
    """Return the room of this API."""
    if name not in APIS:
        room = import_module(f"om_proxy.wire.apis.{name}.{name}_api")
        APIS[name] = cast(Api, getattr(room, name.upper()))
    return APIS[name]


def view_message(raw: bytes, api: str) -> MessageView | None:
    """Return a view of a message that came by this API; None if a strict parser of it refuses the
    message."""
    known = _find_name(api)
    return None if known is None else get_api(known).view_message(raw)


def read_item(raw: bytes, key: bytes, api: str) -> Item:
    """Return a message that came by this API as the memory stores it (`Api.read_item`). Raise
    Unreadable."""
    known = _find_name(api)
    if known is None:
        raise Unreadable(f"this release cannot read messages of {api}")
    return get_api(known).read_item(raw, key)


def rewrite_body(
    request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
) -> bytes:
    """Return the request's body with this tail (`Api.rewrite_body`). A message that came by another
    API is given to the request's own as the chat message that says the same."""
    own = request.api.name
    if not {piece.api for piece in tail} <= {own, "chat"}:
        write = fit_message if own == "chat" else encode_message
        brought = [piece if piece.api == own else _bring_to_chat(piece, write) for piece in tail]
        tail = [piece for piece in brought if piece.raw]
    return request.api.rewrite_body(request, block, hint, tail, layout)


def _bring_to_chat(piece: Piece, write: Callable[[Mapping[str, Any]], bytes]) -> Piece:
    if piece.sent or piece.api == "chat":
        return piece
    return replace(piece, raw=write(get_api(piece.api).read_chat_message(piece.raw)), api="chat")


def _find_name(api: str) -> ApiName | None:
    return next((name for name in API_NAMES if name == api), None)
