"""Trouble replicas on one store while clients talk. Print what happened, acknowledged turns, and
what was lost or doubled. Exit status 1 if any promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.e2e.replicas.kept_logs import keep_logs_of_failure
from tests.e2e.replicas.plan import SCHEDULES, WRONG_CLOCKS_S
from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import run_replicas
from tests.support.own_postgres import OwnPostgres, own_postgres
from tests.support.own_redis import OwnRedis, own_redis
from tests.support.postgres_server import ADDRESS_FILE, HOW_TO_START


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/replicas", description=__doc__)
    options.add_argument(
        "minutes", type=float, nargs="?", default=20.0, metavar="MINUTES", help="(%(default)g)"
    )
    options.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="",
        help="everything: on a server of the run's own, kills, stops for longer than a lease, ends of "
        "the server, disturbed ways to it, hosts with wrong clocks, workers; harder: the same with a "
        "fault every 11 s; kills: a kill every 1.2 s, on the server of scripts/servers; meetings: turns "
        "of a resource that end at once; restore: the store is taken back to a copy (everything, or "
        "what shows the planted fault)",
    )
    options.add_argument(
        "--rolls",
        type=int,
        default=0,
        help="replace all, one by one, by the next release and by this one in turn, in place of any "
        "trouble",
    )
    options.add_argument(
        "--store",
        choices=("postgres", "redis"),
        default="postgres",
        help="that they share; a Redis is the run's own (%(default)s)",
    )
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument("--plant", choices=FAULTS, default="", help="serve with this fault")
    options.add_argument("--history", type=Path, help="write what the clients saw to this file")
    told = options.parse_args()
    # so that no replica outlives this program
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # the model server writes to replicas that are no more
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    schedule = told.schedule or (FAULTS[told.plant].schedule if told.plant else "everything")
    plan = replace(SCHEDULES[schedule](told.minutes * 60), seed=told.seed, fault=told.plant)
    if told.rolls:
        plan = replace(SCHEDULES["kills"](0.0), kills=0, seed=told.seed, rolls=told.rolls)
    if told.plant == "host-clock":
        plan = replace(plan, clock_offsets_s=WRONG_CLOCKS_S)
    if told.store == "redis" and (plan.turns_before_restore or plan.shared_commit_s):
        options.error("a Redis is not taken back to a copy, nor slowed down: use --store postgres")
    print(f"{plan}\n", flush=True)
    with keep_logs_of_failure() as folder, ExitStack() as stack:
        server: OwnPostgres | OwnRedis | None = None
        if told.store == "redis":
            server = stack.enter_context(own_redis(folder / "redis.log", appendfsync="always"))
            server.start()
        elif plan.needs_server:
            server = stack.enter_context(own_postgres(folder / "postgres.log"))
            server.start()
        url = server.url if server else find_url()
        if not url:
            print(HOW_TO_START, file=sys.stderr)
            return 2
        report = asyncio.run(run_replicas(url, folder, plan, server))
        print(report)
        if told.history:
            told.history.write_bytes(report.dump())
        if not report.findings and not report.notebook.errors:
            return 0
        (folder / "history.json").write_bytes(report.dump())
        raise SystemExit(1)


def find_url() -> str:
    """Return the address of the server that tests may use; empty: there is none."""
    if url := os.environ.get("OM_TEST_POSTGRES_URL"):
        return url
    return ADDRESS_FILE.read_text(encoding="utf-8").strip() if ADDRESS_FILE.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
