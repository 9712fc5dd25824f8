"""OpenAI's responses, as the `Api` that every floor above reads (wire/apis/api.py). It offers no
look-ups."""

from __future__ import annotations

from om_proxy.common.apis import ApiName
from om_proxy.wire.apis.api import Api, Request
from om_proxy.wire.apis.responses import reading, request
from om_proxy.wire.apis.responses.kinds import classify, find_sub_agent
from om_proxy.wire.apis.responses.layout import rewrite_body
from om_proxy.wire.apis.responses.references import REFERENCES
from om_proxy.wire.apis.responses.reply import (
    ResponseEndFinder,
    ResponseReader,
    find_first_word,
)
from om_proxy.wire.apis.responses.writing import write_question
from om_proxy.wire.apis.split import Split


class ResponsesApi(Api):
    """The functions of this room, under the names of `Api`."""

    name: ApiName = "responses"
    references = REFERENCES

    build_split = staticmethod(request.build_request_split)
    rewrite_body = staticmethod(rewrite_body)
    has_replies = staticmethod(request.has_replies)
    has_pictures = staticmethod(request.has_pictures)
    read_item = staticmethod(reading.read_item)
    view_message = staticmethod(reading.view_message)
    read_chat_message = staticmethod(reading.read_chat_message)
    find_sub_agent = staticmethod(find_sub_agent)
    classify = staticmethod(classify)
    write_question = staticmethod(write_question)
    asking_text = staticmethod(request.asking_text)
    create_reply_reader = ResponseReader
    create_end_finder = ResponseEndFinder
    find_first_word = staticmethod(find_first_word)

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        return request.parse_request(self, body, known_split)


RESPONSES: Api = ResponsesApi()
