"""Measures this checkout beside another one, interleaved, and tells which figures became worse.

Both are up at the same time and take turns cell by cell, so what the machine does meanwhile happens
to both. A figure's change is the median, over the rounds, of its ratio within a round; rounds that
lie further apart than the change say that the change is noise.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench import beside
from tests.bench.figures import CORE, RATE, Kind, Row, figures, medians
from tests.bench.servers import BEFORE
from tests.bench.table import aligned, number, trouble

MEMORY_STATES = ("om_off", "om_raw", "om_applied")
CELLS = "1k_n:1,1k_n:16,grow:1,grow:16,paced:1,growpaced:1,100k_n:1,1m_n:1,1m10k_n:1,sse1000:1,sse1000:16"
MAX_WORSE = 0.03
HIGHER_IS_BETTER = (RATE, CORE)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and now (medians), and its ratio in each round: above 1 is worse."""

    state: str
    cell: str
    kind: Kind
    before: float
    now: float
    ratios: tuple[float, ...]

    @property
    def worse(self) -> float:
        """By which share; below 0 is better."""
        return median(self.ratios) - 1

    @property
    def verdict(self) -> str:
        if self.worse <= MAX_WORSE:
            return ""
        return "WORSE" if min(self.ratios) > 1 else "worse, but not in every round"


def compare_rounds(rows: Sequence[Row], cells: Sequence[str]) -> Iterator[Change]:
    """Each figure that both have in at least one round."""
    rounds = [
        medians([row for row in rows if row["round"] == number])
        for number in sorted({row["round"] for row in rows})
    ]
    for state in MEMORY_STATES:
        for cell, kind in figures(cells):
            pairs = [
                (kind.read(found, state + BEFORE, cell), kind.read(found, state, cell))
                for found in rounds
            ]
            known = [(before, now) for before, now in pairs if before and now]
            if known:
                ratios = tuple(
                    before / now if kind in HIGHER_IS_BETTER else now / before
                    for before, now in known
                )
                yield Change(
                    state,
                    cell,
                    kind,
                    median(b for b, _ in known),
                    median(n for _, n in known),
                    ratios,
                )


def render_changes(changes: Sequence[Change]) -> str:
    lines = [["", "before", "now", "worse by", "rounds", ""]]
    for one in changes:
        spread = f"{min(one.ratios) - 1:+.1%} … {max(one.ratios) - 1:+.1%}"
        name = f"{one.state} {one.cell} {one.kind.name}".replace("  ", " ")
        lines.append(
            [name, number(one.before), number(one.now), f"{one.worse:+.1%}", spread, one.verdict]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(aligned(line, widths) for line in lines)


def measure_rounds(cells: str, rounds: int, seconds: float, before: Path, out: Path) -> list[Row]:
    """Round by round and state by state, each with both checkouts; who is first changes with the
    round."""
    os.environ["OM_BEFORE"] = str(before)
    steps = []
    for round_number in range(1, rounds + 1):
        for state in MEMORY_STATES:
            both = [state, state + BEFORE] if round_number % 2 else [state + BEFORE, state]
            steps.append(beside.Step(round_number, " ".join(both), cells, seconds))
    return beside.measure(steps, beside.RUN, out)


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="scripts/bench before",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("checkout", type=Path, help="folder of the other checkout, with its .venv")
    options.add_argument(
        "--bench", type=Path, required=True, help="the shared bench folder; scripts/bench names it"
    )
    options.add_argument("--seconds", type=float, default=2.0, help="a cell")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--cells", default=CELLS)
    options.add_argument(
        "--out",
        type=Path,
        help="file for the rows, one JSON a line; default: in a temporary folder",
    )
    options.add_argument(
        "--watched",
        action="store_true",
        help="watch this checkout meanwhile: scrapes, dashboards, streams of events",
    )
    return options.parse_args()


def main() -> int:
    chosen = arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # as an interrupt: what was started is ended
    command = chosen.checkout.resolve() / ".venv" / "bin" / "om-proxy"
    if not command.exists():
        raise SystemExit(f"scripts/bench: no {command}; run scripts/setup in that checkout")
    os.environ["OM_BENCH"] = str(chosen.bench)
    if chosen.watched:
        os.environ["OM_WATCHED"] = "1"
    out = chosen.out or Path(tempfile.mkdtemp(prefix="om-bench-")) / "rows.jsonl"
    rows = measure_rounds(chosen.cells, chosen.rounds, chosen.seconds, command, out)
    changes = list(compare_rounds(rows, chosen.cells.split(",")))
    remarks = [f"  {line}" for line in dict.fromkeys(trouble(rows))]
    print("", render_changes(changes), "", *remarks, f"  Rows: {out}", sep="\n")
    return int(any(change.verdict == "WORSE" for change in changes))


if __name__ == "__main__":
    sys.exit(main())
