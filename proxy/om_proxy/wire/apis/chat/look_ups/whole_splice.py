"""Put the rounds of a reply that is no stream together (docs/contributing/recall.md#unstreamed)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.recall.offering import PLAIN_USE, OwnNames, ToolUse
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import RoundEnd, UsageRule
from om_proxy.wire.apis.chat.look_ups.rounds import (
    CALLED,
    CALLS_HINT,
    EMPTY_LINE,
    IDENTITY_MEMBERS,
    LONG_END_BYTES,
    STOPPED,
    UsageSum,
    any_decoder,
    describe_round,
    encode,
    is_own_call,
    list_decoder,
    members_decoder,
    put_back_halves,
)
from om_proxy.wire.apis.chat.reply import read_usage
from om_proxy.wire.apis.json_text import replace_lone_surrogates

# texts of a message that the rounds of a reply say one after another
_JOINED_TEXTS = ("content", "reasoning_content", "reasoning")


def may_call_tools(body: bytes) -> bool:
    """Return whether a reply may call a tool. Most do not, and need not be read."""
    return CALLS_HINT in body


class WholeSplice:
    """The splice of a chat reply that comes as one JSON object (`Splice` in wire/apis/api.py)."""

    is_reading = True  # nothing goes out before the end
    is_round_complete = False  # the whole body is read

    def __init__(
        self,
        tool: str,
        usage_rule: UsageRule,
        _reserve: Callable[[int], bool] = lambda size: True,
        use: ToolUse = PLAIN_USE,
    ) -> None:
        self._own_names = OwnNames(tool, use.names)
        self._wants_json = use.wants_json
        self._usage = UsageSum(usage_rule)
        self._identity: dict[str, Raw] = {}
        # of the rounds before this one, as JSON without its quotes
        self._texts: dict[str, list[bytes]] = {name: [] for name in _JOINED_TEXTS}
        self._is_first = True
        self._begin()

    def _begin(self) -> None:
        self._body = b""
        self._is_odd = False  # whether half characters were replaced for reading
        self._members: dict[str, Raw] | None = None  # None: not read, so it stays as it came
        self._choices: list[Raw] = []
        self._choice: dict[str, Raw] = {}
        self._message: dict[str, Raw] = {}
        self._read_message: dict[str, Any] = {}
        self._round_usage: Any = None
        self._own: set[int] = set()

    def feed(self, data: bytes) -> bytes:
        self._body += data
        return b""

    @property
    def is_end_long(self) -> bool:
        return len(self._body) > LONG_END_BYTES

    def read_round_usage(self) -> Usage | None:
        return read_usage(self._round_usage)

    def end_round(self) -> tuple[bytes, RoundEnd]:
        try:
            self._take_apart()
        except (ValueError, RecursionError, TypeError):
            self._members = None  # not what a chat reply says: it goes out as it came
            return b"", RoundEnd()
        calls = self._read_message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        self._own = {
            place for place, call in enumerate(calls) if is_own_call(call, self._own_names)
        }
        end = describe_round(
            self._read_message, self._own, self._own_names.tool, usage=self._round_usage
        )
        return b"", end

    def begin_round(self) -> None:
        self._usage.add(self._round_usage)
        for name, texts in self._texts.items():
            # JSON is one text: that of the last round
            is_left_out = self._wants_json and name == "content"
            if not is_left_out and (text := self._write_text(name)):
                texts.append(text)
        self._is_first = False
        self._begin()

    def finish(self) -> bytes:
        if self._members is None or (self._is_first and not self._own):
            return self._body
        if not self._choices:
            return self._body  # an error stays one
        members = {**self._members}
        if not self._is_first:
            members.update({name: raw for name, raw in self._identity.items() if name in members})
        if self._usage and isinstance(self._round_usage, dict):
            members["usage"] = encode(self._usage.include(self._round_usage))
        choice = {**self._choice, "message": encode(self._join_message())}
        is_alone = bool(self._own) and "tool_calls" not in self._left_out_members()
        if is_alone and choice.get("finish_reason") == CALLED:
            choice["finish_reason"] = STOPPED
        members["choices"] = encode([encode(choice), *self._choices[1:]])
        return self._put_back(msgspec.json.encode(members))

    def _take_apart(self) -> None:
        repaired = replace_lone_surrogates(self._body)
        self._is_odd = repaired is not None
        members = members_decoder.decode(repaired or self._body)
        self._choices = list_decoder.decode(members["choices"]) if "choices" in members else []
        if self._choices:
            self._choice = members_decoder.decode(self._choices[0])
            self._message = members_decoder.decode(self._choice.get("message", Raw(b"{}")))
            self._read_message = {
                name: any_decoder.decode(raw) for name, raw in self._message.items()
            }
        self._round_usage = any_decoder.decode(members["usage"]) if "usage" in members else None
        if self._is_first:
            self._identity = {name: members[name] for name in IDENTITY_MEMBERS if name in members}
        self._members = members

    def _left_out_members(self) -> dict[str, Raw]:
        """Return the message's members without the calls of the proxy's tool."""
        message = {**self._message}
        if self._own:
            raws = list_decoder.decode(message["tool_calls"])
            kept = [raw for place, raw in enumerate(raws) if place not in self._own]
            message["tool_calls"] = encode(kept)
            if not kept:
                del message["tool_calls"]
        return message

    def _join_message(self) -> dict[str, Raw]:
        message = self._left_out_members()
        for name, texts in self._texts.items():
            own_text = self._read_message.get(name)
            if texts and (own_text is None or isinstance(own_text, str)):
                joined = EMPTY_LINE.join([*texts, *filter(None, [self._write_text(name)])])
                message[name] = Raw(b'"' + joined + b'"')
        return message

    def _write_text(self, name: str) -> bytes:
        """Return a text of the round's message as it came, as JSON without its quotes; empty: there
        is none."""
        if not isinstance(self._read_message.get(name), str):
            return b""
        return self._put_back(bytes(self._message[name]))[1:-1]

    def _put_back(self, data: bytes) -> bytes:
        return put_back_halves(data, self._body) if self._is_odd else data
