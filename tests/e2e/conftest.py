"""A proxy that serves all conversations of a test file, each in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import pytest_asyncio

from tests.e2e.playing import Model, Play, Stories, stories
from tests.e2e.running import Running, running

numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """With default thresholds, which no test of cases reaches."""
    async with running(
        tmp_path_factory.mktemp("cases"), memory="scope: thread", models=Model()
    ) as run:
        yield run


@pytest.fixture(scope="module")
def told() -> Iterator[Stories]:
    with stories() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def play(run: Running, told: Stories, request: pytest.FixtureRequest) -> Play:
    """A client with a new thread that asks for whole answers, and one that asks for streams."""
    return Play(run, told, f"case-{next(numbers)}", stream=request.param)
