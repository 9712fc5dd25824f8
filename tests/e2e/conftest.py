"""A proxy that serves all conversations of a test file, each in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import pytest_asyncio

from tests.e2e.playing import Model, Play, TurnEvents, collect_turn_events
from tests.e2e.running import Running, run_with_scripted_models

numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """With default thresholds, which no test of cases reaches."""
    async with run_with_scripted_models(
        tmp_path_factory.mktemp("cases"), memory="scope: thread", models=Model()
    ) as run:
        yield run


@pytest.fixture(scope="module")
def turn_events() -> Iterator[TurnEvents]:
    with collect_turn_events() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def play(run: Running, turn_events: TurnEvents, request: pytest.FixtureRequest) -> Play:
    """A client with a new thread that asks for whole answers, and one that asks for streams."""
    return Play(run, turn_events, f"case-{next(numbers)}", stream=request.param)
