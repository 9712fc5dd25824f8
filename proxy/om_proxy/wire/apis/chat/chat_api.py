"""OpenAI's chat completions, as the `Api` that every floor above reads (wire/apis/api.py).

A client's instructions may be a hundred kilobytes long. Memory work needs to know who the assistant
is, so a request keeps the first bytes of its instructions and parses nothing. Their JSON may be cut
off there.

A request is split, not parsed: a thread's known messages come again with every request, so they
stay raw slices until one is read. msgspec finds the slices at about 0.3 ms/MB; parsing everything
takes three times that, and writing it back would change numbers and keys that the proxy does not
know. After a known split (wire/apis/split.py), only the bytes after it are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.common.apis import ApiName
from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import TURN, Api, Kind, RecallApi, Request
from om_proxy.wire.apis.chat import chat_message
from om_proxy.wire.apis.chat.chat_message import INSTRUCTION_ROLES, read_role, speaker_decoder
from om_proxy.wire.apis.chat.layout import assemble, drop_block_texts
from om_proxy.wire.apis.chat.look_ups import recall_tool, rounds
from om_proxy.wire.apis.chat.look_ups.plain_rounds import take_out_calls
from om_proxy.wire.apis.chat.look_ups.recall_tool import Forms, write_tail
from om_proxy.wire.apis.chat.look_ups.splice import StreamSplice
from om_proxy.wire.apis.chat.look_ups.whole_splice import WholeSplice, may_call_tools
from om_proxy.wire.apis.chat.plain_form import write_plain_body
from om_proxy.wire.apis.chat.reply import ChatReplyReader, DoneFinder
from om_proxy.wire.apis.chat.request_form import drop_request_forms
from om_proxy.wire.apis.request_members import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    ParsedBody,
    build_request,
    parse_body,
    parse_known,
    replace_messages,
)
from om_proxy.wire.apis.split import Split, build_split

MAX_BEGINNING_BYTES = 2_048  # 200 tokens, even if each character is written as \uXXXX
PICTURE_WORD = b'"image_url"'  # nobody escapes it

# A quote inside a JSON string is written \", so neither key can be found in the middle of a text.
_TEXT = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)
_NULL = Raw(b"null")
_HALF_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")


class _Options(Forms, kw_only=True):
    """Other members that models take, some not together with a tool: of OpenAI and OpenRouter."""

    reasoning_effort: Raw = _NULL
    reasoning: Raw = _NULL
    thinking: Raw = _NULL
    verbosity: Raw = _NULL
    logprobs: Raw = _NULL
    prediction: Raw = _NULL
    modalities: Raw = _NULL
    web_search_options: Raw = _NULL


_OPTION_NAMES = (*Forms.__annotations__, *_Options.__annotations__)
_read_options = attrgetter(*_OPTION_NAMES)
_UNSET_OPTIONS = _read_options(_Options())
_NO_OPTIONS: frozenset[str] = frozenset()


class _Body(_Options):
    messages: list[Raw]


_body = msgspec.json.Decoder(_Body)


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
    """The API: what a request holds, and by the functions of this room all else."""

    name: ApiName = "chat"

    @property
    def recall(self) -> RecallApi:
        return self

    write_plain_body = staticmethod(write_plain_body)
    read_item = staticmethod(chat_message.read_item)
    view_message = staticmethod(chat_message.view_message)
    read_chat_message = staticmethod(msgspec.json.Decoder(dict[str, Any]).decode)
    asking_text = staticmethod(chat_message.asking_text)
    create_reply_reader = ChatReplyReader
    create_end_finder = DoneFinder
    find_first_word = None
    references = None
    read_tool_use = staticmethod(recall_tool.read_tool_use)
    write_tool = staticmethod(recall_tool.write_tool)
    offer_tool = staticmethod(recall_tool.offer_tool)
    write_round = staticmethod(recall_tool.write_round)
    write_answer = staticmethod(recall_tool.write_answer)
    create_stream_splice = StreamSplice
    create_whole_splice = WholeSplice
    write_error_event = staticmethod(rounds.write_error_event)
    may_call_tools = staticmethod(may_call_tools)
    take_out_calls = staticmethod(take_out_calls)

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        if known_split is not None and (known := parse_known(_body, "messages", body, known_split)):
            roles = tuple(_list_leading_roles(known.leading))
            if len(roles) == len(known.leading):
                return self._build_request(known.parsed, known.leading, roles, known.elements)
        parsed = parse_body(_body, body)
        raws = tuple(map(bytes, parsed.members.messages))
        roles = tuple(_list_leading_roles(raws))
        return self._build_request(parsed, raws[: len(roles)], roles, raws[len(roles) :])

    def _build_request(
        self,
        parsed: ParsedBody[_Body],
        instructions: tuple[bytes, ...],
        roles: tuple[str, ...],
        messages: Sequence[bytes],
    ) -> Request:
        options = _list_options(parsed.members)
        return build_request(self, parsed, instructions, roles, messages, options)

    @staticmethod
    def build_split(request: Request, digests: Digests, seed: int) -> Split | None:
        if request.readable is not request.frame:
            return None  # half characters were replaced: the messages are not as they were sent
        return build_split(request.body, request.instructions, request.messages, digests, seed)

    @staticmethod
    def has_replies(request: Request) -> bool:
        if len(request.messages) > MAX_MESSAGES_OF_ONE_TURN:
            return True
        try:
            for message in request.messages:
                # nobody escapes the word, so messages without it need not be decoded
                if b"assistant" in message and speaker_decoder.decode(message).role == "assistant":
                    return True
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return True  # a message of an unknown kind: it is not stored
        return False

    @staticmethod
    def has_pictures(body: bytes) -> bool:
        return PICTURE_WORD in body

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
        return replace_messages(request, messages)


CHAT: Api = ChatApi()


def _list_options(members: _Body) -> frozenset[str]:
    """List the members that a server may take, and not together with a tool."""
    raws = _read_options(members)
    if raws == _UNSET_OPTIONS:
        return _NO_OPTIONS
    named = zip(_OPTION_NAMES, raws, strict=True)
    return frozenset(name for name, raw in named if bytes(raw) not in UNSET_VALUES)


def _list_leading_roles(raws: Sequence[bytes]) -> Iterator[str]:
    for raw in raws:
        role = read_role(raw)
        if role not in INSTRUCTION_ROLES:
            return
        yield role
