"""The count of bytes that requests and replies hold, and the release of freed memory."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.wire.server.capacity import budget as budget_module
from om_proxy.wire.server.capacity.budget import (
    COPY_SHARE,
    LARGE_SHARE,
    MIN_RELEASED_BYTES,
    MemoryBudget,
    release_freed_memory,
)

LIMIT = 1_000


async def run_until_idle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_admitted_as_it_is_cancelled() -> None:
    """A body that is admitted and cancelled at once is not charged, and the next one is
    admitted."""
    budget = MemoryBudget(lambda: LIMIT)
    budget.change(700)
    first, second = (asyncio.create_task(budget.wait_and_charge_large(500)) for _ in range(2))
    await run_until_idle()
    budget.change(-600)
    first.cancel()  # in the pass in which its turn came
    await asyncio.wait({first})
    await second
    assert budget.held_bytes == 600


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), st.integers(1, int(LARGE_SHARE * LIMIT))),
            st.tuples(st.sampled_from(["leave", "give up", "copy", "end copy"]), st.integers(0, 9)),
        ),
        max_size=60,
    )
)
def test_any_order(steps: list[tuple[str, int]]) -> None:
    """Bodies come, leave and are cancelled in any order: large bodies and copies never exceed their
    share, all that wait are admitted once the others are gone, and in the end nothing is
    charged."""

    async def play() -> None:
        budget = MemoryBudget(lambda: LIMIT)
        waiting: list[tuple[int, asyncio.Task[None]]] = []
        copies: list[int] = []

        def inside() -> list[int]:
            return [
                n for n, (_, task) in enumerate(waiting) if task.done() and not task.cancelled()
            ]

        for what, number in steps:
            match what:
                case "come":
                    waiting.append((number, asyncio.create_task(has_been_admitted(budget, number))))
                case "leave" if inside():
                    size, _ = waiting.pop(inside()[number % len(inside())])
                    budget.change(-size)
                case "give up" if waiting:
                    waiting[number % len(waiting)][1].cancel()
                case "copy" if budget.charge_copy(100 * number):
                    copies.append(100 * number)
                case "end copy" if copies:
                    budget.change(-copies.pop())
            if number % 2:
                await run_until_idle()
            assert budget.held_bytes <= COPY_SHARE * LIMIT
        while copies:
            budget.change(-copies.pop())
        async with asyncio.timeout(60):
            while waiting:
                await run_until_idle()
                for n in reversed(inside()):
                    budget.change(-waiting.pop(n)[0])
                waiting = [each for each in waiting if not each[1].cancelled()]
        assert (budget.held_bytes, budget.has_waiters) == (0, False)

    asyncio.run(play())


async def has_been_admitted(budget: MemoryBudget, size: int) -> None:
    if not budget.try_charge_large(size):
        await budget.wait_and_charge_large(size)


class Trimming:
    """A double that counts releases, and does not wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given_back = threading.Semaphore(0)
        self.times = 0
        monkeypatch.setattr(budget_module, "RELEASE_DELAYS_S", (0.0, 0.0))
        monkeypatch.setattr(budget_module, "release_freed_memory", self)

    def __call__(self) -> None:
        self.times += 1
        self.given_back.release()

    async def settled(self) -> int:
        for _ in range(20):
            await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)
        return self.times


@pytest.mark.parametrize(("peak", "times"), [(MIN_RELEASED_BYTES - 1, 0), (MIN_RELEASED_BYTES, 2)])
async def test_a_peak_is_released(peak: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once most of a large peak is free, memory is released, and again when the work after it has
    ended. Many small peaks release nothing."""
    trimming, budget = Trimming(monkeypatch), MemoryBudget(lambda: 1 << 30)
    budget.change(peak)
    assert await trimming.settled() == 0
    budget.change(-peak)
    assert await trimming.settled() == times
    budget.change(1_000)
    budget.change(-1_000)
    assert await trimming.settled() == times


async def test_nothing_is_released_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's threads are gone then."""
    trimming, budget = Trimming(monkeypatch), MemoryBudget(lambda: 1 << 30)
    for _ in range(2):
        budget.change(MIN_RELEASED_BYTES)
        budget.change(-MIN_RELEASED_BYTES)
        budget.close()
        assert await trimming.settled() == 0


def test_release_on_any_system() -> None:
    """The release can be called on any system."""
    release_freed_memory()
