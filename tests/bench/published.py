"""The table of docs/speed.md, written from the rows of one run or of several: `python -m
tests.bench.published ROWS…`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.figures import (
    ANY,
    CPU,
    EVENT,
    EVENT_OF_MANY,
    FIRST,
    IDLE,
    LATE,
    P50,
    RATE,
    START,
    WORKER,
    Kind,
    Row,
    medians,
)
from tests.bench.loads import MANY_STREAMS
from tests.bench.servers import DISABLED
from tests.bench.table import ABOVE_DIRECT, ABOVE_FLOOR, FLOOR, OF_FLOOR, VALUE, beside, number

COLUMNS = {
    FLOOR: "floor",
    "om_off": "no thread",
    "om_raw": "raw",
    "om_applied": "applied",
    "litellm": "LiteLLM",
    "portkey": "Portkey",
    "headroom": "Headroom",
}
LINES: Sequence[tuple[str, str, Kind, str]] = (
    ("**real turns**, 16 at once, requests/s", "grow:16", RATE, OF_FLOOR),
    ("**real turns**, 16 at once, CPU", "grow:16", CPU, OF_FLOOR),
    ("**real turns**, one at a time, CPU", "grow:1", CPU, OF_FLOOR),
    ("**real turns**, one at a time, last byte above direct, ms", "grow:1", P50, ABOVE_DIRECT),
    ("**real turns**, one each 50 ms, first byte of the body", "growpaced:1", FIRST, OF_FLOOR),
    ("retries, 16 at once, requests/s", "1k_n:16", RATE, OF_FLOOR),
    ("retries, 16 at once, CPU", "1k_n:16", CPU, OF_FLOOR),
    ("a streamed event, 16 streams at once, CPU µs above floor", "sse1000:16", EVENT, ABOVE_FLOOR),
    ("750 streams at once, end late, %", MANY_STREAMS, LATE, VALUE),
    ("750 streams at once, CPU µs an event", MANY_STREAMS, EVENT_OF_MANY, VALUE),
    ("idle, MB", ANY, IDLE, VALUE),
    ("each further worker, MB", ANY, WORKER, VALUE),
    ("start to five answers, s", ANY, START, VALUE),
)


def write_table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown. What was not measured is a dash. Idle and at its start, om-proxy without a thread is
    one without memory."""
    found = medians(rows)
    yield "| | " + " | ".join(COLUMNS.values()) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for label, cell, kind, column in LINES:
        targets = (DISABLED if cell == ANY and one == "om_off" else one for one in COLUMNS)
        values = (number(beside(found, target, cell, kind)[column]) for target in targets)
        share = f", × floor ({number(kind.read(found, FLOOR, cell))})" if column == OF_FLOOR else ""
        yield f"| {label}{share} | {' | '.join(values)} |"


def main() -> None:
    lines = [line for path in sys.argv[1:] for line in Path(path).read_text("utf-8").splitlines()]
    print(*write_table([json.loads(line) for line in lines]), sep="\n")


if __name__ == "__main__":
    main()
