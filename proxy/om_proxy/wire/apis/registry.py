"""List the APIs that have memory. So far, chat is the only one that is served.

No other module imports `wire/apis/<name>/`. For a second API, `Item` needs a field with the API's
name beside the raw bytes, and the lookup is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Api
from om_proxy.wire.apis.chat.chat_api import CHAT
from om_proxy.wire.apis.chat.usage import read_usage as read_chat_usage
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.responses.responses_api import RESPONSES

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "read_item", "read_usage", "view_message"]

STORED_API: Api = CHAT  # the API of all stored messages

view_message: Callable[[bytes], MessageView | None] = STORED_API.view_message
read_item: Callable[[bytes, bytes], Item] = STORED_API.read_item
# the API that memory models are asked by (agents/model_access/dialect.py)
read_usage: Callable[[Any], Usage | None] = read_chat_usage
