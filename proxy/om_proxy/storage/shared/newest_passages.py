"""Search a store without an index: read the newest messages of the resource.

Redis has no index, and a store with encryption keeps none: its words would tell the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, ParamSpec, TypeVar, cast

from om_proxy.common.errors import UnopenedText, Unwritable
from om_proxy.common.off_loop import run_off_loop
from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.found import (
    MAX_MATCHES,
    NO_FILTER,
    Found,
    FoundPassage,
    PassageFilter,
    match_passages,
)
from om_proxy.memory.recall.passages import IndexPlace, MessageText, Passage, cut_passages
from om_proxy.storage.contract.memories import StoredThreads, ThreadLists
from om_proxy.storage.contract.passage_index import (
    IndexCheck,
    PassageIndex,
    UnindexedMessages,
    VectorIndex,
    VectorPage,
)
from om_proxy.storage.forwarding_store import Method
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace, ThreadSelection
from om_proxy.wire.apis.message_parts import read_indexed_text

NEWEST_MESSAGES = 2_000
MAX_SEARCHED_THREADS = 200  # a thread is read in two round trips
MAX_LISTED_THREADS = 2_000
THREADS_A_READ = 500
MAX_READS_OF_LATEST = 5  # each walks over 2 000 threads of the tenant at most
# of messages that may hold images: so many are in memory at once
MESSAGES_A_READ = 100
MAX_READ_CHARS = 8 * 2**20  # of all texts; what is older counts as not read
# words of so many messages are made in a thread of their own: about 0.1 ms each
MANY_SEARCHED_MESSAGES = 50


class _ReadThread(NamedTuple):
    messages: int  # that were read: the newest
    chars: int
    passages: list[FoundPassage]


async def find_newest_passages(
    store: StoredThreads, key: Key, words: Sequence[str], passage_filter: PassageFilter, limit: int
) -> Found:
    """Return what `PassageIndex.find_passages` would, if the index held the newest NEWEST_MESSAGES
    messages of the resource, of the threads with the latest turns. A thread that does not open
    counts as not read."""
    threads, unread = await _read_newest(store, key)
    # the newest come last
    passages = [passage for thread in reversed(threads) for passage in thread.passages]

    def match() -> Found:
        return match_passages(passages, words, passage_filter, unread=unread, limit=limit)

    return await run_off_loop(len(passages), match, MANY_SEARCHED_MESSAGES)


async def _read_newest(store: StoredThreads, key: Key) -> tuple[list[_ReadThread], int]:
    """Return the threads with the latest turns, the latest first, and the number of messages that
    are not read. No other resource is looked at."""
    listed, unread = await list_latest_threads(store, key), 0
    threads: list[_ReadThread] = []
    room, chars = NEWEST_MESSAGES, MAX_READ_CHARS
    for info in listed:
        is_read = room and chars > 0 and len(threads) < MAX_SEARCHED_THREADS
        thread = await _read_thread(store, info.key, room, chars) if is_read else None
        threads += [thread] if thread else []
        read_count = thread.messages if thread else 0
        room -= read_count
        chars -= thread.chars if thread else 0
        unread += max(0, info.messages - read_count)
    return threads, unread


async def list_latest_threads(store: ThreadLists, key: Key) -> list[ThreadInfo]:
    """Return the threads of the resource, the latest turn first; of more than MAX_LISTED_THREADS
    the first by name, and some of those with the latest turns."""
    listed: dict[int, ThreadInfo] = {}
    cursor: Key | None = None
    while len(listed) < MAX_LISTED_THREADS:
        page = await store.threads(key.tenant, key.resource, cursor, THREADS_A_READ)
        listed |= {info.row_id: info for info in page}
        if len(page) < THREADS_A_READ:
            break
        cursor = page[-1].key
    else:
        listed |= await find_latest_threads(store, key)
    return sorted(listed.values(), key=lambda info: (info.active_at, info.row_id), reverse=True)


async def find_latest_threads(store: ThreadLists, key: Key) -> dict[int, ThreadInfo]:
    """Return threads of the resource with the latest turns, by row id: those among the latest of
    its tenant, of which a bounded number is looked at."""
    selection = ThreadSelection(key.tenant, key.resource, order="recent")
    found: dict[int, ThreadInfo] = {}
    place: ThreadPlace | None = None
    for _ in range(MAX_READS_OF_LATEST):
        page = await store.find_threads(selection, place, MAX_SEARCHED_THREADS)
        found |= {info.row_id: info for info in page.threads}
        place = page.end
        if place is None or len(found) >= MAX_SEARCHED_THREADS:
            break
    return found


async def _read_thread(
    store: StoredThreads, key: Key, limit: int, max_chars: int
) -> _ReadThread | None:
    """Read the newest messages of a thread until their texts have `max_chars`. Of a message only
    its texts are kept, and of these only the words."""
    texts: list[MessageText] = []
    chars = 0
    try:
        memory = await store.load(key)
        # numbers are never more than messages: superseded ones leave gaps
        first, last = max(0, memory.end - limit), memory.end
        while last > first and chars < max_chars:
            after = max(first, last - MESSAGES_A_READ)
            read = await _read_texts(await store.messages(key, after, last))
            chars += sum(map(_count_chars, read))
            texts[:0] = read
            last = after
    except UnopenedText:
        return None

    count = len(texts)
    texts.reverse()

    def cut() -> list[FoundPassage]:
        # each text goes once its words are made
        passages, _ = cut_passages(_take_from_end(texts), IndexPlace(), memory.timezone)
        return [FoundPassage(key.thread, passage) for passage in passages]

    passages = await run_off_loop(count, cut, MANY_SEARCHED_MESSAGES)
    return _ReadThread(count, chars, passages)


def _take_from_end(texts: list[MessageText]) -> Iterator[MessageText]:
    while texts:
        yield texts.pop()


async def _read_texts(messages: Sequence[Message]) -> list[MessageText]:
    return await run_off_loop(
        len(messages), lambda: list(map(read_indexed_text, messages)), MANY_SEARCHED_MESSAGES
    )


def _count_chars(text: MessageText) -> int:
    return sum(map(len, (*text.spoken, *text.called, *text.result)))


P = ParamSpec("P")
T = TypeVar("T")


def answer(_method: Method[P, T], always: T) -> Method[P, T]:
    """Return this method of a store as one with the same answer to every call."""

    async def answer_call(
        _self: SearchedWithoutIndex, /, *_args: P.args, **_options: P.kwargs
    ) -> T:
        return always

    return answer_call


class SearchedWithoutIndex:
    """The `PassageIndex` protocol: a search reads the newest messages, and nothing is indexed."""

    read_unindexed = answer(PassageIndex.read_unindexed, None)
    unindexed_threads = answer(PassageIndex.unindexed_threads, ThreadPage((), None))
    unindexed_of_resource = answer(PassageIndex.unindexed_of_resource, ())
    outdate_index = answer(PassageIndex.outdate_index, None)
    drop_index = answer(PassageIndex.drop_index, None)
    check_index = answer(PassageIndex.check_index, IndexCheck(0, 0, ()))
    read_unembedded = answer(VectorIndex.read_unembedded, ())
    write_vectors = answer(VectorIndex.write_vectors, 0)
    unembedded_threads = answer(VectorIndex.unembedded_threads, ThreadPage((), None))
    read_vectors = answer(VectorIndex.read_vectors, VectorPage((), None))
    read_vectors_at = answer(VectorIndex.read_vectors_at, ())

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        return await find_newest_passages(
            cast("StoredThreads", self), key, words, passage_filter, limit
        )

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        raise Unwritable("this store keeps no index")
