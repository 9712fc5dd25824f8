"""Clients of many kinds on a real store: every prompt tells all that was said, once, with the calls of
its results. `scripts/simulate --prompts 20000` does the same for longer."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.prompts.clients import KINDS, Kind
from tests.e2e.prompts.running import find_faulty, place_of_file, render, run_prompts

PROMPTS_OF_KIND = 14


def choose_kinds() -> dict[str, Kind]:
    return {name: kind for name, kind in KINDS.items() if not kind.limit}


async def test_prompts_on_a_file(tmp_path: Path) -> None:
    kinds = choose_kinds()
    world = await run_prompts(
        place_of_file(tmp_path), kinds, prompts=PROMPTS_OF_KIND * len(kinds), clients=len(kinds)
    )
    assert not find_faulty(world, kinds), render(world, kinds)
    assert {name for name, tally in world.tallies.items() if tally.prompts} == kinds.keys()


async def test_a_file_that_is_away(tmp_path: Path) -> None:
    """Windows and newest messages of a process that started without its file are kept."""
    kinds = {name: KINDS[name] for name in ("window", "window-with-tools", "newest-only")}
    world = await run_prompts(place_of_file(tmp_path), kinds, prompts=80, outages=1, clients=4)
    assert not find_faulty(world, kinds), render(world, kinds)
    assert world.outages
