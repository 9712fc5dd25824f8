"""Figures → one table: each beside no proxy, the floor and LiteLLM, with its goal where it has one,
and how noisy the run was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from tests.bench.figures import (
    ANY,
    CPU,
    DIRECT,
    EVENT,
    FIRST,
    IDLE,
    P50,
    RATE,
    START,
    Found,
    Kind,
    Row,
    figures,
    medians,
    merged,
)

FLOOR, LITELLM = "floor_aiohttp", "litellm"
PEERS = (LITELLM, "portkey", "headroom")
JUDGED = ("om_raw", "om_applied")  # memory on and history known, as the goals say

VALUE, ABOVE_DIRECT, ABOVE_FLOOR, OF_FLOOR, OF_LITELLM = (
    "value",
    "above direct",
    "above floor",
    "× floor",
    "× litellm",
)
COLUMNS = (ABOVE_DIRECT, ABOVE_FLOOR, OF_FLOOR, OF_LITELLM)


class Goal(NamedTuple):
    of: str  # what is held against it
    limit: float
    least: bool = False

    def __str__(self) -> str:
        above = {ABOVE_DIRECT: "direct +", ABOVE_FLOOR: "floor +"}.get(self.of, "")
        return f"{'≥' if self.least else '≤'} {above}{self.limit:g}{' × litellm' * (self.of == OF_LITELLM)}"

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit


GOALS: Mapping[tuple[str, Kind], Sequence[Goal]] = {
    ("1k_n:1", P50): [Goal(ABOVE_DIRECT, 0.5)],
    ("1k_n:16", RATE): [Goal(VALUE, 4000, least=True), Goal(OF_LITELLM, 45, least=True)],
    ("100k_n:1", P50): [Goal(ABOVE_DIRECT, 0.7)],
    ("1m_n:1", P50): [Goal(ABOVE_DIRECT, 2)],
    ("1m10k_n:1", CPU): [Goal(ABOVE_FLOOR, 2000)],
    ("sse1000:1", FIRST): [Goal(ABOVE_DIRECT, 0.8)],
    ("sse1000:16", EVENT): [Goal(VALUE, 45)],
    (ANY, IDLE): [Goal(VALUE, 60)],
    (ANY, START): [Goal(VALUE, 0.6)],
}


def beside(found: Found, target: str, cell: str, kind: Kind) -> dict[str, float | None]:
    value, direct, floor, litellm = (
        kind.read(found, t, cell) for t in (target, DIRECT, FLOOR, LITELLM)
    )
    return {
        VALUE: value,
        ABOVE_DIRECT: None if value is None or direct is None or not kind.adds else value - direct,
        ABOVE_FLOOR: None if value is None or floor is None or not kind.adds else value - floor,
        OF_FLOOR: value / floor if value is not None and floor else None,
        OF_LITELLM: value / litellm if value is not None and litellm else None,
    }


def verdict(goal: Goal, compared: Mapping[str, float | None]) -> str:
    value = compared[goal.of]
    if value is None:
        return "unknown"
    return "reached" if goal.reached(value) else "MISSED"


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def number(value: float | None) -> str:
    if value is None:
        return "-"
    places = next((n for n, limit in enumerate((99.95, 9.995, 0.9995)) if abs(value) >= limit), 3)
    return f"{value:.{places}f}"


def table(rows: Sequence[Row], targets: Sequence[str], cells: Sequence[str]) -> str:
    found = medians(rows)
    heads = [
        name.replace("_", " ").rpartition(" ") for name in (*targets, "", *COLUMNS, "goal", "")
    ]
    lines = [["", *(first for first, _, _ in heads)], ["", *(last for _, _, last in heads)]]
    for cell, kind in figures(cells):
        lines += _lines(found, targets, cell, kind)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(aligned(line, widths) for line in lines)


def _lines(found: Found, targets: Sequence[str], cell: str, kind: Kind) -> Iterator[list[str]]:
    """The figure of every target, and how the first judged stands beside others; where there are
    goals, a line for each and each judged."""
    left = [f"{cell} {kind.name}".strip(), *(number(kind.read(found, t, cell)) for t in targets)]
    goals, judged = GOALS.get((cell, kind), ()), [t for t in JUDGED if t in targets]
    for target in judged if goals else judged[:1]:
        compared = beside(found, target, cell, kind)
        right = [target, *(number(compared[column]) for column in COLUMNS)]
        for goal in goals or (None,):
            yield [*left, *right, *((str(goal), verdict(goal, compared)) if goal else ("", ""))]
            left, right = [""] * len(left), [""] * len(right)
    if not judged:
        yield [*left, *[""] * (len(COLUMNS) + 3)]


def aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    label, *cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    return "  ".join([line[0].ljust(len(label)), *cells]).rstrip()


# ── what to think of the run ──────────────────────────────────────────────────────────────────────


def noise(rows: Sequence[Row], target: str) -> str:
    """How far apart the rounds of one target lie: differences smaller than that say nothing."""
    found = [
        f"{name} {text}"
        for name, field in (("p50", "p50"), ("CPU", "cpu_us"))
        if (text := _spread(rows, target, field))
    ]
    return f"Rounds of {target} lie apart: " + (
        "; ".join(found) if found else "unknown, it was measured once"
    )


def _spread(rows: Sequence[Row], target: str, field: str) -> str:
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["target"] == target and row[field]:
            values[row["cell"]].append(row[field])
    apart = {cell: max(found) / min(found) - 1 for cell, found in values.items() if len(found) > 1}
    worst = max(apart, key=apart.__getitem__, default="")
    return f"{median(apart.values()):.0%}, at most {apart[worst]:.0%} ({worst})" if apart else ""


def trouble(rows: Sequence[Row]) -> Iterator[str]:
    """Rows that are not what they seem, or no figure at all."""
    for row in rows:
        place = f"{row['target']} {row['cell']}"
        if not row["n"]:
            yield f"{place}: no answer in time, no figure"
        elif row["errors"] or row["non200"]:
            yield f"{place}: {row['errors']} errors and {row['non200']} answers other than 200"
        if merged(row):
            yield f"{place}: events came merged, the machine was busy; their CPU is no figure"
