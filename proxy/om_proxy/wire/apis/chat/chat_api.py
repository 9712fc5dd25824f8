"""OpenAI's chat completions, as the `Api` that every floor above reads (wire/apis/api.py).

A client's instructions may be a hundred kilobytes long. Memory work needs to know who the assistant
is, so a request keeps the first bytes of its instructions and parses nothing. Their JSON may be cut
off there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from om_proxy.common.apis import ApiName
from om_proxy.memory.prompt.layout import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import TURN, Api, Kind, RecallApi, Request
from om_proxy.wire.apis.chat import chat_message, chat_request
from om_proxy.wire.apis.chat.layout import assemble, drop_block_texts
from om_proxy.wire.apis.chat.look_ups import recall_tool, rounds
from om_proxy.wire.apis.chat.look_ups.plain_rounds import take_out_calls
from om_proxy.wire.apis.chat.look_ups.recall_tool import write_tail
from om_proxy.wire.apis.chat.look_ups.splice import StreamSplice
from om_proxy.wire.apis.chat.look_ups.whole_splice import WholeSplice, may_call_tools
from om_proxy.wire.apis.chat.plain_form import write_plain_body
from om_proxy.wire.apis.chat.reply import ChatReplyReader, DoneFinder
from om_proxy.wire.apis.chat.request_form import drop_request_forms, write_request_form
from om_proxy.wire.apis.split import Split

MAX_BEGINNING_BYTES = 2_048  # 200 tokens, even if each character is written as \uXXXX

# A quote inside a JSON string is written \", so neither key can be found in the middle of a text.
_TEXT = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")


def cut_beginning(messages: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return a copy of the first bytes of the messages: no slice of a request's body outlives the
    request."""
    beginnings: list[bytes] = []
    left_bytes = MAX_BEGINNING_BYTES
    for message in messages:
        if left_bytes <= 0:
            break
        beginnings.append(bytes(message[:left_bytes]))
        left_bytes -= len(message)
    return tuple(beginnings)


def read_beginning(raw: bytes) -> str:
    """Return the texts of a cut message, as far as they go."""
    return "\n".join(_decode_json_text(match[1]) for match in _TEXT.finditer(raw))


def _decode_json_text(escaped: bytes) -> str:
    complete = _HALF_ESCAPE.sub("", escaped.decode("utf-8", "ignore"))
    try:
        text: str = json.loads(f'"{complete}"', strict=False)
    except ValueError:  # an escape that JSON does not have
        return ""
    return text.encode("utf-8", "ignore").decode()  # drops half a pair of surrogates


def drop_texts() -> None:
    """Drop the texts that are kept to write them faster, for any API: people may have forgotten
    them."""
    drop_block_texts()
    drop_request_forms()


class ChatApi:
    """The functions of this room, under the names of `Api` and `RecallApi`."""

    name: ApiName = "chat"

    @property
    def recall(self) -> RecallApi:
        return self

    write_plain_body = staticmethod(write_plain_body)
    build_split = staticmethod(chat_request.build_request_split)
    has_replies = staticmethod(chat_request.has_replies)
    has_pictures = staticmethod(chat_request.has_pictures)
    read_item = staticmethod(chat_request.read_item)
    view_message = staticmethod(chat_message.view_message)
    read_chat_message = staticmethod(msgspec.json.Decoder(dict[str, Any]).decode)
    asking_text = staticmethod(chat_request.asking_text)
    create_reply_reader = ChatReplyReader
    create_end_finder = DoneFinder
    find_first_word = None
    references = None
    read_tool_use = staticmethod(recall_tool.read_tool_use)
    write_tool = staticmethod(recall_tool.write_tool)
    write_answer = staticmethod(recall_tool.write_answer)
    create_stream_splice = StreamSplice
    create_whole_splice = WholeSplice
    write_error_event = staticmethod(rounds.write_error_event)
    may_call_tools = staticmethod(may_call_tools)
    take_out_calls = staticmethod(take_out_calls)

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        return chat_request.parse_request(self, body, known_split)

    @staticmethod
    def find_sub_agent(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        return b""

    @staticmethod
    def classify(request: Request, headers: Sequence[tuple[bytes, bytes]]) -> Kind:
        return TURN

    @staticmethod
    def write_question(question: Mapping[str, Any]) -> dict[str, Any]:
        return dict(question)

    @staticmethod
    def rewrite_body(
        request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
    ) -> bytes:
        messages = assemble(
            request.instructions,
            request.instruction_roles,
            block,
            hint,
            write_tail(tail),
            layout,
        )
        return chat_request.replace_messages(request, messages)

    @staticmethod
    def offer_tool(request: Request, body: bytes, tool: str, *, has_threads: bool) -> bytes:
        tool_json = recall_tool.write_tool(tool, has_threads=has_threads)
        return recall_tool.offer_tool(request, body, tool_json)

    @staticmethod
    def write_round(
        body: bytes,
        tool: str | None,
        messages: Sequence[bytes],
        *,
        has_threads: bool,
        may_call: bool = True,
    ) -> bytes:
        tool_json = recall_tool.write_tool(tool, has_threads=has_threads) if tool else None
        written = [write_request_form(raw) for raw in messages]
        return recall_tool.write_round(body, tool_json, written, may_call=may_call)


CHAT: Api = ChatApi()
