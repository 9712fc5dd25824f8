"""Kill a real server by the hundred and print what came of it, by point. Exit status 1 if any
promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.crash.findings import Findings
from tests.e2e.crash.killing import Outcome, session
from tests.e2e.crash.plan import POINTS, Kill, planned

HEAD = (
    "point",
    "kills",
    "lost",
    "stored twice",
    "observed twice",
    "else wrong",
    "answered",
    "lease",
    "quiet",
)
ROW = "{:<20}{:>6}{:>6}{:>14}{:>16}{:>12}{:>12}{:>8}{:>10}"


async def crashed(
    folder: Path, kills: Sequence[Kill], *, patient: bool = False
) -> tuple[list[Outcome], Findings]:
    """One store, one proxy, these kills; what came of each, and what is wrong with any thread at
    the end."""
    async with session(folder) as running:
        outcomes = [await running.survive(kill, patient=patient) for kill in kills]
        return outcomes, await running.end()


async def shared(
    kills: Sequence[Kill], folders: Sequence[Path], *, patient: bool = False
) -> tuple[list[Outcome], Findings]:
    """The kills shared out among as many proxies as there are folders."""
    shares = [kills[n :: len(folders)] for n in range(len(folders))]
    done = await asyncio.gather(
        *(
            crashed(folder, share, patient=patient)
            for folder, share in zip(folders, shares, strict=True)
        )
    )
    found = Findings()
    for _, at_the_end in done:
        found += at_the_end
    return [outcome for outcomes, _ in done for outcome in outcomes], found


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield ROW.format(*HEAD)
    for point in (*POINTS, "all"):
        if of_point := [o for o in outcomes if point in (o.kill.point, "all")]:
            yield ROW.format(point, len(of_point), *wrong(of_point), *longest(of_point))


def wrong(outcomes: Sequence[Outcome]) -> tuple[int, ...]:
    def times(of: Callable[[Findings], Sequence[str]]) -> int:
        return sum(len(of(o.found)) for o in outcomes)

    return (
        times(lambda f: f.lost),
        times(lambda f: f.stored_twice),
        times(lambda f: f.observed_twice),
        times(lambda f: [*f.foreign, *f.unobserved, *f.other]),
    )


def longest(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    slowest = (max(getattr(o, name) for o in outcomes) for name in ("answered", "lease", "quiet"))
    return tuple(f"{seconds:.1f} s" for seconds in slowest)


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/crash", description=__doc__)
    options.add_argument("--kills", type=int, default=200, help="how many there are (%(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument("--part", default="1/1", help="do only this part of them, as in 2/5")
    options.add_argument("--point", choices=POINTS, help="do only those at this point")
    options.add_argument("--at-once", type=int, default=2, help="proxies (%(default)s)")
    options.add_argument(
        "--patient",
        action="store_true",
        help="wait for the leases of the killed, up to 2 minutes each",
    )
    told = options.parse_args()
    part, parts = map(int, told.part.split("/"))
    kills = planned(told.kills, told.seed)
    kills = kills[len(kills) * (part - 1) // parts : len(kills) * part // parts]
    kills = [kill for kill in kills if told.point in (None, kill.point)]
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that no proxy outlives this program
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # the model server writes to proxies that are no more
    with ExitStack() as kept:
        folders = [
            Path(kept.enter_context(tempfile.TemporaryDirectory())) for _ in range(told.at_once)
        ]
        outcomes, at_the_end = asyncio.run(shared(kills, folders, patient=told.patient))
    print(*table(outcomes), sep="\n")
    print(
        "seconds since the restart, the longest: until every thread was answered; left of the killed one's lease; until"
    )
    print(
        "all due work was done"
        + (", leases waited for" if told.patient else ", not counting the lease")
    )
    for outcome in (o for o in outcomes if o.found):
        print(outcome.kill, outcome.found)
    print("at the end:", at_the_end if at_the_end else "every thread as it should be")
    return 1 if at_the_end or any(o.found for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
