"""Requested work waits in order, is joined by equal wishes, and always ends."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import ModelError, Overloaded
from om_proxy.engine.background import thread_run
from om_proxy.engine.background.thread_run import RequestedWork, RequestedWorkQueue
from om_proxy.memory.lifecycle.decisions import ObserveNow, ReflectNow
from om_proxy.memory.model import Key

KEY = Key("tenant", "resource", "thread")
OTHER_THREAD = KEY._replace(thread="other")


async def test_the_work_of_a_thread_comes_in_order() -> None:
    queue = RequestedWorkQueue()
    first, second = RequestedWork(KEY, ObserveNow(), "1"), RequestedWork(KEY, ReflectNow(), "2")
    for work in (first, second):
        assert queue.add(work) is work
    assert (KEY in queue, OTHER_THREAD in queue) == (True, False)
    assert queue.take(OTHER_THREAD) is None
    assert queue.take(KEY) is first
    queue.put_back(first)
    assert [queue.take(KEY), queue.take(KEY), queue.take(KEY)] == [first, second, None]
    assert KEY not in queue


async def test_an_equal_wish_joins_what_waits() -> None:
    """Two people who ask for the same get one call. What has begun is joined no more."""
    queue = RequestedWorkQueue()
    first = queue.add(RequestedWork(KEY, ObserveNow(), "1"))
    assert queue.add(RequestedWork(KEY, ObserveNow(), "2")) is first
    assert queue.add(RequestedWork(KEY, ObserveNow(all=True), "3")).cycle_id == "3"
    assert queue.add(RequestedWork(OTHER_THREAD, ObserveNow(), "4")).cycle_id == "4"
    queue.take(KEY)
    assert queue.add(RequestedWork(KEY, ObserveNow(), "5")).cycle_id == "5"


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_run, "MAX_REQUESTED_WORK", 1)
    queue = RequestedWorkQueue()
    queue.add(RequestedWork(KEY, ObserveNow(), "1"))
    with pytest.raises(Overloaded):
        queue.add(RequestedWork(OTHER_THREAD, ObserveNow(), "2"))


async def test_the_end_of_the_process_is_heard_of() -> None:
    queue = RequestedWorkQueue()
    work = queue.add(RequestedWork(KEY, ObserveNow(), "1"))
    queue.give_up(Overloaded("stopping"))
    with pytest.raises(Overloaded, match="stopping"):
        await work.wait(1)
    assert KEY not in queue


async def test_the_outcome() -> None:
    """In time, too late, or an error; the first end counts."""
    done = RequestedWork(KEY, ObserveNow(), "1")
    assert not await done.wait(0.001)
    done.finish()
    done.finish(ModelError("later"))
    assert await done.wait(1)
    failed = RequestedWork(KEY, ObserveNow(), "1")
    failed.finish(ModelError("no"))
    with pytest.raises(ModelError, match="no"):
        await failed.wait(1)
