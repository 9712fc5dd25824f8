"""Work that is left to workers, and nobody does."""

from __future__ import annotations

import pytest

from om_proxy.cli.doctor.threads import MAX_WAITING_S, examine_due_work
from tests.memory.building import KEY, chat
from tests.support.performing import INHERITED, SMALL, open_parts


@pytest.mark.parametrize(
    ("settings", "waited_s", "works"),
    [
        (SMALL, MAX_WAITING_S + 1, False),
        (SMALL, MAX_WAITING_S - 1, True),
        (INHERITED, MAX_WAITING_S + 1, True),
    ],
    ids=["nobody does it", "not yet", "no worker can"],
)
async def test_work_that_waits(settings: str, waited_s: float, works: bool) -> None:
    async with open_parts(settings=settings) as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        (finding,) = await examine_due_work(p.store, memory.due_at + waited_s)
        assert finding.works is works
        assert ("start om-proxy worker" in finding.text) is not works


async def test_work_under_way() -> None:
    """A worker has it."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        await p.store.lease(KEY, "a worker", 100.0)
        (finding,) = await examine_due_work(p.store, memory.due_at + 2 * MAX_WAITING_S)
        assert finding.works
