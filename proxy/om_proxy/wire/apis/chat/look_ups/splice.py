"""Put the rounds of a streamed reply together, as one stream without a trace of the proxy's tool.

Before a round calls any tool, its events go out as they came, and only their ends are looked for.
From the first tool call on each event is read:

- While the name of a call is not complete, events are held: `recaller` begins with `recall`.
- A call of the client's tools goes out from its first piece on. Its `index` is lowered by the calls
  of the proxy's tool before it, because SDKs raise on a gap.
- A call of the proxy's tool never goes out. The end of such a round (its finish, its usage and
  `[DONE]`) is held: the client gets the end of the last round.

In later rounds `id` and `created` are those of the first one, and the role is not repeated: some
SDKs would join the roles to `assistantassistant`. Text after a look-up begins with an empty line
if text is before it (docs/contributing/recall.md#streams).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.recall.offering import PLAIN_USE, OwnNames, ToolUse
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import RoundEnd, UsageRule
from om_proxy.wire.apis.chat.deltas import MessageBuilder, ReplyTooLarge, StreamedCall
from om_proxy.wire.apis.chat.look_ups.rounds import (
    CALLED,
    CALLS_HINT,
    EMPTY_LINE,
    IDENTITY_MEMBERS,
    LONG_END_BYTES,
    NULL,
    STOPPED,
    Chunk,
    UsageSum,
    any_decoder,
    change_choice,
    describe_round,
    encode,
    list_decoder,
    members_decoder,
    put_back_halves,
    without_delta,
    without_end,
)
from om_proxy.wire.apis.chat.reply import DONE, read_usage
from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.apis.sse import EventCutter, cut_events, read_event_data, replace_event_data

# A longer round is not put together: it cannot be sent back to the model.
MAX_ROUND_BYTES = 8 << 20
# Of a round, what is held without asking for room: most rounds with a look-up are shorter.
FREE_HELD_BYTES = 1 << 16
HELD_STEP_BYTES = 1 << 18  # room for a longer round is asked for in such steps
_EMPTY_VALUES = (b"null", b'""', b"[]")


class StreamSplice:
    """The splice of a streamed chat reply (`Splice` in wire/apis/api.py)."""

    def __init__(
        self,
        tool: str,
        usage_rule: UsageRule,
        reserve: Callable[[int], bool] = lambda size: True,
        use: ToolUse = PLAIN_USE,
    ) -> None:
        self._names = OwnNames(tool, use.names)
        self._wants_json = use.wants_json
        self._reserve = reserve
        self._usage = UsageSum(usage_rule)
        self._identity: dict[str, Raw] = {}
        self._has_text = False  # whether an earlier round has sent text
        self._is_first = True
        self._begin()

    def _begin(self) -> None:
        self._cutter = EventCutter()
        # whether each event is read; the first round's are from its first tool call on
        self.is_reading = not self._is_first
        # of the first round; it is read from its beginning only if a call is the proxy's
        self._remembered: list[bytes] = []
        self._round_bytes = 0
        self._room_bytes = FREE_HELD_BYTES  # up to this size, what the round says is held
        # whether its beginning is not held, because there was no room: the model is not shown it
        self._is_forgotten = False
        # whether the round is too long to be read: then no call of it is taken out
        self._is_given_up = False
        self._builder = MessageBuilder()
        self._calls: list[StreamedCall] = []
        self._is_own: dict[int, bool] = {}  # by the position of a call whose name is complete
        self._shifts: dict[int, int] = {}  # by position: by how much the call's index is lowered
        self._held: list[Chunk] = []
        self._tail: list[Chunk] = []
        self._out: list[bytes] = []
        self._round_usage: Any = None
        self._has_finish = False
        self._is_finish_held = False
        self._is_done = False
        self._ends_with_stop = False  # whether the last round called nothing but the proxy's tool
        self._needs_gap = self._has_text

    # ── the three steps of a round ────────────────────────────────────────────────────────────────

    def feed(self, data: bytes) -> bytes:
        if self._cutter.is_event_open or data[-2:] != b"\n\n" or b"\r" in data:
            events = self._cutter.feed(data)
        else:
            events = data  # whole events, as in nearly all chunks: the cutter would return them
        if not self.is_reading and CALLS_HINT not in events:
            # `_remember`, without a call for each event of nearly all replies
            self._round_bytes += len(events)
            if self._round_bytes > self._room_bytes:
                self._find_room()
            if not self._is_forgotten:
                self._remembered.append(events)
            return events
        self.is_reading = True
        self._take_events(events)
        return self._flush()

    @property
    def is_round_complete(self) -> bool:
        return self._is_done and self._has_own_calls

    @property
    def is_end_long(self) -> bool:
        return self._has_own_calls and sum(map(len, self._remembered)) > LONG_END_BYTES

    def read_round_usage(self) -> Usage | None:
        return read_usage(self._round_usage)

    def end_round(self) -> tuple[bytes, RoundEnd]:
        if rest := self._cutter.take_rest():
            if not self.is_reading and CALLS_HINT not in rest:
                return rest, RoundEnd()
            self.is_reading = True
            self._take_events(rest)
        if not self.is_reading:
            self._remembered = []
            return b"", RoundEnd()
        self._judge_calls(is_end=True)
        if self._has_own_calls and self._is_first and not self._is_forgotten:
            self._read_remembered()
        self._remembered = []
        own = {
            place
            for place, (call, _) in enumerate(self._builder.list_calls())
            if self._is_own.get(call.position)
        }
        end = describe_round(
            self._builder.message() if self._can_go_on() else None,
            own,
            self._names.tool,
            usage=self._round_usage,
            is_finished=self._has_finish or self._is_done,
        )
        self._ends_with_stop = bool(own) and not end.is_shared
        return self._flush(), end

    def _can_go_on(self) -> bool:
        """Return whether another round may follow. JSON that went out is the client's reply: text
        behind it would break it."""
        if self._is_given_up or not self._wants_json:
            return not self._is_given_up
        content = self._builder.message().get("content")
        has_text = isinstance(content, str) and bool(content.strip())
        return not (self._has_text or self._is_forgotten or has_text)

    def begin_round(self) -> None:
        self._usage.add(self._round_usage)
        has_text = self._is_forgotten or bool(self._builder.message().get("content"))
        self._has_text = self._has_text or has_text
        self._is_first = False
        self._begin()

    def finish(self) -> bytes:
        tail, self._tail = self._tail, []
        for chunk in tail:
            is_stop = self._ends_with_stop and chunk.choice.get("finish_reason") == CALLED
            end = change_choice(chunk, finish_reason=STOPPED) if is_stop else chunk
            self._write(end, is_changed=True)
        return self._flush()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def _remember(self, events: bytes) -> None:
        self._round_bytes += len(events)
        if self._round_bytes > self._room_bytes:
            self._find_room()
        if self._is_first and not self._is_forgotten:
            self._remembered.append(events)

    def _find_room(self) -> None:
        """Ask for room for more of the round. Without room, forget what it said so far, and ask
        again a step later."""
        if self._round_bytes > MAX_ROUND_BYTES and not self._has_own_calls:
            self._give_up()
            return
        while self._room_bytes < self._round_bytes and not self._is_forgotten:
            self._room_bytes += HELD_STEP_BYTES
            self._is_forgotten = not self._reserve(HELD_STEP_BYTES)
        if self._is_forgotten:
            self._remembered = []
            self._room_bytes = self._round_bytes + HELD_STEP_BYTES
            if not self._calls:
                self._builder = MessageBuilder()

    def _read_remembered(self) -> None:
        """Read the round from its beginning: its message has what went out before the calls."""
        events, self._remembered = b"".join(self._remembered), []
        self._builder, self._calls = MessageBuilder(), []
        self._identity, self._round_usage = {}, None
        try:
            for event in cut_events(events):
                self._read_chunk(event)
        except ReplyTooLarge:
            self._is_given_up = True  # it cannot be sent back, so nothing is looked up

    def _take_events(self, events: bytes) -> None:
        self._remember(events)
        for event in cut_events(events):
            self._take_event(event)

    def _take_event(self, event: bytes) -> None:
        data = read_event_data(event)
        if data is None:  # a comment keeps a connection alive: it is never held
            self._out.append(event)
            return
        if data.startswith(DONE):
            self._is_done = True
            chunk = Chunk(event, is_done=True)
        else:
            chunk = self._read_chunk(event)
        self._held.append(chunk)
        self._judge_calls(is_end=chunk.has_finish or chunk.is_done)

    def _read_chunk(self, event: bytes) -> Chunk:
        """Take an event apart, and add its delta to the round's message."""
        chunk = Chunk(event)
        data = read_event_data(event)
        if data is None or not data.startswith(b"{"):
            return chunk
        try:
            # an emoji may be cut between two events
            repaired = replace_lone_surrogates(data)
            members = members_decoder.decode(repaired or data)
            chunk.odd_data = data if repaired else None
            self._take_apart(chunk, members)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Chunk(event)  # not what a chat reply says: it goes out as it came
        for name in IDENTITY_MEMBERS:
            if self._is_first and name in members:
                self._identity.setdefault(name, members[name])
        if chunk.usage is not None:
            self._round_usage = any_decoder.decode(chunk.usage)
        self._has_finish = self._has_finish or chunk.has_finish
        if chunk.delta is not None and not self._is_given_up:
            self._add_delta(chunk)
        return chunk

    @staticmethod
    def _take_apart(chunk: Chunk, members: dict[str, Raw]) -> None:
        choices = members.get("choices", NULL)
        chunk.choices = [] if choices == NULL else list_decoder.decode(choices)
        for place, raw in enumerate(chunk.choices):
            choice = members_decoder.decode(raw)
            index = any_decoder.decode(choice["index"]) if "index" in choice else None
            if (index if type(index) is int else place) == 0:
                chunk.place, chunk.choice = place, choice
                break
        delta = chunk.choice.get("delta", NULL)
        if bytes(delta).startswith(b"{"):
            chunk.delta = members_decoder.decode(delta)
        chunk.members = members

    def _add_delta(self, chunk: Chunk) -> None:
        try:
            chunk.calls = self._builder.add(any_decoder.decode(chunk.choice["delta"]))
        except ReplyTooLarge:
            if self._has_own_calls:
                raise
            self._give_up()
            return
        for call in chunk.calls:
            if call is not None and call.position >= len(self._calls):
                self._calls.append(call)

    def _give_up(self) -> None:
        """Read the round no further: all that comes is the client's."""
        self._is_given_up = self._is_forgotten = True
        self._remembered = []
        for call in self._calls:
            self._is_own.setdefault(call.position, False)

    # ── judging ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _has_own_calls(self) -> bool:
        return any(self._is_own.values())

    def _judge_calls(self, *, is_end: bool) -> None:
        """Decide whose calls these are, as far as that is known, and let go what was held for
        that. `is_end`: no call gets more pieces."""
        for call in self._calls:
            if call.position not in self._is_own:
                is_last = call is self._calls[-1]
                is_complete = is_end or not is_last or bool(call.read_function_text("arguments"))
                is_own = self._judge(call, is_complete=is_complete)
                if is_own is None:
                    return
                self._is_own[call.position] = is_own
        held, self._held = self._held, []
        for chunk in held:
            self._pass(chunk)

    def _judge(self, call: StreamedCall, *, is_complete: bool) -> bool | None:
        """Return whether a call is one of the proxy's tool; None: its name may go on."""
        name = call.read_function_text("name")
        if not call.is_function:
            return False
        if is_complete:
            return self._names.has(name)
        return None if self._names.may_begin(name) else False

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def _pass(self, chunk: Chunk) -> None:
        """Send the chunk on its way: to the client, or after the end that is held."""
        is_end = chunk.has_finish or chunk.is_done or self._is_finish_held
        if not (is_end and self._has_own_calls):
            self._write(chunk, is_changed=False)
            return
        if chunk.has_finish and chunk.delta and not self._is_finish_held:
            # some servers finish in the event of the last piece
            self._write(without_end(chunk), is_changed=True)
            chunk = without_delta(chunk)
        self._is_finish_held = self._is_finish_held or chunk.has_finish
        self._tail.append(chunk)

    def _write(self, chunk: Chunk, *, is_changed: bool) -> None:
        """Write a chunk for the client. A chunk that needs no change goes out as it came; one
        without anything for the client does not go out."""
        if chunk.members is None:
            self._out.append(chunk.raw)
            return
        members = dict(chunk.members)
        if not self._is_first and not self._identity.keys().isdisjoint(members):
            members.update({name: raw for name, raw in self._identity.items() if name in members})
            is_changed = True
        if self._usage and chunk.usage is not None:
            members["usage"] = encode(self._usage.include(any_decoder.decode(chunk.usage)))
            is_changed = True
        delta = self._change_delta(chunk)
        if delta is not None:
            is_empty = all(bytes(raw) in _EMPTY_VALUES for raw in delta.values())
            if is_empty and not chunk.has_finish and chunk.usage is None:
                return
            if is_empty and not chunk.has_finish and self._has_own_calls:
                self._hold_usage(chunk)
                return
            members["choices"] = encode(change_choice(chunk, delta=encode(delta)).choices)
        elif not is_changed:
            self._out.append(chunk.raw)
            return
        elif chunk.choices:
            members["choices"] = encode(chunk.choices)
        data = msgspec.json.encode(members)
        if chunk.odd_data is not None:
            data = put_back_halves(data, chunk.odd_data)
        self._out.append(replace_event_data(chunk.raw, data))

    def _hold_usage(self, chunk: Chunk) -> None:
        """Hold the usage that came with a call of the proxy's tool, as the end is held. The newest
        one replaces those before it."""
        is_end_held = self._is_finish_held or self._is_done
        self._tail = [*(self._tail if is_end_held else ()), without_delta(chunk)]

    def _change_delta(self, chunk: Chunk) -> dict[str, Raw] | None:
        """Return the delta as the client gets it; None: as it came."""
        if chunk.delta is None:
            return None
        delta = dict(chunk.delta)
        if any(call is not None and self._must_change(call) for call in chunk.calls):
            raws = list_decoder.decode(delta["tool_calls"])
            kept = [
                self._lower_index(raw, call)
                for raw, call in zip(raws, chunk.calls, strict=True)
                if call is None or not self._is_own.get(call.position)
            ]
            delta["tool_calls"] = encode(kept)
            if not kept:
                del delta["tool_calls"]
        if not self._is_first:
            delta.pop("role", None)
        content = bytes(delta.get("content", b""))
        if self._needs_gap and content.startswith(b'"') and len(content) > 2:
            self._needs_gap = False
            delta["content"] = Raw(b'"' + EMPTY_LINE + content[1:])
        return None if delta == chunk.delta else delta

    def _must_change(self, call: StreamedCall) -> bool:
        return bool(self._is_own.get(call.position)) or self._find_shift(call) > 0

    def _find_shift(self, call: StreamedCall) -> int:
        """Return by how much the call's index is lowered. It is the same for all its pieces."""
        if call.position not in self._shifts:
            self._shifts[call.position] = sum(
                1
                for other in self._calls[: call.position]
                if self._is_own.get(other.position) and _stands_before(other, call)
            )
        return self._shifts[call.position]

    def _lower_index(self, raw: Raw, call: StreamedCall | None) -> Raw:
        shift = self._find_shift(call) if call is not None else 0
        members = members_decoder.decode(raw) if shift else {}
        index = any_decoder.decode(members["index"]) if "index" in members else None
        if type(index) is not int:
            return raw
        return encode({**members, "index": max(index - shift, 0)})

    def _flush(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(out)


def _stands_before(other: StreamedCall, call: StreamedCall) -> bool:
    """Return whether the other call takes a place before this one."""
    return other.index is None or call.index is None or other.index < call.index
