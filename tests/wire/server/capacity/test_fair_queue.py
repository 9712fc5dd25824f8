"""One large piece in each pass of the loop, in order. Cancelled waiters are skipped, and a crowd
makes the loop rest."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from om_proxy.wire.server.capacity import fair_queue
from om_proxy.wire.server.capacity.fair_queue import MAX_PIECES_WITHOUT_REST, wait_slot


class Passes:
    """Count the passes of the running loop inside the block."""

    def __init__(self) -> None:
        self.now = 0
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        if self._open:
            self.now += 1
            self._loop.call_soon(self._count)

    def close(self) -> None:
        self._open = False


@pytest.fixture
async def passes() -> AsyncIterator[Passes]:
    counted = Passes()
    yield counted
    counted.close()


async def test_the_only_one_does_not_wait(passes: Passes) -> None:
    before = passes.now
    await wait_slot()
    assert passes.now == before


async def test_one_in_a_pass(passes: Passes) -> None:
    """Pieces run in the order in which they came, and never two in one pass."""
    took: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        await wait_slot()
        took.append((number, passes.now))

    await asyncio.gather(*(work(number) for number in range(MAX_PIECES_WITHOUT_REST)))
    assert [number for number, _ in took] == list(range(MAX_PIECES_WITHOUT_REST))
    at = [now for _, now in took]
    assert at == sorted(set(at))


async def test_a_second_piece_waits_its_turn(passes: Passes) -> None:
    """A second piece waits for all that came before it."""
    took: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await wait_slot()
            took.append(name)

    await asyncio.gather(wait_slot(), work("a"), work("b"))  # so that both have to wait
    assert took == ["a", "b"] * 3


@pytest.mark.parametrize("leaving", [(1,), (1, 2, 3), (3, 4), (4,)])
async def test_who_leaves_is_passed_over(leaving: tuple[int, ...]) -> None:
    took: list[int] = []

    async def work(number: int) -> None:
        await wait_slot()
        took.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in leaving:
        tasks[number].cancel()
    async with asyncio.timeout(30):
        await asyncio.wait(tasks)
        await wait_slot()
    assert took == [number for number in range(5) if number not in leaving]


async def test_cancelled_with_a_slot() -> None:
    """A waiter that is cancelled with its slot does not block the next one."""
    took: list[int] = []

    async def work(number: int) -> None:
        await wait_slot()
        took.append(number)
        if number == 0:
            # after the callback that gives the slot to this task
            asyncio.get_running_loop().call_soon(tasks[1].cancel)

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    async with asyncio.timeout(30):
        await asyncio.wait(tasks)
    assert took == [0, 2]


async def test_a_crowd_lets_the_loop_rest(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop rests while many pieces wait, and no longer for the last ones."""
    monkeypatch.setattr(fair_queue, "MIN_REST_S", 0.005)
    loop, took = asyncio.get_running_loop(), list[float]()

    async def work() -> None:
        await wait_slot()
        took.append(loop.time())

    passes.close()
    await asyncio.gather(*(work() for _ in range(MAX_PIECES_WITHOUT_REST + 6)))
    rests = [after - before >= 0.004 for before, after in pairwise(took)]
    assert sum(rests[:6]) >= 4
    assert sum(rests[8:]) <= MAX_PIECES_WITHOUT_REST // 4


def test_a_loop_is_let_go() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_slot())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
