"""Large replies wait for slots while they are relayed. Small ones pass between them, and the reader
gets the same bytes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from om_proxy.edge.relay import RelayResult, relay
from om_proxy.wire.server.capacity.fair_queue import LARGE_PIECE_BYTES
from om_proxy.wire.upstream import UpstreamResponse
from tests.edge.test_relay import JSON, ONE, SSE, Chunks, Recorder, answer_of

MUCH = b'data: {"choices":[{"index":0,"delta":{"content":"a story"}}]}\n\n' * 2_000
BODY = b"x" * (LARGE_PIECE_BYTES + 1)


class Order:
    """Whose bytes were sent and read, one after the other."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def relay(self, name: str, answer: UpstreamResponse) -> RelayResult:
        recorder = Recorder()
        recorder.send = recorder.feed = lambda *_: self._note(name)  # type: ignore[method-assign, assignment] # neither looks at it
        return await relay(answer, recorder.send, reader=recorder)

    def _note(self, name: str) -> asyncio.Future[None]:
        self.names.append(name)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


@pytest.mark.parametrize("large", [[(JSON, BODY)] * 20, [(SSE, MUCH)] * 20], ids=["out", "read"])
async def test_a_small_one_passes_between(large: list[tuple[tuple[bytes, bytes], bytes]]) -> None:
    """A small reply that comes last is done when few of the large chunks are."""
    order = Order()
    answers = [await answer_of(Chunks(*[body] * 5), kind) for kind, body in large]
    small = await answer_of(Chunks(ONE, ONE), SSE)
    relays = [asyncio.create_task(order.relay("large", answer)) for answer in answers]
    await asyncio.create_task(order.relay("small", small))
    assert order.names.count("large") - len(relays) <= 5, (
        "of two hundred and more; heads do not take turns"
    )
    for outcome in await asyncio.gather(*relays):
        assert outcome.outcome == "complete"


async def test_leaving_in_the_queue() -> None:
    """A client that leaves while others have their slots gets no more, and its answer is closed."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bodies = [Chunks(*[BODY] * 3) for _ in range(5)]
    answers = [await answer_of(body, JSON) for body in bodies]
    recorders = [Recorder() for _ in bodies]
    relays = [
        asyncio.create_task(relay(answer, recorder.send, disconnected=gone if at == 2 else None))
        for at, (answer, recorder) in enumerate(zip(answers, recorders, strict=True))
    ]
    await asyncio.sleep(0)
    gone.set_result(None)
    async with asyncio.timeout(30):
        relayed = await asyncio.gather(*relays)
    assert relayed[2] == RelayResult("disconnected", 0, False)
    assert [one for at, one in enumerate(relayed) if at != 2] == [
        RelayResult("complete", 3 * len(BODY), True)
    ] * 4
    assert all(body.closed for body in bodies)


async def test_what_a_large_part_comes_to_waits_for_a_turn() -> None:
    """The incomplete replies of hundreds of clients that leave at once are not all read in the same
    moment."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    passes, stalled, ended = 0, 0, list[int]()

    def count() -> None:
        nonlocal passes
        passes += 1
        if len(ended) < 10:
            asyncio.get_running_loop().call_soon(count)

    async def one(answer: UpstreamResponse) -> None:
        chunks = 0

        async def send(message: Message) -> None:
            nonlocal chunks, stalled
            chunks += bool(message.get("body"))
            if chunks == 2:
                stalled += 1
                await asyncio.Event().wait()

        assert (
            await relay(answer, send, reader=Recorder(), disconnected=gone)
        ).outcome == "disconnected"
        ended.append(passes)

    answers = [await answer_of(Chunks(BODY, BODY), JSON) for _ in range(10)]
    leaving = asyncio.gather(*map(one, answers))
    count()
    async with asyncio.timeout(30):
        while stalled < 10:  # noqa: ASYNC110 - what is counted tells nobody; bounded above
            await asyncio.sleep(0)
        gone.set_result(None)
        await leaving
    assert len(set(ended)) == len(ended)
