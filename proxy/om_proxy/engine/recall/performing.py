"""Perform one look-up: read what the store has, and write it as text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.recall.conversations import (
    Conversation,
    Conversations,
    Run,
    ThreadMessages,
    has_unnamed_result,
    quote_message,
    quote_page,
    read_list_page,
)
from om_proxy.engine.recall.searching import MessageSearch
from om_proxy.memory.model import Key, Scope
from om_proxy.memory.recall.arguments import LookUp, LookUpFault, unknown_message
from om_proxy.memory.recall.clipping import CountTokens
from om_proxy.memory.recall.found import PassageFilter, RankedMessage
from om_proxy.memory.recall.found_messages import (
    FoundMessages,
    SeqPlace,
    join_neighbours,
    write_found_messages,
    write_nothing_found,
)
from om_proxy.memory.recall.message_ids import MessageId, write_message_id
from om_proxy.memory.recall.message_page import (
    MessagePage,
    PartPiece,
    find_page_limit,
    write_message_page,
    write_part_piece,
)
from om_proxy.memory.recall.quoted_message import QuotedMessage
from om_proxy.memory.recall.thread_list import (
    ListedThread,
    ThreadListPage,
    find_list_limit,
    write_thread_list,
)
from om_proxy.memory.rounds import LookUpMode
from om_proxy.storage.values.stored_rows import StoredMessage

CALLS_BEFORE_PAGE = 20  # messages in which the calls of a page's first results are looked for


class ReadingRights(NamedTuple):
    """The rights of one caller to read, and the form of the answers. No argument of a look-up
    changes it."""

    key: Key  # of the current thread
    scope: Scope  # `resource`: other threads of the resource too
    zone: ZoneInfo
    max_tokens: int
    # the seq from which the caller's prompt shows this thread as it is: a search leaves these out
    raw_from: int | None = None
    with_superseded: bool = False  # also messages that are not live


class LookUpResult(NamedTuple):
    """The result of a look-up: a text, and the values that the text was written from."""

    text: str
    mode: LookUpMode
    found: int  # number of messages or threads that the text shows; 0: nothing
    shown: MessagePage | PartPiece | FoundMessages | ThreadListPage
    messages: tuple[QuotedMessage, ...] = ()  # that the text shows
    keys: Mapping[str, Key] = {}  # of the threads that are shown, by label; empty: the current one
    scores: tuple[float, ...] = ()  # of the messages of a search


class FoundByPerson(NamedTuple):
    """The results of a person's search."""

    messages: tuple[tuple[Key, QuotedMessage, float], ...]  # with scores, the best first
    total: int  # messages that fit
    share_read: float  # of the messages that could be found, where it is least
    missing: tuple[str, ...]  # index words of the query that no message has
    searched: int  # of the resources, the first ones
    by_words_only: bool = False  # in one of them at least, though vectors are switched on


