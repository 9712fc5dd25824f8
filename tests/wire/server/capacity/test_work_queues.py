"""Slots for what people start: shared between tenants, bounded, and never left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from om_proxy.common.errors import Overloaded
from om_proxy.wire.server.capacity import work_queues
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.capacity.work_queues import UNKNOWN_KEYS, Share, Slot, WorkKind, WorkQueue

MIB = 2**20
KIND = WorkKind(name="digging", covers="", at_once=3, of_tenant=2, waiting=3, held_bytes=10 * MIB)
Taking = asyncio.Task[Slot]


def create_queue(memory: int = 1_000 * MIB) -> tuple[WorkQueue, MemoryBudget]:
    budget = MemoryBudget(lambda: memory)
    return WorkQueue(KIND, budget), budget


async def begin(queue: WorkQueue, share: Share) -> Taking:
    """Begin to take a slot, and go on until it is taken or waits."""
    taking = asyncio.create_task(queue.take(share))
    await asyncio.sleep(0)
    return taking


async def end(taking: Taking) -> None:
    with taking.result():
        pass
    await asyncio.sleep(0)


async def test_tenants_take_turns() -> None:
    """However many requests of one wait, another's is next."""
    queue, _ = create_queue()
    first, second, third, fourth = [await begin(queue, "ada") for _ in range(4)]
    other = await begin(queue, "ben")
    assert [task.done() for task in (first, second, third, other)] == [True, True, False, False]
    await end(first)
    assert third.done()  # it came first
    another = await begin(queue, "ben")
    await end(second)
    assert other.done()
    assert not fourth.done()
    await end(third)
    assert fourth.done()
    assert not another.done()
    for task in (other, fourth):
        await end(task)
    await end(another)
    assert (queue.running_count, queue.waiting_count) == (0, 0)


async def test_one_tenant_leaves_room() -> None:
    kind = WorkKind(name="", covers="", at_once=4, of_tenant=2, waiting=3, held_bytes=0)
    queue = WorkQueue(kind, MemoryBudget(lambda: MIB))
    ada = [await begin(queue, "ada") for _ in range(3)]
    assert [task.done() for task in ada] == [True, True, False]
    other = await begin(queue, "ben")
    assert other.done()
    await end(other)
    assert not ada[2].done()  # the slot is for others
    await end(ada[0])
    assert ada[2].done()


async def test_unknown_keys_may_have_fewer() -> None:
    queue = WorkQueue(replace(KIND, of_unknown=1), MemoryBudget(lambda: 1_000 * MIB))
    unknown = [await begin(queue, UNKNOWN_KEYS) for _ in range(2)]
    assert [task.done() for task in unknown] == [True, False]
    assert (await begin(queue, "ada")).done()


async def test_the_last_slot_is_the_admins() -> None:
    queue, _ = create_queue()
    tenants = [await begin(queue, name) for name in ("ada", "ben", "eve")]
    assert [task.done() for task in tenants] == [True, True, False]
    admin = await begin(queue, None)
    assert admin.done()
    await end(admin)
    assert not tenants[2].done()


async def test_a_full_line_refuses_at_once() -> None:
    """Without a pass of the event loop. Another tenant may still wait."""
    queue, _ = create_queue()
    for _ in range(KIND.of_tenant + KIND.waiting):
        await begin(queue, "ada")
    with pytest.raises(Overloaded):
        queue.take("ada").send(None)
    assert not (await begin(queue, "ben")).done()
    assert queue.waiting_count == KIND.waiting + 1


async def test_all_lines_together_are_bounded() -> None:
    queue, _ = create_queue()
    await begin(queue, "ada")
    await begin(queue, "ben")
    for number in range(KIND.max_waiting):
        await begin(queue, f"tenant {number}")
    with pytest.raises(Overloaded):
        queue.take("one more").send(None)


async def test_who_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queues, "MAX_WAIT_S", 0.001)
    queue, _ = create_queue()
    for _ in range(KIND.of_tenant):
        await begin(queue, "ada")
    with pytest.raises(Overloaded):
        await queue.take("ada")
    assert queue.waiting_count == 0


@pytest.mark.parametrize("is_its_turn", [False, True])
async def test_a_cancelled_waiter_leaves_nothing(is_its_turn: bool) -> None:
    """Not even one that gets its slot in the moment in which it is cancelled."""
    queue, budget = create_queue()
    first, second = [await begin(queue, "ada") for _ in range(2)]
    leaving, staying = [await begin(queue, "ada") for _ in range(2)]
    if is_its_turn:
        with first.result():
            pass
        leaving.cancel()
    else:
        leaving.cancel()
        with first.result():
            pass
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    await asyncio.sleep(0)
    assert staying.done()
    assert queue.waiting_count == 0
    await end(second)
    await end(staying)
    assert (queue.running_count, budget.held_bytes) == (0, 0)


async def test_what_runs_is_charged() -> None:
    """What waits holds nothing. Where memory has no room, work is refused, also in line."""
    queue, budget = create_queue(memory=100 * MIB)
    first, second, third = [await begin(queue, "ada") for _ in range(3)]
    assert budget.held_bytes == 2 * KIND.held_bytes
    budget.change(80 * MIB)
    with pytest.raises(Overloaded):
        await queue.take(None)
    await end(first)
    assert isinstance(third.exception(), Overloaded)
    budget.change(-80 * MIB)
    await end(second)
    assert budget.held_bytes == 0


async def test_a_small_budget_has_room_for_some_work() -> None:
    queue, budget = create_queue(memory=8 * MIB)
    with await queue.take("ada"), await queue.take("ada"):
        assert budget.held_bytes == 2 * MIB
    assert budget.held_bytes == 0


async def test_any_order_keeps_the_bounds() -> None:
    """Random requests, ends and cancellations: no bound is passed, and in the end all is free."""
    dice = Random(7)
    queue, budget = create_queue()
    tasks: list[tuple[Share, Taking]] = []
    for _ in range(2_000):
        share = dice.choice(["ada", "ben", "eve", None])
        match dice.randrange(3):
            case 0:
                tasks.append((share, await begin(queue, share)))
            case 1 if tasks:
                _, task = tasks.pop(dice.randrange(len(tasks)))
                if not task.cancel() and not task.exception():
                    await end(task)
                await asyncio.sleep(0)
            case _:
                await asyncio.sleep(0)
        tasks = [each for each in tasks if not each[1].done() or not each[1].exception()]
        running = [share for share, task in tasks if task.done()]
        assert queue.running_count == len(running) <= KIND.at_once
        assert sum(share is not None for share in running) < KIND.at_once
        assert all(running.count(share) <= KIND.of_tenant for share in running)
        assert budget.held_bytes == len(running) * KIND.held_bytes
        assert queue.waiting_count == len(tasks) - len(running)
    while tasks:
        [(_, task), *_] = [each for each in tasks if each[1].done()]
        await end(task)
        tasks = [each for each in tasks if each[1] is not task]
    assert (queue.running_count, queue.waiting_count, budget.held_bytes) == (0, 0, 0)
