"""Clients that leave by the thousand, over a pool of ten connections, and what is left of them
afterwards: scripts/hangups."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

import orjson

from om_proxy.app.app import App
from om_proxy.observability.logs import configure_log
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.upstream import AiohttpTransport
from tests.e2e.faults.httpx_relay import HttpxRelay
from tests.e2e.faults.leavers import (
    HELD,
    PHASES,
    POOL,
    TOGETHER,
    WITHIN,
    Clients,
    Hangup,
    ModelServer,
)
from tests.support.upstream_server import UpstreamServer, run_upstream_server

AT_MOST_LATE = 0.001  # share of the hang-ups that may take longer
AFTERWARDS = 100  # requests that must succeed when all is over
PATIENCE = 5.0  # seconds after which a client that waits for something is stuck
SPARE = {"descriptors": 2 * POOL}  # both ends of what the pool keeps
# times as many clients leave by themselves as leave in one instant; a gateway that stops takes all
# of its own with it
ALONE = 2

Against = Literal["proxy", "httpx"]


@dataclass
class Outcome:
    hangups: list[Hangup]
    succeeded: int  # of AFTERWARDS
    left: dict[str, int]  # what is held although nobody asks any more
    wrong: list[str]  # what threads hold and should not, or the other way round
    within: float  # seconds in which an upstream connection must be closed

    @property
    def lags(self) -> list[float]:
        return sorted(lag for hangup in self.hangups if (lag := hangup.lag) is not None)

    @property
    def late(self) -> int:
        return sum(lag > self.within for lag in self.lags)

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = [f"{n} {what} left behind" for what, n in self.left.items() if n]
        stuck = Counter(hangup.phase for hangup in self.hangups if hangup.stuck)
        found += [
            f"{n} clients were stuck that wanted to leave: {phase}" for phase, n in stuck.items()
        ]
        if self.late > AT_MOST_LATE * len(self.lags):
            found.append(
                f"{self.late} of {len(self.lags)} upstream connections were not closed within {self.within} s"
            )
        if self.succeeded < AFTERWARDS:
            found.append(f"{self.succeeded} of {AFTERWARDS} requests succeeded afterwards")
        return found + self.wrong

    def table(self) -> Iterator[str]:
        row = "{:<32}{:>10}{:>10}{:>8}{:>12}{:>12}"
        yield row.format("the client left", "hang-ups", "to close", "late", "median", "longest")
        for phase in (*PHASES, TOGETHER, "all"):
            of_phase = [h for h in self.hangups if phase in (h.phase, "all")]
            lags = sorted(lag for h in of_phase if (lag := h.lag) is not None)
            times = (
                f"{1_000 * lag:.1f} ms"
                for lag in ((lags[len(lags) // 2], lags[-1]) if lags else (0.0, 0.0))
            )
            yield row.format(
                phase, len(of_phase), len(lags), sum(lag > self.within for lag in lags), *times
            )
        yield f"afterwards {self.succeeded} of {AFTERWARDS} requests succeeded; left behind: {self.left}"


async def hung_up(
    folder: Path,
    count: int,
    *,
    against: Against = "proxy",
    at_once: int = 20,
    seed: int = 0,
    patience: float = PATIENCE,
    within: float = WITHIN,
) -> Outcome:
    """So many clients, `at_once` of them at a time."""
    model, dice = ModelServer(), random.Random(seed)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(run_upstream_server(model, early=True))
        app, port = await stack.enter_async_context(relaying(folder, server, against))
        clients = Clients(port, model, dice, patience, uploads=app is not None)
        assert await clients.succeeds(-1)
        await settled(app)
        before = held(app)
        hangups = await many(clients, count, at_once)
        succeeded = await afterwards(clients)
        await settled(app)
        await closed(hangups, within)
        left = {
            what: max(0, n - before[what] - SPARE.get(what, 0)) for what, n in held(app).items()
        }
        wrong = [] if app is None else await records(app, hangups)
        return Outcome(hangups, succeeded, left, wrong, within)


async def afterwards(clients: Clients) -> int:
    """How many ordinary requests succeed, as many at a time as there are connections; none after
    such a group that failed whole."""
    succeeded = 0
    for start in range(1, AFTERWARDS + 1, POOL):
        found = await asyncio.gather(*(clients.succeeds(-n) for n in range(start, start + POOL)))
        if not any(found):
            break
        succeeded += sum(found)
    return succeeded


async def many(clients: Clients, count: int, at_once: int) -> list[Hangup]:
    hangups: list[Hangup] = []

    async def one_after_the_other(numbers: Iterator[int]) -> None:
        for number in numbers:
            hangups.append(await clients.hang_up(number))

    for start in range(0, count, (ALONE + 1) * at_once):
        end = min(count, start + (ALONE + 1) * at_once)
        alone = iter(range(start, max(start, end - at_once)))
        await asyncio.gather(*(one_after_the_other(alone) for _ in range(at_once)))
        together = await clients.hang_up_together(range(max(start, end - at_once), end))
        hangups += together
        if all(hangup.seen_at is None for hangup in together):
            break  # nothing goes through any more
    return hangups


@asynccontextmanager
async def relaying(
    folder: Path, server: UpstreamServer, against: Against
) -> AsyncIterator[tuple[App | None, int]]:
    if against == "httpx":
        async with (
            HttpxRelay(server.base, POOL) as relay,
            serve_on_loopback(relay, lifespan="off") as base,
        ):
            yield None, int(base.rpartition(":")[2])
        return
    settings = {
        "upstream": [{"base_url": server.base}],
        "storage": {"url": f"sqlite:///{folder}/om.db"},
        "telemetry": {"log": "off"},
    }
    with mock.patch("om_proxy.app.app.MAX_CHAT_CONNECTIONS", POOL):
        app = App(parse(json.dumps(settings)))
        async with serve_on_loopback(app) as base:
            yield app, int(base.rpartition(":")[2])


# ── what is left ──────────────────────────────────────────────────────────────────────────────────


async def settled(app: App | None) -> None:
    """Until nothing that ends is under way any more, for five seconds at most: what does not end,
    is told by `held`."""
    if app is None:
        return
    loop = asyncio.get_running_loop()
    ends, calm = loop.time() + PATIENCE, 0
    while loop.time() < ends and calm < 5:
        await app.background.wait_idle()
        await asyncio.sleep(0.02)
        calm = calm + 1 if not held(app)["calls"] and not held(app)["connections in use"] else 0


def held(app: App | None) -> dict[str, int]:
    if app is None:
        return {}
    upstream = app.upstream
    assert isinstance(upstream._transport, AiohttpTransport)
    session = upstream._transport._session
    assert session is not None
    assert session.connector is not None
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return {
        "places": POOL - upstream._slots._value,
        "calls": len(upstream._tasks),
        "connections in use": len(session.connector._acquired),
        "waiting for a connection": len(session.connector._waiters),
        "work": len(app.background._running) + len(app.background._detached),
        "tasks": tasks.total()
        - tasks["_Connection._serve"],  # the model server's, one for each connection kept
        "descriptors": descriptors(),
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def closed(hangups: list[Hangup], within: float) -> None:
    """Until every upstream connection that must be cut is, for as long as it may take and a little
    more."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + 2 * within
    for hangup in hangups:
        while hangup.lag == float("inf") and loop.time() < ends:  # noqa: ASYNC110 - it may never be told
            await asyncio.sleep(0.02)