@dataclass(frozen=True, slots=True, eq=False)
class LookUpPerformer:
    """Performs look-ups. Every method may raise StorageError, and LookUpFault for a look-up that
    names what is not there."""

    memories: Memories
    message_search: MessageSearch
    count_tokens: CountTokens

    def open_conversations(self, rights: ReadingRights) -> Conversations:
        return Conversations(self.memories, rights.key, rights.scope)

    async def perform(
        self, look_up: LookUp, rights: ReadingRights, conversations: Conversations
    ) -> LookUpResult:
        """Perform a look-up. `conversations`: of these rights; they remember what was found."""
        if look_up.mode == "threads":
            return await self._list_threads(look_up, rights, conversations)
        if look_up.mode == "search":
            return await self._search(look_up, rights, conversations)
        conversation = await conversations.find(look_up)
        if look_up.part is not None and look_up.cursor is not None:
            return await self._show_part(look_up, look_up.cursor, rights, conversation)
        return await self._show_messages(look_up, rights, conversation)

    async def find(
        self,
        keys: Sequence[Key],
        look_up: LookUp,
        *,
        limit: int,
        passage_filter: PassageFilter,
        ends_at: float | None = None,
    ) -> FoundByPerson:
        """Search the keys' resources for a person: every result stands for itself. `ends_at`: by
        the clock of the loop; resources that are not searched by then are left out. Raise
        TimeoutError if none is."""
        hits: list[tuple[Key, RankedMessage]] = []
        missing: dict[str, None] | None = None
        shares: list[float] = []
        by_words_only = False
        for key in keys:
            try:
                async with asyncio.timeout_at(ends_at):
                    result = await self.message_search.search(key, look_up.query, passage_filter)
            except TimeoutError:
                if not shares:
                    raise
                break
            hits += ((key._replace(thread=hit.thread), hit) for hit in result.ranked)
            lacking = {word: None for word in result.words if not result.counts.get(word)}
            missing = lacking if missing is None else {w: None for w in missing if w in lacking}
            shares.append(result.share_read)
            by_words_only |= result.by_words_only
        hits.sort(key=lambda hit: -hit[1].score)
        shown = hits[:limit]
        opened: dict[Key, Conversation] = {}
        stored: dict[tuple[Key, int], StoredMessage] = {}
        for key in dict.fromkeys(key for key, _ in shown):
            memory = await self.memories.load(key)
            opened[key] = Conversation(key, self.memories.label(key), False, memory)
            seqs = [hit.seq for at, hit in shown if at == key]
            for message in await self.memories.store.messages_by_seq(key, seqs):
                stored[key, message.seq] = StoredMessage(message, 0, "live")

        def quote() -> list[tuple[Key, QuotedMessage, float]]:
            return [
                (key, quote_message(stored[key, hit.seq], opened[key]), hit.score)
                for key, hit in shown
                if (key, hit.seq) in stored
            ]

        messages = tuple(await run_in_turn(quote))
        share_read = min(shares, default=1.0)
        return FoundByPerson(
            messages, len(hits), share_read, tuple(missing or ()), len(shares), by_words_only
        )

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    async def _show_messages(
        self, look_up: LookUp, rights: ReadingRights, conversation: Conversation
    ) -> LookUpResult:
        reader = self._create_reader(rights, conversation)
        bounds = await reader.find_bounds(conversation.memory)
        at_cursor = None
        if look_up.cursor is not None:
            at_cursor = await reader.find_message(look_up.cursor.seq, conversation.memory)
            if at_cursor is None:
                raise _unknown_cursor(look_up.cursor, conversation, bounds)
            bounds = bounds or (look_up.cursor.seq, look_up.cursor.seq)  # all was taken back
        limit = find_page_limit(look_up.limit, rights.max_tokens)
        run = await _read_page(reader, look_up, at_cursor, bounds, limit)
        before: list[StoredMessage] = []
        if has_unnamed_result(run.messages):
            last = run.messages[0].message.seq - 1
            before = (await reader.read_backward(1, last, 0, CALLS_BEFORE_PAGE)).messages
        shown_seqs = [stored.message.seq for stored in run.messages]

        def write() -> tuple[MessagePage, str]:
            page = MessagePage(
                quote_page(run.messages, before, conversation, look_up),
                (shown_seqs[0], shown_seqs[-1]) if shown_seqs else None,
                bounds,
                look_up.page,
                limit,
                run.next_seq is not None,
                run.next_seq or 0,
                conversation.shown_label,
                None if conversation.is_current else conversation.memory.title,
            )
            text = write_message_page(page, rights.zone, rights.max_tokens, self.count_tokens)
            return page, text

        page, text = await run_in_turn(write)
        return LookUpResult(
            text,
            "messages",
            len(page.messages),
            page,
            page.messages,
            {conversation.shown_label: conversation.key},
        )

    async def _show_part(
        self,
        look_up: LookUp,
        cursor: MessageId,
        rights: ReadingRights,
        conversation: Conversation,
    ) -> LookUpResult:
        reader = self._create_reader(rights, conversation)
        stored = await reader.find_message(cursor.seq, conversation.memory)
        if stored is None:
            plain = ThreadMessages(self.memories.store, conversation.key)
            bounds = await plain.find_bounds(conversation.memory)
            raise _unknown_cursor(cursor, conversation, bounds)
        before: list[StoredMessage] = []
        if has_unnamed_result([stored]):
            before = (await reader.read_backward(1, cursor.seq - 1, 0, CALLS_BEFORE_PAGE)).messages
        # every part, whatever kinds are asked for: the number says which
        whole = LookUp(mode="messages")

        def write() -> tuple[QuotedMessage, PartPiece]:
            [message] = quote_page([stored], before, conversation, whole)
            piece = write_part_piece(
                message,
                look_up.part or 0,
                look_up.char_offset,
                rights.zone,
                rights.max_tokens,
                self.count_tokens,
            )
            return message, piece

        message, piece = await run_in_turn(write)
        keys = {conversation.shown_label: conversation.key}
        return LookUpResult(piece.text, "messages", 1, piece, (message,), keys)

    def _create_reader(self, rights: ReadingRights, conversation: Conversation) -> ThreadMessages:
        return ThreadMessages(self.memories.store, conversation.key, rights.with_superseded)

    # ── conversations ─────────────────────────────────────────────────────────────────────────────

    async def _list_threads(
        self, look_up: LookUp, rights: ReadingRights, conversations: Conversations
    ) -> LookUpResult:
        limit = find_list_limit(look_up.limit, rights.max_tokens)
        infos = await read_list_page(
            conversations.list_recent(), look_up, limit, self.memories.label
        )
        listed = tuple(
            ListedThread(
                self.memories.label(info.key),
                info.title,
                info.messages,
                info.created_at,
                info.active_at,
                info.key == rights.key,
            )
            for info in infos
        )
        keys = {thread.label: info.key for thread, info in zip(listed, infos, strict=True)}
        next_at = listed[limit].active_at if len(listed) > limit else None
        page = ThreadListPage(listed[:limit], look_up.page, limit, next_at)
        text, shown = await run_in_turn(
            partial(write_thread_list, page, rights.zone, rights.max_tokens, self.count_tokens)
        )
        if shown < len(page.threads):
            left_out = page.threads[shown]
            page = page._replace(threads=page.threads[:shown], next_at=left_out.active_at)
        return LookUpResult(text, "threads", shown, page, keys=keys)

    # ── search ────────────────────────────────────────────────────────────────────────────────────

    async def _search(
        self, look_up: LookUp, rights: ReadingRights, conversations: Conversations
    ) -> LookUpResult:
        thread = rights.key.thread if rights.scope == "thread" else None
        if look_up.thread is not None or (look_up.cursor and look_up.cursor.label):
            thread = (await conversations.find(look_up)).key.thread
        result = await self.message_search.search(
            rights.key, look_up.query, PassageFilter(thread, look_up.before, look_up.after)
        )
        hits = [hit for hit in result.ranked if not _is_shown_raw(hit, rights)]
        places = join_neighbours([SeqPlace(hit.thread, hit.seq) for hit in hits], look_up.limit)
        opened, stored = await self._read_places(places, rights, conversations)
        scores = {SeqPlace(hit.thread, hit.seq): hit.score for hit in hits}
        kept = [place for place in places if place in stored]

        def write() -> tuple[FoundMessages, str, int]:
            found = FoundMessages(
                look_up.query,
                result.words,
                tuple(quote_message(stored[place], opened[place.thread]) for place in kept),
                len(hits),
                result.share_read,
            )
            if not kept:
                # the counts are those of the resource, which this caller may not know
                may_tell = rights.scope == "resource"
                counts = result.counts if may_tell else dict.fromkeys(result.words, 1)
                nothing = write_nothing_found(look_up.query, counts, result.share_read)
                return found, nothing, 0
            text, shown = write_found_messages(
                found, rights.zone, rights.max_tokens, self.count_tokens
            )
            return found, text, shown

        found, text, shown = await run_in_turn(write)
        return LookUpResult(
            text,
            "search",
            shown,
            found,
            found.messages[:shown],
            {conversation.shown_label: conversation.key for conversation in opened.values()},
            tuple(scores[place] for place in kept[:shown]),
        )

    async def _read_places(
        self, places: list[SeqPlace], rights: ReadingRights, conversations: Conversations
    ) -> tuple[dict[str, Conversation], dict[SeqPlace, StoredMessage]]:
        """Read what was found. A message that was forgotten since is left out."""
        opened: dict[str, Conversation] = {}
        stored: dict[SeqPlace, StoredMessage] = {}
        for thread in dict.fromkeys(place.thread for place in places):
            key = rights.key._replace(thread=thread)
            opened[thread] = await conversations.open(key)
            seqs = [place.seq for place in places if place.thread == thread]
            for message in await self.memories.store.messages_by_seq(key, seqs):
                stored[SeqPlace(thread, message.seq)] = StoredMessage(message, 0, "live")
        return opened, stored


