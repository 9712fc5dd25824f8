"""What a server holds does not grow with the requests and threads it has served; `scripts/soak` is
the long form."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from om_proxy.app.app import App
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.settings.config import parse
from om_proxy.wire.upstream import AiohttpTransport
from tests.e2e.raw_upstream import serve_app
from tests.e2e.soak.__main__ import SETTINGS, wrong
from tests.e2e.soak.clients import WAYS, Clients
from tests.e2e.soak.containers import count_bytes, list_grown, measure_sizes, unbounded_caches
from tests.e2e.soak.growth import Sample, drop_warm_up, fit_line
from tests.e2e.soak.growth import find_growth as beyond
from tests.e2e.soak.models import FAULTS, Models
from tests.support.long_forms import IS_LONG
from tests.support.raw_client import ask

REQUESTS = 2_000 if IS_LONG else 800
FIRST, MORE = 60, 150  # threads
FEW = 40  # of everything are remembered, where it is thousands otherwise
NOISE = 60  # things by which a container may grow that holds none by thread
STRAY = 4  # descriptors that come and go with threads and files; seventy clients leave
ENDS = 30.0  # seconds
FOR_GOOD = Path("/proc/self/fd")


@asynccontextmanager
async def soaking(
    folder: Path, models: Models, cache_bytes: int = FEW * 8_000
) -> AsyncIterator[tuple[App, int]]:
    """With every bound so low that it is reached; `cache_bytes` is that of as many memories."""
    server = await asyncio.get_running_loop().create_server(models.connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with ExitStack() as bounds:
            for bound in (
                *(
                    "engine.background.due_work.MAX_REMEMBERED_CONTEXTS",
                    "engine.turns.block_renderer.MAX_RENDERED_BLOCKS",
                    "settings.config.snapshot.MAX_CACHED_PAIRS",
                    "engine.policy.MAX_REQUEST_CONTEXTS",
                    "engine.policy.MAX_PAIRS",
                    "edge.edge_config.MAX_REMEMBERED_MESSAGES",
                    "observability.ledger_writer.MAX_KNOWN_RESOURCES",
                ),
                *(
                    "engine.turns.deliveries.MAX_REMEMBERED_THREADS",
                    "engine.turns.deliveries.MAX_UNWRITTEN_THREADS",
                ),
            ):
                bounds.enter_context(mock.patch(f"om_proxy.{bound}", FEW))
            memories = partial(Memories, cache_bytes=cache_bytes)
            bounds.enter_context(mock.patch("om_proxy.app.app.Memories", memories))
            settings = parse(
                SETTINGS.format(port=8400, models=port, folder=folder, observe_at=600, buffer=250)
            )
            app = App(settings, model_timeout_s=5.0)
            async with serve_app(app) as listening:
                await ask(listening, method="GET", path="/healthz")  # it has started
                yield app, listening


async def send_all_requests(app: App, clients: Clients) -> None:
    """Send the requests, and wait for all work that follows from them."""
    before = asyncio.all_tasks()
    await clients.ask(clients.requests)
    await clients.close()
    await app.background.wait_idle()
    if begun := asyncio.all_tasks() - before:
        await asyncio.wait(begun, timeout=ENDS)
    await app.ledger_writer.write()  # which its task does every ten seconds
    app.background._leases.begin_look()  # a look remembers its threads, and the next one forgets them


def descriptors(app: App) -> int:
    """But for both ends of the connections to model servers that are kept for the next request."""
    kept = 0
    for transport in (app.upstream._transport, app._memory_transport):
        assert isinstance(transport, AiohttpTransport)
        assert transport._session is not None
        assert transport._session.connector is not None
        kept += sum(map(len, transport._session.connector._conns.values()))
    return len(os.listdir(FOR_GOOD)) - 2 * kept


@pytest.mark.skipif(
    not FOR_GOOD.exists(), reason="descriptors are counted in /proc, which Linux has"
)
async def test_nothing_grows(tmp_path: Path) -> None:
    """Tasks and descriptors are back where they began, and no container has grown by what was said
    in as many new threads."""
    models = Models()
    async with soaking(tmp_path, models) as (app, port):
        begin, rest = REQUESTS * 3 // 10, REQUESTS * 7 // 10
        first, more = Clients(port, FIRST, begin), Clients(port, MORE, rest, seed=1, first=FIRST)
        await send_all_requests(app, first)
        tasks, open_ones, held = len(asyncio.all_tasks()), descriptors(app), measure_sizes(app)
        await send_all_requests(app, more)
        assert len(asyncio.all_tasks()) <= tasks
        assert descriptors(app) <= open_ones + STRAY
        assert not (found := list_grown(held, measure_sizes(app), NOISE)), "\n".join(found)
        assert unbounded_caches("om_proxy", NOISE) == []
    told = first.told + more.told
    assert (
        wrong({**told, **{f"model: {name}": n for name, n in models.told.items()}}, REQUESTS) == []
    )
    assert {way for way in told if way.startswith("left ")} == {f"left {way}" for way in WAYS}
    assert set(FAULTS) <= set(models.told)


async def test_the_cache_holds_as_many_bytes_as_it_says(tmp_path: Path) -> None:
    """Of threads that are young, and of such as have been observed and reflected: else its bound is
    none."""
    async with soaking(tmp_path, Models(), cache_bytes=1 << 30) as (app, port):
        young, old = Clients(port, 12, 20), Clients(port, 12, 180)
        for clients in (young, old):
            await send_all_requests(app, clients)
            memories = app.background._memories
            really = count_bytes([memory for _, memory in memories.held._cached.items()])
            assert really <= memories.held.held_bytes <= 1.5 * really
        assert old.told["memory applied"]


class Holding:
    def __init__(self) -> None:
        self.kept: dict[int, str] = {}
        self.later = partial(lambda kept, n: kept.append(n), [])

    def closure(self) -> Callable[[int], None]:
        kept = set[int]()

        def keep(n: int) -> None:
            kept.add(n)

        return keep


async def test_a_container_that_grows_is_named() -> None:
    """Wherever it is held: in an object, a partial, a closure or a running task; one that is new
    counts from nothing."""
    holding = Holding()
    keep, inbox = holding.closure(), asyncio.Queue[int]()
    task = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    root = {"holding": holding, "keep": [keep], "task": task}
    before = measure_sizes(root)
    assert list_grown(before, measure_sizes(root), 0) == []
    for n in range(5):
        holding.kept[n] = "thread"
        holding.later(n)
        keep(n)
    inbox._queue.extend(range(5))  # type: ignore[attr-defined] # its deque, which the waiting task alone leads to
    root["new"] = [*range(5)]
    assert list_grown(before, measure_sizes(root), 4) == [
        "/Holding/partial: list 0 → 5",
        "/Holding: dict 0 → 5",
        "/Task/coroutine/Queue: deque 0 → 5",
        "/function/cell: set 0 → 5",
        ": list 0 → 5",
    ]
    task.cancel()


def samples(*resident: float, descriptors: int = 60) -> list[Sample]:
    """Five thousand requests apart."""
    return [Sample(5_000 * n, mib, descriptors, 15) for n, mib in enumerate(resident, 1)]


def test_the_line_is_that_of_the_samples_after_the_warm_up() -> None:
    """Two MiB in 10⁵ requests are more than the bound, however much the warm-up took."""
    warming = [100.0, 150.0, 190.0]
    steady = samples(*warming, *(200 + 0.02 * n for n in range(7)))
    assert fit_line(drop_warm_up(steady)).slope == pytest.approx(0.4)
    assert beyond(steady) == []
    steep = samples(*warming, *(200 + 0.1 * n for n in range(7)))
    assert beyond(steep) == ["resident memory grows by 2.00 MiB per 10⁵ requests"]


def test_descriptors_that_stay_are_told() -> None:
    """A few more than in the warm-up are connections to the model server."""
    flat = samples(*[200.0] * 6)
    assert beyond([*flat, *samples(*[200.0] * 4, descriptors=70)]) == []
    leaking = [*flat, *samples(*[200.0] * 4, descriptors=71)]
    assert "descriptors grew from 60 to 71" in beyond(leaking)
