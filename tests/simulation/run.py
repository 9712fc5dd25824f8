"""Runs seeds and says what broke: `scripts/simulate`. With `--prompts`, clients of many kinds talk
through a proxy on a real store instead, and every prompt is checked (tests/e2e/prompts)."""

from __future__ import annotations

import argparse
import sys
import time

from tests.e2e.prompts.clients import KINDS
from tests.e2e.prompts.running import STORES, check_prompts
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
    asked.add_argument("--prompts", type=int, help="check so many, of clients of many kinds")
    asked.add_argument("--store", choices=STORES, default="sqlite", help="that they are held in")
    asked.add_argument("--replicas", type=int, default=2, help="on a server (%(default)s)")
    asked.add_argument("--kind", choices=KINDS, action="append", help="of the clients; all of them")
    asked.add_argument("--outages", type=int, default=12, help="of that store (%(default)s)")
    asked.add_argument("--turns", type=int, default=40, help="of a thread (%(default)s)")
    given = asked.parse_args()
    if given.prompts:
        return check_prompts(
            given.store,
            given.kind or [*KINDS],
            replicas=given.replicas,
            prompts=given.prompts,
            outages=given.outages,
            seed=given.seed or 0,
            turns=given.turns,
        )
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
