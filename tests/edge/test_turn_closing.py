"""The copy of a reply, and the budget it is charged to."""

from __future__ import annotations

import asyncio
import threading

import orjson
import pytest

from om_proxy.edge.turn_closing import MAX_UNREAD_BYTES, ReplyCopy
from om_proxy.wire.apis.api import MAX_REMEMBERED_REPLY_BYTES, Reply
from om_proxy.wire.apis.chat.reply import ChatReplyReader
from om_proxy.wire.server.capacity.budget import (
    COPY_SHARE,
    COPY_WEIGHT,
    FREE_COPY_BYTES,
    MemoryBudget,
)

MESSAGE = {"role": "assistant", "content": "x" * 1_000_000}
BODY = orjson.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})


async def test_a_small_reply_is_free() -> None:
    """Small replies, which most are, charge nothing and are read even if there is little room."""
    budget = MemoryBudget(lambda: 0)
    copy = ReplyCopy(ChatReplyReader(False), budget)
    body = BODY.replace(b"x" * 999_000, b"")
    assert len(body) < FREE_COPY_BYTES
    copy.feed(body)
    assert ((await copy.finish()).complete, budget.held_bytes) == (True, 0)


@pytest.mark.parametrize("piece", [1_000, 100_000, 2_000_000])
async def test_a_large_reply_is_charged_until_it_is_stored(piece: int) -> None:
    """A large reply is charged as it comes and until `release`, which may be called twice: all but
    the last pieces, which are not read yet. The copy reads the same as a plain reader."""
    budget = MemoryBudget(lambda: 1 << 30)
    copy, reader = ReplyCopy(ChatReplyReader(False), budget), ChatReplyReader(False)
    for start in range(0, len(BODY), piece):
        copy.feed(BODY[start : start + piece])
        reader.feed(BODY[start : start + piece])
        unread_bytes = min(start + piece, len(BODY)) - budget.held_bytes // COPY_WEIGHT
        assert 0 <= unread_bytes < FREE_COPY_BYTES + MAX_UNREAD_BYTES
    assert unread_bytes < MAX_UNREAD_BYTES
    assert await copy.finish() == reader.finish()
    assert budget.held_bytes == COPY_WEIGHT * len(BODY)
    copy.feed(b"behind its end")
    assert budget.held_bytes == COPY_WEIGHT * len(BODY)
    for _ in range(2):
        copy.release()
        assert budget.held_bytes == 0
    assert not copy.is_given_up


async def test_one_for_which_there_is_no_room() -> None:
    """A copy without room is given up. It holds nothing from then on, and is read as an empty
    reply: half a reply must not look like a whole one."""
    budget = MemoryBudget(lambda: int(COPY_WEIGHT * 500_000 / COPY_SHARE))
    copy, other = (
        ReplyCopy(ChatReplyReader(False), budget),
        ReplyCopy(ChatReplyReader(False), budget),
    )
    other.feed(BODY[:100_000])
    for start in range(0, len(BODY), 10_000):
        copy.feed(BODY[start : start + 10_000])
    assert copy.is_given_up
    assert budget.held_bytes == COPY_WEIGHT * 100_000
    assert await copy.finish() == Reply()
    other.feed(BODY[100_000:400_000])
    assert not other.is_given_up


async def test_the_largest_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single reply has a limit of its own, whatever the budget."""
    monkeypatch.setattr("om_proxy.edge.turn_closing.MAX_REMEMBERED_REPLY_BYTES", 200_000)
    budget = MemoryBudget(lambda: 1 << 40)
    copy = ReplyCopy(ChatReplyReader(False), budget)
    copy.feed(BODY[:200_000])
    assert not copy.is_given_up
    copy.feed(b"x")
    assert (await copy.finish(), copy.is_given_up, budget.held_bytes) == (Reply(), True, 0)
    assert MAX_REMEMBERED_REPLY_BYTES == 64 << 20


async def test_one_that_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large reply is read off the event loop. A cancelled caller does not lose it: a second call
    returns the same reply."""
    budget = MemoryBudget(lambda: 1 << 30)
    copy, reader = ReplyCopy(ChatReplyReader(False), budget), ChatReplyReader(False)
    for each in (copy, reader):
        each.feed(BODY.replace(b"x" * 999_000, b"x" * 2_000_000))
    threads = list[threading.Thread]()
    read = reader.finish

    def finish() -> Reply:
        threads.append(threading.current_thread())
        return read()

    monkeypatch.setattr(ChatReplyReader, "finish", lambda _: finish())
    asking = asyncio.create_task(copy.finish())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await copy.finish() == read()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
