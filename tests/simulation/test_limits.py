"""Small worlds whose logs are limited (`retention.max_observations`), with observers that note minor
things too: no message is lost, and prompts hold what they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.simulation import minds, words
from tests.simulation.plan import Plan
from tests.simulation.sharing import SharedWorld, plan_of
from tests.simulation.world import World, simulate
from tests.support.long_forms import IS_LONG

SEEDS = range(6) if IS_LONG else range(2, 5)
LIMITED = "retention: {max_observations: 2}\n"


def write_with_minor_lines(bullets: Sequence[str]) -> str:
    answer = words.notes(bullets)
    return answer.replace("\n</observations>", "\n* 🟢 (10:00) small talk\n</observations>")


@pytest.mark.parametrize("made", [World, SharedWorld])
def test_no_seed_breaks_a_promise(made: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every invariant of oracle.py, while entries lose their minor lines."""
    monkeypatch.setattr(minds, "notes", write_with_minor_lines)
    shortened = 0
    for seed in SEEDS:
        rng = Random(seed)
        plan = plan_of(rng) if made is SharedWorld else Plan.of(rng)
        plan = replace(plan, settings=plan.settings + LIMITED)
        world = simulate(seed, plan=plan, made=made)
        assert world.broken is None, f"{seed}: {world.broken}"
        shortened += sum(
            began.why == "limit"
            for thread in world.disk.threads.values()
            for began in thread.beginnings.values()
        )
    assert shortened > 3
