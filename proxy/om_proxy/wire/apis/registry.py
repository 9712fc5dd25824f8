"""List the APIs that have memory, and find that of a stored message by its name. So far, chat is
the only one that is served.

No other module imports `wire/apis/<name>/`. A message of an API that is not listed is kept as it
is, and read as one that its API cannot read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Api, Unreadable
from om_proxy.wire.apis.chat.chat_api import CHAT
from om_proxy.wire.apis.chat.usage import read_usage as read_chat_usage
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.responses.responses_api import RESPONSES

__all__ = ["APIS", "CHAT", "MESSAGES", "RESPONSES", "read_item", "read_usage", "view_message"]

APIS: dict[str, Api] = {api.name: api for api in (CHAT, MESSAGES, RESPONSES)}

# the API that memory models are asked by (agents/model_access/dialect.py)
read_usage: Callable[[Any], Usage | None] = read_chat_usage


def view_message(raw: bytes, api: str) -> MessageView | None:
    """Return a view of a message that came by this API; None if a strict parser of it refuses the
    message."""
    found = APIS.get(api)
    return None if found is None else found.view_message(raw)


def read_item(raw: bytes, key: bytes, api: str) -> Item:
    """Return a message that came by this API as the memory stores it (`Api.read_item`). Raise
    Unreadable."""
    if api not in APIS:
        raise Unreadable(f"this release cannot read messages of {api}")
    return APIS[api].read_item(raw, key)
