"""Find the conversations of the caller's resource: the one that a look-up is about, one page of
their list, and whether a thread has another one (`retrieval.offer: always`).

The messages of one are read forward and backward from a place, in pieces of a page's size: no
look-up holds more of a thread than it shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.model import Key, Memory, Scope
from om_proxy.memory.recall.arguments import (
    CURRENT_THREAD,
    ONLY_THIS_CONVERSATION,
    LookUp,
    LookUpFault,
    ambiguous_label,
    unknown_conversation,
)
from om_proxy.memory.recall.message_ids import MessageId, parse_label, parse_message_id
from om_proxy.memory.recall.quoted_message import QuotedMessage, QuotedPart
from om_proxy.memory.recall.thread_list import MAX_TIME_BEFORE_WRITTEN_S
from om_proxy.storage.contract.memories import ThreadLists, ThreadRows
from om_proxy.storage.shared.newest_passages import find_latest_threads
from om_proxy.storage.values.listing import ThreadInfo, ThreadPlace, ThreadSelection
from om_proxy.storage.values.stored_rows import StoredMessage
from om_proxy.wire.apis.message_parts import read_call_names, read_message_parts

THREADS_A_READ = 500
MAX_LISTED_THREADS = 5_000  # of a resource, of which a label may be one


MAX_REMEMBERED_THREADS = 20_000  # about 300 bytes each
# how long "no other conversation" is believed
NOTHING_FOUND_FOR_S = 10.0
MAX_READ_S = 0.5  # a request waits for it
MAX_WIDTH = 4_096  # seqs that one step backward looks at, where most messages are not live


class Conversation(NamedTuple):
    """A thread that a look-up may read. `memory`: without messages, it has never been stored."""

    key: Key
    label: str  # the whole one
    is_current: bool
    memory: Memory

    @property
    def shown_label(self) -> str:
        """The label that is before ids; of the current conversation none does."""
        return "" if self.is_current else self.label


@dataclass(slots=True, eq=False)
class Conversations:
    """The conversations that one caller may read: those of its resource, or its own alone."""

    memories: Memories
    key: Key  # of the current one
    scope: Scope
    # the resource's threads by label, once a label was looked for
    _listed: dict[str, Key] | None = None
    _opened: dict[str, Key] = field(default_factory=dict)  # by label

    async def find(self, look_up: LookUp) -> Conversation:
        """Return the conversation that the look-up names. Raise LookUpFault."""
        return await self.open(await self._find_key(_read_thread(look_up)))

    async def open(self, key: Key) -> Conversation:
        memory = await self.memories.load(key)
        label = self.memories.label(key)
        self._opened[label] = key
        return Conversation(key, label, key == self.key, memory)

    async def list_recent(self) -> AsyncIterator[ThreadInfo]:
        """Yield the threads, the latest turn first."""
        if self.scope == "thread":
            raise LookUpFault(ONLY_THIS_CONVERSATION)
        selection = ThreadSelection(self.key.tenant, self.key.resource, order="recent")
        place: ThreadPlace | None = None
        while True:
            page = await self.memories.store.find_threads(selection, place, THREADS_A_READ)
            for info in page.threads:
                yield info
            if page.end is None:
                return
            place = page.end

    async def _find_key(self, label: str | None) -> Key:
        if label is None:
            return self.key
        own = self.memories.label(self.key)
        if self.scope == "thread":
            if own.startswith(label):
                return self.key
            raise LookUpFault(ONLY_THIS_CONVERSATION)
        listed = await self._list_labels() | self._opened | {own: self.key}
        found = {whole: key for whole, key in listed.items() if whole.startswith(label)}
        if len(found) > 1:
            raise ambiguous_label(label, sorted(found)[:5])
        if not found:
            raise unknown_conversation(label)
        [key] = found.values()
        return key

    async def _list_labels(self) -> dict[str, Key]:
        """Return the threads of the resource by label: once in a reply, and a bounded number, the
        first by name and the latest."""
        if self._listed is None:
            listed: dict[str, Key] = {}
            cursor: Key | None = None
            while len(listed) < MAX_LISTED_THREADS:
                page = await self.memories.store.threads(*self.key[:2], cursor, THREADS_A_READ)
                listed |= {self.memories.label(info.key): info.key for info in page}
                if len(page) < THREADS_A_READ:
                    break
                cursor = page[-1].key
            else:
                latest = await find_latest_threads(self.memories.store, self.key)
                listed |= {self.memories.label(info.key): info.key for info in latest.values()}
            self._listed = listed
        return self._listed


def _read_thread(look_up: LookUp) -> str | None:
    """Return the label that the look-up names; None: the current conversation. Raise
    LookUpFault."""
    if look_up.cursor is not None and look_up.cursor.label:
        return look_up.cursor.label
    written = (look_up.thread or CURRENT_THREAD).strip()
    if written.lower() == CURRENT_THREAD:
        return None
    label = parse_label(written)
    if label is None:
        parsed = parse_message_id(written[:100])
        label = parsed.label if isinstance(parsed, MessageId) else None
    if not label:
        raise unknown_conversation(written)
    return label


async def read_list_page(
    recent: AsyncIterator[ThreadInfo],
    look_up: LookUp,
    limit: int,
    find_label: Callable[[Key], str],
) -> list[ThreadInfo]:
    """Return the threads of the page that the look-up asks for, and the one after it. `recent`:
    all threads, the latest turn first.

    A page may begin after a conversation, at the time that many ended. If that one has gone, or
    has moved to the top, the page begins at the time: a conversation is told again rather than not.
    """
    pages_before = (look_up.page - 1) * limit
    skip, behind = pages_before, look_up.behind
    found: list[ThreadInfo] = []
    async for info in recent:
        if look_up.before is not None and info.active_at >= look_up.before:
            continue
        if look_up.after is not None and info.active_at < look_up.after:
            break
        if behind is not None and look_up.before is not None:
            if info.active_at < look_up.before - MAX_TIME_BEFORE_WRITTEN_S:
                behind = None
            elif find_label(info.key).startswith(behind):
                skip, behind = pages_before, None
                found.clear()
                continue
        if skip:
            skip -= 1
        elif len(found) <= limit:
            found.append(info)
        if len(found) > limit and behind is None:
            break
    return found


class OfferedThreads:
    """The threads of one process whose resource has another thread. Once one is found it is known,
    so the tool is offered in every later request of the thread. `clock`: seconds that only grow."""

    def __init__(self, store: ThreadLists, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        # until when the answer is believed; inf: there is another thread
        self._known: BoundedCache[Key, float] = BoundedCache(max_items=MAX_REMEMBERED_THREADS)

    async def has_others(self, key: Key) -> bool:
        """Return whether the key's resource has another thread with a message. One bounded read of
        an index, or none. Raise StorageError or TimeoutError."""
        now = self._clock()
        known_until = self._known.get(key)
        if known_until is not None and now < known_until:
            return known_until == float("inf")
        async with asyncio.timeout(MAX_READ_S):
            # two of any resource: one of them is another
            threads = await self._store.threads(key.tenant, key.resource, limit=2)
        has_others = any(info.key != key and info.messages for info in threads)
        self._known.put(key, float("inf") if has_others else now + NOTHING_FOUND_FOR_S)
        return has_others

    def clear(self) -> None:
        """Forget what is known: threads were forgotten."""
        self._known.clear()


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
