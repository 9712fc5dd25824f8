"""List the APIs that have memory. So far, chat is the only one.

No other module imports `apis/<name>/`. For a second API, `Item` needs a field with the API's name
beside the raw bytes, and the lookup is done here.
"""

from __future__ import annotations

from collections.abc import Callable

from om_proxy.apis.api import Api
from om_proxy.apis.chat.chat_api import CHAT
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item

__all__ = ["CHAT", "read_item", "view_message"]

STORED_API: Api = CHAT  # the API of all stored messages

view_message: Callable[[bytes], MessageView | None] = STORED_API.view_message
read_item: Callable[[bytes, bytes], Item] = STORED_API.read_item
