"""A proxy whose conversations people search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.running import Running, run_with_scripted_models


@pytest.fixture
async def harbour_run(tmp_path: Path) -> AsyncIterator[Running]:
    """Two threads of a resource, and one of another tenant's resource with the same names."""
    async with run_with_scripted_models(tmp_path) as running:
        talk = running.chat("crates", **{"x-om-resource": "harbour"})
        for number in range(3):
            await talk.say(f"Crate {number} weighs {number} kg.")
        await running.chat("bees", **{"x-om-resource": "harbour"}).say("The hives hold honey.")
        foreign = running.chat("bees", key="sk-b", **{"x-om-resource": "harbour"})
        await foreign.say("Canary honey.")
        yield running
