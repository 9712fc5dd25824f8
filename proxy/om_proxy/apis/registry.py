"""The APIs that have memory: chat, so far the only one.

Nothing else imports `apis/<name>/`. A second API stands beside a message's raw bytes as a field of
`Item`, and is looked up here.
"""

from __future__ import annotations

from collections.abc import Callable

from om_proxy.apis.api import Api
from om_proxy.apis.chat.chat_api import CHAT
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item

__all__ = ["CHAT", "read_item", "view_message"]

STORED_API: Api = CHAT  # which the store's messages came by

view_message: Callable[[bytes], MessageView | None] = STORED_API.view_message
read_item: Callable[[bytes, bytes], Item] = STORED_API.read_item
