"""Anthropic's Messages API, as the `Api` that every floor above reads (wire/apis/api.py). It offers
no look-ups."""

from __future__ import annotations

from om_proxy.common.apis import ApiName
from om_proxy.wire.apis.api import Api, Request
from om_proxy.wire.apis.chat.chat_request import asking_text
from om_proxy.wire.apis.messages import messages_request, reading
from om_proxy.wire.apis.messages.kinds import classify, find_sub_agent
from om_proxy.wire.apis.messages.layout import rewrite_body
from om_proxy.wire.apis.messages.reply import MessagesReplyReader, TurnEndFinder
from om_proxy.wire.apis.messages.writing import write_question
from om_proxy.wire.apis.split import Split


class MessagesApi(Api):
    """The functions of this room, under the names of `Api`."""

    name: ApiName = "messages"

    build_split = staticmethod(messages_request.build_split)
    rewrite_body = staticmethod(rewrite_body)
    has_replies = staticmethod(messages_request.has_replies)
    has_pictures = staticmethod(messages_request.has_pictures)
    read_item = staticmethod(reading.read_item)
    view_message = staticmethod(reading.view_message)
    read_chat_message = staticmethod(reading.read_chat_message)
    find_sub_agent = staticmethod(find_sub_agent)
    classify = staticmethod(classify)
    write_question = staticmethod(write_question)
    asking_text = staticmethod(asking_text)
    create_reply_reader = MessagesReplyReader
    create_end_finder = TurnEndFinder

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        return messages_request.parse_request(self, body, known_split)


MESSAGES: Api = MessagesApi()
