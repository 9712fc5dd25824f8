"""Time-outs of a process that may stand still."""

from __future__ import annotations

import asyncio
import time

import pytest

from om_proxy.common.running_time import Deadline, limit_running_time, wait_running_time
from om_proxy.engine.turns import deferred
from om_proxy.engine.turns.deferred import DeferredTurns
from om_proxy.storage.spooling import spool_flusher
from tests.memory.building import KEY

LIMIT_S = 0.2


async def test_a_stop_is_no_time_out() -> None:
    """What was answered while the process stood still has not failed."""
    answered = asyncio.Event()
    async with limit_running_time(LIMIT_S):
        asyncio.get_running_loop().call_later(LIMIT_S / 2, answered.set)
        await asyncio.sleep(0)
        time.sleep(2 * LIMIT_S)  # noqa: ASYNC251 - the process stands still
        await answered.wait()
        await asyncio.sleep(0)


async def test_what_is_not_answered_in_time() -> None:
    """It fails after the whole time, and not twice."""
    began_at = time.monotonic()
    with pytest.raises(TimeoutError):
        async with limit_running_time(LIMIT_S):
            await asyncio.Event().wait()
    assert time.monotonic() - began_at >= LIMIT_S
    async with limit_running_time(LIMIT_S):
        pass
    await asyncio.sleep(LIMIT_S / 2)


async def stand_still(answered: asyncio.Event) -> None:
    """Let the process stand still until long after the answer was due."""
    asyncio.get_running_loop().call_later(LIMIT_S / 2, answered.set)
    await asyncio.sleep(0)
    time.sleep(2 * LIMIT_S)  # noqa: ASYNC251 - the process stands still
    await answered.wait()
    await asyncio.sleep(0)


async def test_a_stop_ends_no_wait_for_a_task() -> None:
    """The end of a reply waits for its commit, also over a stop."""
    task = asyncio.create_task(stand_still(asyncio.Event()))
    await wait_running_time(task, LIMIT_S)
    assert task.done()
    held = asyncio.get_running_loop().create_future()
    await wait_running_time(held, LIMIT_S / 4)
    assert not held.done()


async def test_a_stop_cuts_no_request_that_is_opened() -> None:
    await Deadline(LIMIT_S).run(stand_still(asyncio.Event()))


async def test_a_stop_cuts_no_commit_of_waiting_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is cut may be written all the same."""
    monkeypatch.setattr(deferred, "COMMIT_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(spool_flusher, "FLUSH_TIMEOUT_S", LIMIT_S)
    tries: list[int] = []

    async def commit() -> None:
        tries.append(1)
        await stand_still(asyncio.Event())

    waiting = DeferredTurns()
    waiting.defer(KEY, commit, 1)
    await waiting.commit_waiting(KEY)
    await spool_flusher._run_in_time(commit())
    assert (len(tries), waiting.turn_count) == (2, 0)
