"""Each decision reaches its performer."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import ModelError
from om_proxy.memory.lifecycle.decisions import Observe, Reflect, Swap
from tests.memory.building import KEY, chat
from tests.support.performing import (
    NOTES,
    open_parts,
)

SIX = Observe(after=0, last=6, tokens=300)


@pytest.mark.parametrize(
    "decision",
    [Observe(2, 6, 200), Observe(0, 0, 0), Reflect(1, 10), Swap()],
    ids=["starts elsewhere", "covers nothing", "fewer entries than asked", "not a slow one"],
)
async def test_a_decision_whose_ground_is_gone(decision: Observe | Reflect | Swap) -> None:
    """It costs no call and changes nothing: what is due now is decided anew."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(4, 50))
        assert await p.worker.perform(KEY, decision, p.context())
        assert p.models.asked == []
        assert await p.memory() == memory


async def test_no_word_reaches_the_log() -> None:
    """The program's log holds neither messages nor notes."""
    async with open_parts(ModelError("prompt: user 1", "set a key"), NOTES) as p:
        await p.store_tail(chat(4, 50))
        with capture_logs() as logs:
            await p.worker.perform(KEY, SIX, p.context())
            await p.worker.perform(KEY, SIX, p.context())
        assert [entry["event"] for entry in logs] == ["observe.failed", "observed"]
        assert logs[0]["advice"] == "set a key"
        assert not [entry for entry in logs if "user 1" in str(entry) or "2.85" in str(entry)]
