"""Runs seeds and says what broke: `scripts/simulate`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.sharing import SharedWorld
from tests.simulation.world import World, simulate

WORLDS: dict[str, type[World]] = {"thread": World, "resource": SharedWorld}


def main() -> int:
    asked = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    asked.add_argument("--seeds", type=int, default=10_000)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--seed", type=int, help="this one alone")
    asked.add_argument("--trace", action="store_true", help="tell every step")
    asked.add_argument(
        "--scope", choices=WORLDS, default="thread", help="whether each thread has a log of its own"
    )
    given = asked.parse_args()
    seeds = (
        [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    )
    began, steps, failed = time.perf_counter(), 0, []
    for seed in seeds:
        world = simulate(seed, made=WORLDS[given.scope])
        steps += world.steps
        if given.trace:
            print(world.plan, *world.trace, sep="\n")
        if world.broken is not None:
            failed.append(seed)
            print(f"seed {seed}: {type(world.broken).__name__}: {world.broken}", flush=True)
    took = time.perf_counter() - began
    print(
        f"{len(seeds)} seeds, {steps} steps, {len(seeds) / took:.1f} seeds/s, {took:.0f} s; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
