"""Each fault of a model server, as observer and reflector meet it: chat never knows, memory stays
as it was, and comes back by itself."""

from __future__ import annotations

import pytest
import pytest_asyncio
from msgspec.structs import replace

from om_proxy.memory.model import Memory
from tests.e2e.faults.cells import GOOD, MEMORY_CELLS, MIND_LIMIT, SLACK, Remembered, memory_cells
from tests.e2e.faults.faults import Cell, Content, well

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Done:
    def __init__(self, role: str, found: dict[str, Remembered], leaks: dict[str, int]) -> None:
        self.role = role
        self.found = found
        self.leaks = leaks


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["observer", "reflector"])
async def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(
        request.param, *await memory_cells(tmp_path_factory.mktemp(request.param), request.param)
    )


@pytest.mark.parametrize("cell", MEMORY_CELLS, ids=str)
async def test_chat(done: Done, cell: Cell) -> None:
    """Every request is answered, in time, with its model's own bytes."""
    found = done.found[str(cell)]
    expected = well(Content(GOOD, cell.stream)).body
    assert {(got.status, got.body, got.whole) for got in found.chats} == {(200, expected, True)}
    assert not [
        why for got in found.chats for why in got.header(b"x-om-status") if why == b"degraded"
    ]
    assert found.longest < SLACK
    assert found.work < MIND_LIMIT + SLACK


@pytest.mark.parametrize("cell", MEMORY_CELLS, ids=str)
async def test_memory(done: Done, cell: Cell) -> None:
    """A failure changes nothing but that nobody asks again for a while; an odd but whole answer is
    an answer."""
    found = done.found[str(cell)]
    if cell.fault.harmless:
        assert made(done.role, found.failed)
        return
    assert remembered(found.failed) == remembered(found.before)
    assert backs_off(done.role, found.failed)
    assert found.calls[0] == found.calls[1], "asked again in the back-off"
    assert (found.calls[0] > 0) is (cell.fault.wire is not None)


@pytest.mark.parametrize("cell", MEMORY_CELLS, ids=str)
async def test_recovery(done: Done, cell: Cell) -> None:
    """The next good answer ends it."""
    found = done.found[str(cell)]
    assert made(done.role, found.at_last)
    assert not found.at_last.failures.count


async def test_nothing_is_left(done: Done) -> None:
    """No place, no connection, no task."""
    assert set(done.leaks.values()) == {0}, done.leaks


def remembered(memory: Memory) -> tuple[object, ...]:
    """Of what is known of the conversation, all that is no message."""
    return (
        memory.coverage,
        memory.log.entries,
        memory.chunks,
        memory.log.reflection,
        memory.log.generation,
    )


def backs_off(role: str, memory: Memory) -> bool:
    if role == "reflector":
        return memory.log.unproductive_tokens == memory.log.tokens > 0
    return (
        memory.failures == replace(memory.failures, count=1, suspended=False)
        and memory.failures.retry_at > 0
    )


def made(role: str, memory: Memory) -> bool:
    return (
        bool(memory.chunks)
        if role == "observer"
        else memory.log.reflection is not None or memory.log.generation > 0
    )
