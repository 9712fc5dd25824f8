"""Print what came of a full disk, a lock, and a disk that neither reads, writes nor syncs. Exit
status 1 if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.e2e.disk.outage import KINDS, Report, outage
from tests.e2e.disk.troubles import Impossible

SECONDS = {"full-shim": 60.0, "full": 60.0, "lock": 30.0, "eio": 30.0, "fsync": 30.0}
ROW = "{:<11}{:>13}{:>6}{:>9}{:>14}{:>14}{:>17}{:>12}{:>15}  {}"
HEAD = (
    "trouble",
    "acknowledged",
    "lost",
    "doubled",
    "out of order",
    "longest hold",
    "after opening",
    "undeclared",
)


def row(report: Report) -> str:
    ready = f"{'/'.join(sorted(report.ready_during)) or '-'}, then {report.ready_after}"
    holds = (f"{report.longest_hold_s:.2f} s", f"{report.longest_hold_open_s:.2f} s")
    counts = (report.acknowledged, report.lost, report.doubled, report.out_of_order)
    return ROW.format(report.kind, *counts, *holds, report.undeclared, report.short_prompts, ready)


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/disk-faults", description=__doc__)
    options.add_argument(
        "--kind",
        choices=KINDS,
        action="append",
        help="only this trouble; may be given more than once",
    )
    options.add_argument(
        "--seconds", type=float, help="how long each lasts (60 for a full disk, else 30)"
    )
    options.add_argument(
        "--clients",
        type=int,
        default=6,
        help="half of them send only their newest message (%(default)s)",
    )
    told, sound = options.parse_args(), True
    print(ROW.format(*HEAD, "short prompts", "readyz"), flush=True)
    for kind in told.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = asyncio.run(
                    outage(Path(folder), kind, told.seconds or SECONDS[kind], told.clients)
                )
            except Impossible as exc:
                print(f"{kind}: SKIPPED, {exc}", flush=True)
                continue
        print(row(report), flush=True)
        sound = sound and report.is_sound and report.ready_during == {"degraded"}
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
