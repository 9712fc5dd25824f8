"""`scripts/bench parts`: what it measures is what a server runs. Nothing is timed here."""

from __future__ import annotations

import asyncio

import pytest

from tests.bench.request_parts import REPLY, TURNS_BEFORE, list_parts, open_turns


@pytest.mark.parametrize(("name", "turns_before"), TURNS_BEFORE.items())
def test_the_turns(name: str, turns_before: int) -> None:
    """A raw turn goes upstream as it came, and an applied one behind notes. The retry gets the
    stored reply."""
    turns = asyncio.run(open_turns(turns_before))
    assert (turns.first.status, turns.retry.status) == (name, name)
    assert [turn.opened.case for turn in turns] == ["extend", "retry"]
    assert turns.first.mark
    assert bool(turns.first.mark.prefix) == (name == "applied")


def test_every_part_runs() -> None:
    assert REPLY.usage is not None
    parts = list_parts()
    assert len({part.name for part in parts}) == len(parts) == 8
    for part in parts:
        part.run(2)
