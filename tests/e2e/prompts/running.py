"""Run clients of all kinds and tell what was wrong with their prompts: `scripts/simulate --prompts`."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.prompts.clients import KINDS, Kind
from tests.e2e.prompts.oracle import Faults
from tests.e2e.prompts.world import CLIENT_COUNT, TURNS_OF_A_THREAD, Place, Tally, World
from tests.simulation.world import quiet
from tests.support.own_postgres import own_postgres
from tests.support.own_redis import own_redis

STORES = ("sqlite", "postgres", "redis")
FAULTS = tuple(vars(Faults()))


async def run_prompts(
    place: Place,
    kinds: Mapping[str, Kind],
    *,
    prompts: int,
    outages: int = 0,
    seed: int = 0,
    clients: int = CLIENT_COUNT,
    turns: int = TURNS_OF_A_THREAD,
) -> World:
    """Run until so many prompts are checked, while the store goes away so often."""
    world = World(place, kinds, seed, clients, turns)
    with quiet():
        await world.run(prompts, outages)
    return world


@contextmanager
def open_place(store: str, folder: Path, replicas: int) -> Iterator[Place]:
    """Yield a store of the run's own. With a server, so many replicas share it."""
    if store == "sqlite":
        yield place_of_file(folder)
    elif store == "postgres":
        with own_postgres() as server:
            server.start()
            yield Place(server.url, replicas=replicas)
    else:
        with own_redis() as server_:
            server_.start()
            yield Place(server_.url, replicas=replicas)


def place_of_file(folder: Path) -> Place:
    database = folder / "om.db"
    return Place(f"sqlite:///{database}", database=database)


def check_prompts(
    store: str,
    names: Sequence[str],
    *,
    replicas: int,
    prompts: int,
    outages: int,
    seed: int,
    turns: int,
) -> int:
    """Return 1 if a prompt had a fault, apart from what the page on limits names."""
    kinds = {name: KINDS[name] for name in names}
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory() as name, open_place(store, Path(name), replicas) as place:
        world = asyncio.run(
            run_prompts(place, kinds, prompts=prompts, outages=outages, seed=seed, turns=turns)
        )
    print(render(world, kinds))
    print(
        f"{store}, seed {seed}: {world.thread_count} threads, {world.checked_count} prompts with a store, "
        f"{world.prompt_count - world.checked_count} without, {world.named_count} by the id of a reply, "
        f"{time.monotonic() - began_at:.0f} s"
    )
    return 1 if any(find_faulty(world, kinds)) else 0


def find_faulty(world: World, kinds: Mapping[str, Kind]) -> list[tuple[str, Tally]]:
    """Return the kinds whose prompts had faults that no limit excuses."""
    return [
        (name, world.tallies[name])
        for name, kind in kinds.items()
        if world.tallies[name].faulty and not kind.limit
    ]


def render(world: World, kinds: Mapping[str, Kind]) -> str:
    heads = ["prompts", "degraded", "faulty", *FAULTS]
    lines = [f"{'':<22}" + "".join(f"{head:>11}" for head in heads)]
    for name, kind in kinds.items():
        tally = world.tallies[name]
        values = [tally.prompts, tally.degraded, tally.faulty, *(tally.counts[f] for f in FAULTS)]
        lines.append(
            f"{name:<22}"
            + "".join(f"{value:>11}" for value in values)
            + (f"  limit: {kind.limit}" if kind.limit else "")
        )
    lines += [f"  {example}" for name in kinds for example in world.tallies[name].examples]
    if late := sum(world.tallies[name].late_results for name in kinds):
        lines.append(f"limit: {late} results missing until they are noted, as their call was")
    outages = ", ".join(f"{kind} {number}" for kind, number in world.outages.items())
    lines.append(f"outages: {outages or 'none'}; longest healing {world.longest_healing_s:.1f} s")
    return "\n".join(lines)
