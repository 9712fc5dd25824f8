"""Kill replicas on one PostgreSQL at random while clients talk. Print kills, acknowledged turns, and
what was lost or doubled. Exit status 1 if any promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.e2e.replicas.plan import Plan
from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import run_replicas
from tests.support.own_postgres import own_postgres
from tests.support.postgres_server import ADDRESS_FILE, HOW_TO_START

WRONG_CLOCKS_S = (-600.0, 0.0, 600.0)


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/replicas", description=__doc__)
    options.add_argument("--seconds", type=float, default=40.0, help="(%(default)s)")
    options.add_argument("--kills", type=int, default=15, help="at least (%(default)s)")
    options.add_argument("--replicas", type=int, default=3, help="(%(default)s)")
    options.add_argument("--clients", type=int, default=10, help="(%(default)s)")
    options.add_argument(
        "--kill-every",
        type=float,
        default=1.2,
        metavar="S",
        help="seconds, on average (%(default)s)",
    )
    options.add_argument(
        "--stop-every", type=float, default=0.0, metavar="S", help="let one stand still (0: never)"
    )
    options.add_argument(
        "--rolls",
        type=int,
        default=0,
        help="replace all, one by one, by the next release and by this one in turn, in place of kills",
    )
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument("--plant", choices=FAULTS, default="", help="serve with this fault")
    options.add_argument("--history", type=Path, help="write what the clients saw to this file")
    options.add_argument(
        "--all",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="do everything for so long, on a server of the run's own: workers, kills, stops for longer "
        "than a lease, outages of the server and of the way to it, hosts with wrong clocks",
    )
    told = options.parse_args()
    # so that no replica outlives this program
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # the model server writes to replicas that are no more
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    plan = Plan(
        told.seconds,
        0 if told.rolls else told.kills,
        replicas=told.replicas,
        clients=told.clients,
        kill_every_s=told.kill_every,
        seed=told.seed,
        fault=told.plant,
        stop_every_s=told.stop_every,
        rolls=told.rolls,
    )
    if told.plant == "host-clock":
        plan = replace(plan, clock_offsets_s=WRONG_CLOCKS_S)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if told.all:
            server = stack.enter_context(own_postgres())
            server.start()
            plan = plan_all(told.all * 60, told.seed, told.plant)
            report = asyncio.run(run_replicas(server.url, Path(folder), plan, server))
        elif url := find_url():
            report = asyncio.run(run_replicas(url, Path(folder), plan))
        else:
            print(HOW_TO_START, file=sys.stderr)
            return 2
    print(report)
    if told.history:
        told.history.write_bytes(report.dump())
    return 1 if report.findings or report.notebook.errors else 0


def plan_all(seconds: float, seed: int, fault: str) -> Plan:
    """Plan what docs/guides/operations.md promises of replicas."""
    return Plan(
        seconds,
        1,
        replicas=3,
        workers=2,
        clients=14,
        kill_every_s=20.0,
        seed=seed,
        fault=fault,
        stop_every_s=60.0,
        outage_every_s=20.0,
        clock_offsets_s=WRONG_CLOCKS_S,
        lease_s=10.0,
        timeout_s=3.0,
    )


def find_url() -> str:
    """Return the address of the server that tests may use; empty: there is none."""
    if url := os.environ.get("OM_TEST_POSTGRES_URL"):
        return url
    return ADDRESS_FILE.read_text(encoding="utf-8").strip() if ADDRESS_FILE.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
