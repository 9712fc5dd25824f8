"""Read stored messages of one thread forward and backward from a place, in pieces of a page's size:
no look-up holds more of a thread than it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.engine.recall.conversations import Conversation
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.arguments import LookUp
from om_proxy.memory.recall.quoted_message import QuotedMessage, QuotedPart
from om_proxy.storage.contract.memories import ThreadRows
from om_proxy.storage.values.stored_rows import StoredMessage
from om_proxy.wire.apis.message_parts import read_call_names, read_message_parts

MAX_WIDTH = 4_096  # seqs that one step backward looks at, where most messages are not live


class Run(NamedTuple):
    """Messages in order of seq, and whether there are more in the direction of reading."""

    messages: list[StoredMessage]
    next_seq: int | None  # of the first of those; None: there are none


@dataclass(frozen=True, slots=True)
class ThreadMessages:
    """The messages of one thread. `with_superseded`: also those that are not live."""

    store: ThreadRows
    key: Key
    with_superseded: bool = False

    async def find_bounds(self, memory: Memory) -> tuple[int, int] | None:
        """Return the seqs of the first and the last message; None: there is none."""
        first = await self._read(0, None, 1)
        if not first:
            return None
        end = memory.next_seq - 1 if self.with_superseded else memory.end
        return first[0].message.seq, max(first[0].message.seq, end)

    async def find_first_since(self, at: float, bounds: tuple[int, int]) -> int:
        """Return the seq of the first message of this time or later, by halving the thread: its
        messages came one after the other. After the last one: none is."""
        low, high = bounds[0], bounds[1] + 1
        while low < high:
            middle = (low + high) // 2
            found = await self.store.messages(self.key, middle - 1, None, 1)
            if not found or found[0].at >= at:
                high = middle
            else:
                low = found[0].seq + 1
        return low

    async def find_message(self, seq: int, memory: Memory) -> StoredMessage | None:
        """Return the message of this number, live or not."""
        if not 1 <= seq < memory.next_seq:  # numbers beyond a store's own never reach it
            return None
        found = await self.store.stored_messages(self.key, seq - 1, seq, limit=1)
        return found[0] if found else None

    async def read_forward(self, first: int, last: int, skip: int, limit: int) -> Run:
        """Return `limit` messages of `[first, last]`, after the first `skip` of them."""
        after = first - 1
        while skip > 0:
            passed = await self._read(after, last, min(skip, limit))
            if not passed:
                return Run([], None)
            skip -= len(passed)
            after = passed[-1].message.seq
        found = await self._read(after, last, limit + 1)
        return Run(found[:limit], found[limit].message.seq if len(found) > limit else None)

    async def read_backward(self, first: int, last: int, skip: int, limit: int) -> Run:
        """Return `limit` messages of `[first, last]`, before the last `skip` of them."""
        found: list[StoredMessage] = []  # by seq
        width = limit + 1
        while last >= first and len(found) <= limit:
            after = max(first - 1, last - width)
            read = await self._read(after, last, width)
            passed = min(skip, len(read))
            skip -= passed
            found = read[: len(read) - passed] + found
            width = min(2 * width, MAX_WIDTH) if len(read) < width // 2 else limit + 1
            last = after
        shown = found[-limit:]
        beyond = found[: len(found) - len(shown)]
        return Run(shown, beyond[-1].message.seq if beyond else None)

    async def _read(self, after: int, through: int | None, limit: int) -> list[StoredMessage]:
        if self.with_superseded:
            found = await self.store.stored_messages(self.key, after, through, limit=limit)
            return list(found)
        live = await self.store.messages(self.key, after, through, limit)
        return [StoredMessage(message, 0, "live") for message in live]


def quote_message(stored: StoredMessage, conversation: Conversation) -> QuotedMessage:
    """Return the message with its parts. This takes time where the message is long."""
    message = stored.message
    return QuotedMessage(
        message.seq,
        message.item.role,
        message.at,
        read_message_parts(message.item),
        stored.state,
        is_dated=message.seq > conversation.memory.undated_to,
        label=conversation.shown_label,
        title=None if conversation.is_current else conversation.memory.title,
        api=message.item.api,
    )


def quote_page(
    page: Sequence[StoredMessage],
    before: Iterable[StoredMessage],
    conversation: Conversation,
    look_up: LookUp,
) -> tuple[QuotedMessage, ...]:
    """Return the messages of a page that have a part which the look-up asks for; all, if it asks
    for every kind. `before`: messages that may hold the calls of the page's first results."""
    names: dict[str, str] = {}
    for stored in before:
        names.update(_read_names(stored))
    quoted = []
    for stored in page:
        names.update(_read_names(stored))
        message = _name_results(quote_message(stored, conversation), stored, names)
        parts = tuple(
            part if _is_asked_for(part, look_up) else part._replace(is_hidden=True)
            for part in message.parts
        )
        if not message.parts or not all(part.is_hidden for part in parts):
            quoted.append(message._replace(parts=parts))
    if look_up.is_about_parts:
        quoted = [message for message in quoted if message.parts]
    return tuple(quoted)


def has_unnamed_result(page: Sequence[StoredMessage]) -> bool:
    """Return whether the page begins with results whose calls are before it."""
    return bool(page) and page[0].message.item.answers is not None


def _read_names(stored: StoredMessage) -> Mapping[str, str]:
    item = stored.message.item
    return read_call_names(item) if item.calls else {}


def _name_results(
    message: QuotedMessage, stored: StoredMessage, names: Mapping[str, str]
) -> QuotedMessage:
    """Give a result the name of its tool: the message itself holds its call's id alone."""
    name = names.get(stored.message.item.answers or "", "")
    if not name:
        return message
    return message._replace(
        parts=tuple(
            part._replace(name=part.name or name) if part.kind == "tool-result" else part
            for part in message.parts
        )
    )


def _is_asked_for(part: QuotedPart, look_up: LookUp) -> bool:
    if part.kind not in look_up.part_kinds:
        return False
    return look_up.tool_name is None or (
        part.kind in ("tool-call", "tool-result") and part.name == look_up.tool_name
    )