def _is_shown_raw(hit: RankedMessage, rights: ReadingRights) -> bool:
    return (
        rights.raw_from is not None
        and hit.thread == rights.key.thread
        and hit.seq >= rights.raw_from
    )


def _unknown_cursor(
    cursor: MessageId, conversation: Conversation, bounds: tuple[int, int] | None
) -> LookUpFault:
    written = write_message_id(cursor.seq, conversation.shown_label)
    return unknown_message(written, bounds, is_current=conversation.is_current)


async def _read_page(
    reader: ThreadMessages,
    look_up: LookUp,
    at_cursor: StoredMessage | None,
    bounds: tuple[int, int] | None,
    limit: int,
) -> Run:
    """Read the page. A cursor that is not live stands among the live messages as if it were."""
    first, last = bounds or (1, 0)
    if bounds and look_up.after is not None:
        first = await reader.find_first_since(look_up.after, bounds)
    if bounds and look_up.before is not None:
        last = await reader.find_first_since(look_up.before, bounds) - 1
    is_extra = at_cursor is not None and at_cursor.state != "live" and not reader.with_superseded
    skip = (abs(look_up.page) - 1) * limit
    shows_extra = is_extra and skip == 0
    skip -= is_extra and skip > 0
    room = limit - shows_extra
    if look_up.page > 0:
        start = first if at_cursor is None else max(first, at_cursor.message.seq)
        run = await reader.read_forward(start, last, skip, room)
        extra = [at_cursor] if shows_extra and at_cursor else []
        return Run(extra + run.messages, run.next_seq)
    end = last if at_cursor is None else min(last, at_cursor.message.seq)
    run = await reader.read_backward(first, end, skip, room)
    extra = [at_cursor] if shows_extra and at_cursor else []
    return Run(run.messages + extra, run.next_seq)
