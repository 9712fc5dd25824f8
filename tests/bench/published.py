"""The table of docs/contributing/speed.md, written from a run's rows: `python -m
tests.bench.published ROWS`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.figures import (
    ANY,
    CPU,
    EVENT,
    FIRST,
    IDLE,
    P50,
    RATE,
    START,
    Found,
    Kind,
    Row,
    medians,
)
from tests.bench.table import FLOOR, GOALS, JUDGED, LITELLM, beside, number, verdict

COLUMNS = {
    "nginx": "nginx",
    FLOOR: "pass-through (aiohttp)",
    "om_off": "om-proxy, no thread",
    "om_raw": "raw",
    "om_applied": "applied",
    LITELLM: "LiteLLM",
}
LINES: Sequence[tuple[str, str, Kind]] = (
    ("**real turns**, one at a time, p50 ms", "grow:1", P50),
    ("**real turns**, 16 at a time, turns/s", "grow:16", RATE),
    ("**real turns**, 16 at a time, CPU µs", "grow:16", CPU),
    ("**real turns**, one each 50 ms, p50 ms", "growpaced:1", P50),
    ("1 KB again and again, one at a time, p50 ms", "1k_n:1", P50),
    ("1 KB again and again, 16 at a time, requests/s", "1k_n:16", RATE),
    ("1 KB, one each 50 ms, p50 ms", "paced:1", P50),
    ("100 KB, p50 ms", "100k_n:1", P50),
    ("1 MB, 1 000 messages, p50 ms", "1m_n:1", P50),
    ("1 MB, 10 000 messages, CPU µs", "1m10k_n:1", CPU),
    ("a stream's first byte, ms", "sse1000:1", FIRST),
    ("16 streams, not begun together, first byte, ms", "sse1000:16", FIRST),
    ("a stream's event, 16 at a time, CPU µs", "sse1000:16", EVENT),
    ("idle, MB (with memory: token ranks loaded)", ANY, IDLE),
    ("start to five answers, s", ANY, START),
)


def write_table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown. What was not measured is a dash."""
    found = medians(rows)
    yield "| | " + " | ".join(COLUMNS.values()) + " | goal |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    for label, cell, kind in LINES:
        values = (number(kind.read(found, target, cell)) for target in COLUMNS)
        yield f"| {label} | {' | '.join(values)} | {_goals(found, cell, kind)} |"


def _goals(found: Found, cell: str, kind: Kind) -> str:
    said = []
    for goal in GOALS.get((cell, kind), ()):
        judged = (
            f"{target.removeprefix('om_')} {verdict(goal, beside(found, target, cell, kind))}"
            for target in JUDGED
        )
        said.append(f"{goal}: {', '.join(judged)}")
    return "; ".join(said)


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print(*write_table([json.loads(line) for line in lines]), sep="\n")


if __name__ == "__main__":
    main()
