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
from pathlib import Path

from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import Plan, run_replicas
from tests.support.postgres_server import ADDRESS_FILE, HOW_TO_START


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
    told = options.parse_args()
    # so that no replica outlives this program
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # the model server writes to replicas that are no more
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    url = os.environ.get("OM_TEST_POSTGRES_URL") or (
        ADDRESS_FILE.read_text(encoding="utf-8").strip() if ADDRESS_FILE.exists() else ""
    )
    if not url:
        print(HOW_TO_START, file=sys.stderr)
        return 2
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
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_replicas(url, Path(folder), plan))
    print(report)
    if told.history:
        told.history.write_bytes(report.dump())
    return 1 if report.findings or report.notebook.errors else 0


if __name__ == "__main__":
    sys.exit(main())
