"""The rows of a side-by-side run → figures: medians of its rounds, and what follows from several of
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from tests.bench.loads import EVENTS_OF_A_STREAM, EVENTS_OF_MANY, MANY_STREAMS
from tests.bench.servers import WORKERS

DIRECT = "direct"  # no proxy: the fake upstream itself
EVENTS = EVENTS_OF_A_STREAM + 3  # of a stream: the role before, the stop and [DONE] behind
MERGED = 225  # bytes a read, of which an event has about 175
REQUEST = "1k_n:16"  # what a stream costs before its first event
ANY = ""  # the cell of what is measured once a start
LATENCIES = ("rps", "p50", "ttfb50")
COSTS = ("cpu_us", "stream_us", "idle_mb", "first_200_s")

Row = Mapping[str, Any]  # one cell of one round, as run.py writes it
Found = Mapping[tuple[str, str], Mapping[str, float]]  # target and cell → its fields' medians


def medians(rows: Sequence[Row]) -> Found:
    """Of all rounds. Without rows that hold no answer: their zeros are no figures."""
    kept: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["n"]:
            for cell in (row["cell"], ANY):
                kept[row["target"], cell].append({**row, "stream_us": stream_us(row)})
    return {place: _median(group, place[0]) for place, group in kept.items()}


def _median(group: Sequence[Row], target: str) -> dict[str, float]:
    fields = (
        LATENCIES if target == DIRECT else LATENCIES + COSTS
    )  # what direct costs is the fake upstream's own
    values = {field: [row[field] for row in group if row[field] is not None] for field in fields}
    return {field: median(found) for field, found in values.items() if found}


def stream_us(row: Row) -> float | None:
    """CPU of a stream; None where it tells nothing of its events. Streams are counted by their
    length, as concurrency / p50: of the few that a cell holds, many are cut off at its ends."""
    if merged(row) or row["cpu_us"] is None:
        return None
    core = float(row["cpu_us"] * row["rps"])  # µs a second
    return core * float(row["p50"]) / 1e6 / int(row["cell"].partition(":")[2])


def merged(row: Row) -> bool:
    """Whether a stream's events came several at a time: so they do on a busy machine, and cost less
    than they would one by one."""
    return streams(row["cell"]) and row["bytes"] > MERGED * row["reads"]


def streams(cell: str) -> bool:
    return cell.startswith("sse")


# ── figures ───────────────────────────────────────────────────────────────────────────────────────

Read = Callable[[Found, str, str], float | None]  # of a target in a cell


class Kind(NamedTuple):
    name: str
    read: Read
    adds: bool = True  # a hop's share can be taken off; not so of requests a second


def _field(field: str, scale: float = 1.0) -> Read:
    def read(found: Found, target: str, cell: str) -> float | None:
        value = found.get((target, cell), {}).get(field)
        return None if value is None else value * scale

    return read


def full_core(found: Found, target: str, cell: str) -> float | None:
    """Requests a second if the target had its core for itself: holds on a busy machine too."""
    cpu = found.get((target, cell), {}).get("cpu_us")
    return 1e6 / cpu if cpu else None


def per_event(found: Found, target: str, cell: str) -> float | None:
    """CPU µs: what a stream takes above a request, shared among its events."""
    stream = found.get((target, cell), {}).get("stream_us")
    request = found.get((target, REQUEST), {}).get("cpu_us")
    return None if stream is None or request is None else (stream - request) / EVENTS


def per_event_of_many(found: Found, target: str, cell: str) -> float | None:
    """CPU µs, with the streams' beginnings. Their events come merged on any machine."""
    row = found.get((target, cell), {})
    if not row.get("cpu_us"):
        return None
    events_per_s = int(cell.partition(":")[2]) * (EVENTS_OF_MANY + 3) / row["p50"] * 1e6
    return row["cpu_us"] * row["rps"] / events_per_s


def lateness(found: Found, target: str, cell: str) -> float | None:
    """Percent by which one of many streams takes longer than its events do."""
    length_us = (EVENTS_OF_MANY + 2) * int(cell.partition(":")[0].removeprefix("sse"))
    p50 = found.get((target, cell), {}).get("p50")
    return (p50 / length_us - 1) * 100 if p50 else None


def worker_mb(found: Found, target: str, cell: str) -> float | None:
    """The memory of a third worker."""
    two, three = (found.get((f"{target}{WORKERS}{n}", cell), {}).get("idle_mb") for n in (2, 3))
    return three - two if two and three else None


P50 = Kind("p50, ms", _field("p50", 1e-3))
RATE = Kind("requests/s", _field("rps"), adds=False)
CORE = Kind("requests/s, full core", full_core, adds=False)
CPU = Kind("CPU µs/request", _field("cpu_us"))
FIRST = Kind("first byte, ms", _field("ttfb50", 1e-3))
EVENT = Kind("CPU µs/event", per_event)
LATE = Kind("late, %", lateness)
EVENT_OF_MANY = Kind("CPU µs/event", per_event_of_many)
WORKER = Kind("each further worker, MB", worker_mb)
IDLE = Kind("idle, MB", _field("idle_mb"))
START = Kind("start to 5 answers, s", _field("first_200_s"))


def figures(cells: Sequence[str]) -> Iterator[tuple[str, Kind]]:
    """CPU per event only of many streams, and none of paced requests: the clock ticks every 10 ms,
    and twenty requests or one stream take little more in a second."""
    for cell in cells:
        alone = cell.endswith(":1")
        if cell.partition(":")[0].endswith("paced"):
            kinds: tuple[Kind, ...] = (FIRST, P50)
        elif cell == MANY_STREAMS:
            kinds = (LATE, EVENT_OF_MANY)
        elif streams(cell):
            kinds = (FIRST,) if alone else (FIRST, EVENT)
        else:
            kinds = (P50, CPU) if alone else (RATE, CORE, CPU)
        yield from ((cell, kind) for kind in kinds)
    yield from ((ANY, IDLE), (ANY, WORKER), (ANY, START))
