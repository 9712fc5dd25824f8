"""Each fault of a model server, as its client meets it: the bytes that were sent, the end that it
made, and nothing of our own."""

from __future__ import annotations

from typing import TypeAlias

import orjson
import pytest
import pytest_asyncio

from tests.e2e.faults.cells import GOOD, LIMIT, SLACK, Answered, actor_cells, roles
from tests.e2e.faults.faults import CELLS, FAULTS, Cell, Content, well
from tests.e2e.raw_upstream import drop_receipt
from tests.support.raw_client import RawResponse

pytestmark = pytest.mark.asyncio(loop_scope="module")

Done: TypeAlias = tuple[dict[str, Answered], dict[str, int]]
HELD = {"nothing": [], "question": ["user"], "reply": ["user", "assistant"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return await actor_cells(tmp_path_factory.mktemp("actor"))


async def test_the_faults() -> None:
    """46 of them make 75 cells for each of three roles; of a memory model's, the short form runs
    46. Without an answer to pass on, and only then, there is one of ours."""
    assert (len(FAULTS), len(CELLS), 3 * len(CELLS)) == (46, 75, 225)
    assert [fault.name for fault in FAULTS if fault.ours] == [
        "refused", "name-unknown", "certificate-untrusted", "connect-hangs", "no-reply", "head-trickles"
    ]  # fmt: skip


RATE = 2 << 20  # bytes a second that server, proxy and client in one process make on a busy machine


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_actor(done: Done, cell: Cell) -> None:
    """With a thread and without: status, headers and bytes as sent, no clean end that the server
    did not make, all in time."""
    found = done[0][str(cell)]
    assert found.seconds < LIMIT + SLACK + len(found.with_thread.body) / RATE
    assert found.with_thread.header(b"x-om-status") == [b"raw"]
    for got in (found.with_thread, found.without):
        check(cell, got)
    assert (
        roles(found.after)
        == HELD["reply" if cell.fault.acknowledged and cell.stream else cell.fault.stored]
    )
    assert found.after[:1] in ([], [{"role": "user", "content": "How many?"}])


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_actor_recovers(done: Done, cell: Cell) -> None:
    """The same request again, answered well: the reply stands in the thread, whatever came of the
    first one."""
    found = done[0][str(cell)]
    assert (found.again.status, found.again.body, found.again.whole) == (
        200,
        well(Content(GOOD, cell.stream)).body,
        True,
    )
    assert roles(found.at_last) == ["user", "assistant"]
    assert found.at_last[1]["content"] == GOOD


async def test_nothing_is_left(done: Done) -> None:
    """No place, no connection, no task."""
    assert set(done[1].values()) == {0}, done[1]


def check(cell: Cell, got: RawResponse) -> None:
    wire = cell.wire(Content(GOOD, cell.stream))
    if wire is None:
        assert got.status in cell.fault.ours
        assert got.whole
        assert orjson.loads(got.body)["error"]["type"] == "om_error"
        return
    assert got.status == int(wire.status[:3])
    assert got.body == wire.arrives
    assert got.whole is wire.whole
    sent = [
        (name.lower(), value.strip())
        for name, _, value in (line.partition(b":") for line in wire.headers)
    ]
    framing = (b"content-length", b"transfer-encoding", b"connection")
    assert [header for header in drop_receipt(got) if header[0] not in framing] == sent