async def records(app: App, hangups: list[Hangup]) -> list[str]:
    """Every reply that a client saw the end of stands in its thread, and none that the model server
    had not ended."""
    live: dict[str, set[str]] = {}
    for info in await app.store.threads(None):
        messages = (orjson.loads(m.item.raw) for m in await app.store.messages(info.key, 0))
        live[info.key.thread] = {m["content"] for m in messages if m["role"] == "assistant"}
    with_thread = [h for h in hangups if h.thread is not None]
    lost = [
        h for h in with_thread if h.acknowledged and h.reply not in live.get(h.thread or "", ())
    ]
    ended = {h.reply for h in with_thread if h.seen_at is not None and h.phase not in HELD}
    made_up = [(thread, reply) for thread, replies in live.items() for reply in replies - ended]
    return [f"lost: {h.reply} of {h.thread}" for h in lost] + [
        f"never ended: {found}" for found in made_up
    ]


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/hangups", description=__doc__)
    options.add_argument(
        "--count", type=int, default=10_000, help="how many clients leave (%(default)s)"
    )
    options.add_argument(
        "--against", choices=("proxy", "httpx"), default="proxy", help="or a relay over plain httpx"
    )
    options.add_argument("--at-once", type=int, default=20, help="clients at a time (%(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument(
        "--loop", choices=("uvloop", "asyncio"), default="uvloop", help="`serve` has %(default)s"
    )
    told = options.parse_args()
    configure_log("off")
    with tempfile.TemporaryDirectory() as folder:
        import uvloop  # which not every system has

        running = hung_up(
            Path(folder), told.count, against=told.against, at_once=told.at_once, seed=told.seed
        )
        with asyncio.Runner(
            loop_factory=uvloop.new_event_loop if told.loop == "uvloop" else None
        ) as runner:
            outcome = runner.run(running)
    print(*outcome.table(), sep="\n")
    broken = outcome.broken()
    print(*(broken or ["every promise kept"]), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
