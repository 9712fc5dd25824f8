"""Replies that were sent to their end are recorded, whether the commit or the reply ends first."""

from __future__ import annotations

import pytest

from om_proxy.edge.exchange import Delivery
from om_proxy.edge.turn_closing import TurnClosing
from om_proxy.observability.facts import Facts
from om_proxy.wire.server.capacity.budget import MemoryBudget
from tests.engine.turns.test_deliveries import thin
from tests.engine.turns.test_engine import Turns, make_reply, open_turns, user


def closing_of(t: Turns) -> TurnClosing:
    budget = MemoryBudget(lambda: 1 << 30)
    return TurnClosing(t.engine, t.parts.background, budget, Facts())


@pytest.mark.parametrize("is_end_sent", [True, False])
@pytest.mark.parametrize("commit_ends_first", [True, False])
async def test_either_may_end_first(commit_ends_first: bool, is_end_sent: bool) -> None:
    """A reply waits for its commit a limited time. If the commit ends later, the delivery is
    recorded then, and the same message sent again is a new one. Without a delivery it is a
    retry."""
    async with open_turns() as t:
        await thin(t, "a", "b", delivered=True)
        turn, delivery, closing = await t.open([user("ok")]), Delivery(), closing_of(t)

        async def commit() -> None:
            await closing._commit_turn(
                turn, make_reply("c"), delivery, is_end_unseen=False, ended_at=t.parts.clock.now
            )

        if commit_ends_first:
            await commit()
        delivery.is_end_sent = is_end_sent
        closing._record_delivery(turn, delivery)
        if not commit_ends_first:
            await commit()
        again = await thin(t, "ok", "d", delivered=True)
        assert again == ("delta" if is_end_sent else "retry")
