"""Large replies are stored one at a time, and none waits for one that the store refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from om_proxy.common.errors import StorageError
from om_proxy.common.reasons import Status
from om_proxy.edge.exchange import Delivery
from om_proxy.edge.turn_closing import TurnClosing
from om_proxy.engine.turns.accounting import NOTHING_ACCOUNTED, AccountedTurn
from om_proxy.engine.turns.turn import NOTHING_COMMITTED, CommittedTurn
from om_proxy.observability.facts import Facts
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.capacity.fair_queue import LARGE_PIECE_BYTES

BIG = Reply(message=b"x" * (LARGE_PIECE_BYTES + 1), complete=True)
SMALL = Reply(message=b"x", complete=True)


class Accountant:
    async def account(self, *_: object) -> AccountedTurn:
        return NOTHING_ACCOUNTED


class Engine:
    """A store that takes replies when the test lets it."""

    accountant = Accountant()

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.kept: list[str] = []
        self.held_bytes: list[int] = []
        self.go_on = asyncio.Event()

    def now(self) -> float:
        return 1.0

    async def commit_or_defer(
        self, _key: Any, commit: Callable[[], Awaitable[None]], held_bytes: int
    ) -> None:
        self.held_bytes.append(held_bytes)
        try:
            await commit()
        except StorageError:
            await asyncio.Event().wait()  # it waits for another try

    async def close_turn(
        self,
        turn: Any,
        reply: Reply,
        _: AccountedTurn,
        *,
        is_end_unseen: bool,
        ended_at: float,
    ) -> CommittedTurn:
        if turn.name == "refused":
            raise StorageError("locked")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go_on.wait()
        self.under_way -= 1
        self.kept.append(turn.name)
        return NOTHING_COMMITTED


class Background:
    def run_detached(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)


def closing(turns: TurnClosing, name: str, reply: Reply) -> asyncio.Task[None]:
    exchange = SimpleNamespace(
        turn=SimpleNamespace(name=name),
        recall=None,
        caller=SimpleNamespace(key=SimpleNamespace(thread="t")),
        body=b"",
        missed_at=None,
        shadow=None,
        delivery=Delivery(),
        overhead_ms=0.4,
        status=Status.RAW,
    )
    return turns.start(cast(Any, exchange), reply, 200)


async def test_one_at_a_time() -> None:
    """Large replies are stored one at a time. Small ones are stored meanwhile."""
    engine = Engine()
    turns = TurnClosing(
        cast(Any, engine),
        cast(Any, Background()),
        MemoryBudget(lambda: 1 << 30),
        Facts(),
    )
    closings = [closing(turns, "large", BIG) for _ in range(5)]
    await asyncio.sleep(0)
    assert engine.most == 1
    closings += [closing(turns, "small", SMALL) for _ in range(5)]
    await asyncio.sleep(0)
    assert engine.most == 6
    engine.go_on.set()
    await asyncio.gather(*closings)
    assert engine.kept.count("large") == engine.kept.count("small") == 5
    assert engine.held_bytes == [len(BIG.message or b"")] * 5 + [1] * 5, (
        "what waits for the store is counted with its reply"
    )


async def test_one_that_is_refused_holds_nobody_up() -> None:
    """The other replies are stored between the tries of one that the store refuses."""
    engine = Engine()
    engine.go_on.set()
    turns = TurnClosing(
        cast(Any, engine),
        cast(Any, Background()),
        MemoryBudget(lambda: 1 << 30),
        Facts(),
    )
    refused = [closing(turns, "refused", BIG) for _ in range(3)]
    await asyncio.wait_for(closing(turns, "large", BIG), 30)
    assert engine.kept == ["large"]
    for task in refused:
        task.cancel()
    await asyncio.wait(refused)
