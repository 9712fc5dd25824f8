"""Decisions are told where somebody asks for them, each with its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from om_proxy.engine.background.due_work import Work, describe_decision, report_decision
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Activate, Observe, Reflect, Swap
from om_proxy.observability.facts import Decided, Fact, Facts
from tests.e2e.running import run_with_scripted_models
from tests.memory.building import KEY


@pytest.mark.parametrize(
    ("decision", "word", "numbers"),
    [
        (None, "nothing", {}),
        (Swap(), "swap", {}),
        (Activate(2, "idle"), "activate", {"count": 2, "why": "idle"}),
        (
            Observe(3, 9, 700, True),
            "observe",
            {"after": 3, "last": 9, "tokens": 700, "wait": True},
        ),
        (
            Reflect(4, 900, instruction="a person's own words"),
            "reflect",
            {"entries": 4, "accept_below": 900, "wait": False},
        ),
        (ObserveBatch(((KEY, KEY), (KEY,))), "observe", {"calls": 2, "threads": 3}),
        (ActivateIdle((KEY,)), "activate", {"threads": 1, "why": "ttl"}),
    ],
)
def test_each_decision_has_its_word(
    decision: Work | None, word: str, numbers: dict[str, Any]
) -> None:
    assert describe_decision(KEY, "background", decision) == Decided(
        KEY, "background", word, numbers
    )


def test_decisions_are_told_on_demand() -> None:
    told: list[Fact] = []
    for tells_decisions in (False, True):
        facts = Facts(told.append, tells_decisions=tells_decisions)
        report_decision(facts, KEY, "request", Swap())
    assert told == [Decided(KEY, "request", "swap", {})]


async def test_a_live_server_tells_each_decision(tmp_path: Path) -> None:
    """Those of requests and of the background, even where nothing is due."""
    async with run_with_scripted_models(tmp_path, telemetry="debug_events: true") as run:
        told: list[Decided] = []

        def keep_decision(fact: Fact) -> None:
            if isinstance(fact, Decided):
                told.append(fact)

        run.app.facts.subscribe(keep_decision)
        chat = run.chat()
        for _ in range(8):
            await chat.say("The blue crate weighs nine kilos and stands at dock three. " * 20)
        await run.app.background.wait_idle()
    found = {(fact.place, fact.decision) for fact in told}
    assert found >= {
        ("request", "nothing"),
        ("request", "activate"),
        ("background", "nothing"),
        ("background", "observe"),
    }
