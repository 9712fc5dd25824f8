"""Run the story's tools: a small database, files, a test run, logs. Their answers are computed.

The nights of the food bank are plans, planner logs and fridge readings. They are drawn from seeded
dice, so they are always the same.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from importlib.resources import files
from typing import Any

import yaml

FIRST_NIGHT = date(2026, 2, 2)  # the planner's data begin here
DOOR_LOGGER_SINCE = date(2026, 2, 16)  # van 7 gets a second logger
DOOR_STUCK_NIGHT = date(2026, 2, 19)  # van 11 drives with its door ajar
LOW_ROOF_SINCE = date(2026, 3, 3)  # the first night on which the planner knows the low roof
INDEX_SINCE = date(2026, 3, 4)  # the first night after the slow query gets its index
TRACE_SINCE = date(2026, 3, 3)  # somebody switches the route trace on, and forgets it
TRACE_UNTIL = date(2026, 3, 10)
FULL_DISK_NIGHT = date(2026, 3, 8)  # the night without a plan

VANS = {  # van: height in m, capacity in kg
    1: (2.62, 900), 2: (2.62, 900), 3: (2.71, 1100), 4: (2.71, 1100), 5: (2.78, 1250), 6: (2.94, 1400), 7: (2.78, 1250),
    8: (2.94, 1400), 9: (2.62, 900), 10: (2.71, 1100), 11: (3.05, 1650), 12: (3.05, 1650), 13: (2.62, 900), 14: (2.78, 1250),
}  # fmt: skip
SITES = {  # site: kind, minutes from the hub, opens, closes
    "Quarry Steps": ("pantry", 34, "07:00", "11:30"), "Gorse Hill": ("school", 21, "07:15", "08:40"),
    "Ferry Yard": ("pantry", 27, "08:00", "13:00"), "Tithe Barn": ("kitchen", 44, "06:45", "10:00"),
    "Osier Field": ("pantry", 38, "08:30", "12:30"), "Beacon Court": ("shelter", 12, "06:30", "22:00"),
    "Long Meadow": ("school", 29, "07:15", "08:40"), "Saltern Row": ("kitchen", 51, "07:00", "10:30"),
    "Pump House": ("pantry", 18, "09:00", "14:00"), "Heron Bridge": ("shelter", 23, "06:30", "22:00"),
    "Kiln Corner": ("pantry", 41, "08:00", "12:00"), "Weavers Hall": ("kitchen", 16, "07:30", "11:00"),
    "Lamp Street": ("school", 9, "07:15", "08:40"), "North Sluice": ("pantry", 56, "08:00", "12:00"),
    "Rook Wood": ("school", 33, "07:15", "08:40"), "Chandler's Loft": ("shelter", 14, "06:30", "22:00"),
}  # fmt: skip
GOODS = (
    "milk 4x2l",
    "yoghurt 24x125g",
    "cheddar 5kg",
    "butter 20x250g",
    "cream 12x300ml",
    "cottage cheese 12x200g",
)


def create_dice(*seed: object) -> random.Random:
    """Create dice with a seed for each question, so that one answer never changes another."""
    return random.Random(repr(seed))  # noqa: S311 — a story's dice, no secret


def draw_drops(night: date) -> Iterator[tuple[Any, ...]]:
    """Yield (day, site, kg, chilled, priority) of each delivery of a day."""
    roll = create_dice("drops", night)
    for site in SITES:
        for _ in range(roll.randint(2, 5)):
            yield (
                night.isoformat(),
                site,
                roll.randint(4, 31) * 10,
                int(roll.random() < 0.45),
                roll.choice("aabbbc"),
            )


def draw_run(night: date) -> tuple[Any, ...]:
    """Return (day, started, finished, seconds, drops, vans, status) of one planner run."""
    roll = create_dice("run", night)
    count = len(list(draw_drops(night)))
    age = (night - FIRST_NIGHT).days
    seconds = (
        290 + roll.randint(0, 50) if night >= INDEX_SINCE else 380 + age * 72 + roll.randint(0, 90)
    )
    begin = datetime.combine(night, time(4, 20))
    if night == FULL_DISK_NIGHT:
        return night.isoformat(), "04:20:00", None, 97, count, 0, "failed"
    return (
        night.isoformat(),
        "04:20:00",
        f"{begin + timedelta(seconds=seconds):%H:%M:%S}",
        seconds,
        count,
        14,
        "ok",
    )


def draw_plan(night: date) -> Iterator[tuple[Any, ...]]:
    """Yield (day, van, stop, site, eta, kg) of a day's plan; nothing for the night that failed."""
    if night == FULL_DISK_NIGHT:
        return
    roll = create_dice("plan", night)
    waiting = list(draw_drops(night))
    roll.shuffle(waiting)
    if night >= LOW_ROOF_SINCE:  # the first vans are low enough
        waiting.sort(key=lambda drop: drop[1] != "Quarry Steps")
    for van in VANS:
        mine, waiting = (
            waiting[: -(-len(waiting) // (15 - van))],
            waiting[-(-len(waiting) // (15 - van)) :],
        )
        clock = datetime.combine(night, time(6, 10)) + timedelta(minutes=roll.randint(0, 25))
        for stop, (day, site, kg, *_) in enumerate(
            sorted(mine, key=lambda drop: SITES[drop[1]][1]), start=1
        ):
            clock += timedelta(minutes=roll.randint(11, 38))
            yield day, van, stop, site, f"{clock:%H:%M}", kg


def draw_readings(night: date) -> Iterator[tuple[Any, ...]]:
    """Yield (day, van, logger, at, celsius), every two minutes of the morning. From
    DOOR_LOGGER_SINCE on, van 7 has a second logger, at the door."""
    for van in (4, 7, 11):
        for logger in ("load", "door") if van == 7 and night >= DOOR_LOGGER_SINCE else ("load",):
            yield from _draw_trace(night, van, logger)


def _draw_trace(night: date, van: int, logger: str) -> Iterator[tuple[Any, ...]]:
    roll = create_dice("readings", night, van, logger)
    doors = sorted(
        roll.sample(range(12, 75), 3)
    )  # readings at which the door opens for some minutes
    open_for = 17 if (night, van) == (DOOR_STUCK_NIGHT, 11) else 5 if logger == "door" else 2
    warmth = 0.0
    for i in range(95):
        open_now = any(door <= i < door + open_for for door in doors)
        warmth = min(warmth + 1.1, 4.0) if open_now else max(warmth * 0.72 - 0.05, 0.0)
        at = datetime.combine(night, time(6, 20)) + timedelta(minutes=2 * i)
        yield (
            night.isoformat(),
            van,
            logger,
            f"{at:%H:%M}",
            round(2.7 + warmth + roll.uniform(-0.35, 0.35), 1),
        )


def render_planner_log(night: date, lines: int) -> str:
    """Render the last lines of the planner's log of that night."""
    return "\n".join(list(_write_log(night))[-lines:])


def _write_log(night: date) -> Iterator[str]:
    roll = create_dice("log", night)
    clock = datetime.combine(night, time(4, 20))
    _, _, finished, seconds, count, _, status = draw_run(night)
    yield f"{clock:%F %T} INFO  planner  start drops={count} vans=14 trace={'on' if TRACE_SINCE < night < TRACE_UNTIL else 'off'}"
    # the failed night ended at van 10; its stops are taken from the night before
    stops = [
        s
        for s in draw_plan(night if finished else night - timedelta(days=1))
        if finished or s[1] <= 10
    ]
    for _, van, stop, site, eta, kg in stops:
        clock += timedelta(seconds=seconds / len(stops) * roll.uniform(0.5, 1.45))
        yield from (
            f"{clock:%F %T} {line}" for line in _write_stop_lines(roll, van, stop, site, eta, kg)
        )
    yield from _write_log_end(f"{clock:%F %T}", status, seconds)


def _write_stop_lines(
    roll: random.Random, van: int, stop: int, site: str, eta: str, kg: int
) -> Iterator[str]:
    opens = SITES[site][2]
    if roll.random() < 0.6:
        yield f"DEBUG history  {site!r}: {roll.randint(90, 140)} past drops, usual {roll.randint(11, 19)} min to unload"
    yield f"INFO  assign   van {van:>2} stop {stop} {site} eta {eta} +{kg} kg ({100 * kg // VANS[van][1]} % of the van)"
    if eta < opens:
        yield f"WARN  window   van {van:>2} stop {stop} {site} eta {eta}: opens at {opens}, waiting there"
    if roll.random() < 0.45:
        other = roll.randint(1, 14)
        yield f"DEBUG swap     tried {roll.randint(4, 25)} between van {van} and van {other}, best saves {roll.randint(0, 14)} min"
    if roll.random() < 0.15:
        yield f"INFO  swap     van {van} stop {stop} <-> van {roll.randint(1, 14)} stop {roll.randint(1, 4)}: taken"


def _write_log_end(at: str, status: str, seconds: int) -> Iterator[str]:
    if status == "ok":
        yield f"{at} INFO  planner  done in {seconds} s, sheets written: 14"
        return
    yield f"{at} ERROR trace    cannot write /var/vanplan/trace/route-0059.json: [Errno 28] No space left on device"
    yield f"{at} ERROR planner  OSError while van 10 was being filled; no sheet was written, yesterday's sheets stay in place"
    yield f"{at} ERROR planner  exit 1 after {seconds} s"


def draw_dairy_orders() -> Iterator[tuple[str, ...]]:
    """Draw the dairy's order file, with its mistakes: weights in pounds, repeated orders, unknown
    sites."""
    roll = create_dice("dairy")
    rows = []
    for number in range(68):
        site = (
            roll.choice(("Osier Fields", "Depot 9"))
            if number in (17, 40, 55)
            else roll.choice(list(SITES))
        )
        unit = "lb" if number % 8 == 3 else "kg"
        weight = roll.randint(20, 240) * (2.2 if unit == "lb" else 1)
        day = date(2026, 3, 6) + timedelta(days=roll.randint(0, 3))
        rows.append(
            (
                f"D-{4100 + number}",
                site,
                roll.choice(GOODS),
                str(roll.randint(1, 18)),
                f"{weight:.1f}",
                unit,
                f"{day}",
            )
        )
    return iter([*rows, *(rows[i] for i in (5, 12, 29, 44))])


KG_PER_POUND = 0.45359237  # kg

_TABLES = """
CREATE TABLE vans (van INTEGER PRIMARY KEY, height_m REAL, capacity_kg INTEGER);
CREATE TABLE sites (site TEXT PRIMARY KEY, kind TEXT, minutes INTEGER, opens TEXT, closes TEXT);
CREATE TABLE drops (day TEXT, site TEXT, kg INTEGER, chilled INTEGER, priority TEXT);
CREATE TABLE plans (day TEXT, van INTEGER, stop INTEGER, site TEXT, eta TEXT, kg INTEGER);
CREATE TABLE runs (day TEXT, started TEXT, finished TEXT, seconds INTEGER, drops INTEGER, vans INTEGER, status TEXT);
CREATE TABLE readings (day TEXT, van INTEGER, logger TEXT, at TEXT, celsius REAL);
"""
_NIGHTLY: dict[str, Callable[[date], Iterable[tuple[Any, ...]]]] = {
    "drops": draw_drops,
    "plans": draw_plan,
    "runs": lambda night: [draw_run(night)],
    "readings": draw_readings,
}


class World:
    """The world that the assistant's tools read and change."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.executescript(_TABLES)
        self._insert_rows("vans", ((van, *facts) for van, facts in VANS.items()))
        self._insert_rows("sites", ((site, *facts) for site, facts in SITES.items()))
        self._next = FIRST_NIGHT
        self._paper = yaml.safe_load(
            (files("om_proxy.cli.demo") / "days" / "desk.yaml").read_text("utf-8")
        )
        self._written: set[str] = set()
        self._tools: Mapping[str, Callable[..., str]] = {
            "list_files": self._list_files,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "run_tests": self._run_tests,
            "query": self._query,
            "tail_log": lambda night, lines: render_planner_log(date.fromisoformat(night), lines),
            "calendar": self._calendar,
            "shell": self._shell,
        }

    def advance_to(self, morning: date) -> None:
        """Add the data of the nights up to this morning."""
        while self._next <= morning:
            for table, rows in _NIGHTLY.items():
                self._insert_rows(table, rows(self._next))
            self._next += timedelta(days=1)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        return self._tools[tool](**arguments)

    def close(self) -> None:
        self._db.close()

    def _insert_rows(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 — our own names

    def _query(self, sql: str) -> str:
        cursor = self._db.execute(sql)
        if cursor.description is None:
            return "ok"
        rows = cursor.fetchall()
        head = ",".join(column[0] for column in cursor.description)
        body = [",".join("" if v is None else str(v) for v in row) for row in rows]
        return "\n".join([head, *body, f"({len(rows)} rows)"])

    def _list_files(self, folder: str) -> str:
        paths: dict[str, int] = self._paper["tree"]
        return "\n".join(
            f"{size:>7}  {path}" for path, size in paths.items() if path.startswith(folder)
        )

    def _read_file(self, path: str) -> str:
        if path.endswith(".csv"):
            return "\n".join(
                [
                    "order,site,product,qty,weight,unit,deliver_on",
                    *map(",".join, draw_dairy_orders()),
                ]
            )
        text: str = self._paper["files"][path]
        return "\n".join(f"{n:>4}  {line}" for n, line in enumerate(text.splitlines(), start=1))

    def _write_file(self, path: str, text: str) -> str:
        self._written.add(path)
        return f"wrote {path}: {len(text.splitlines())} lines"

    def _run_tests(self, target: str) -> str:
        existing = [
            test
            for test in self._paper["tests"]
            if test.get("since") is None or test["since"] in self._written
        ]
        tests = [test for test in existing if test["name"].startswith(target)]
        failed = [test for test in tests if "until" in test and test["until"] not in self._written]
        marks = [(test, "FAILED" if test in failed else "PASSED") for test in tests]
        lines = [
            f"{test['name']} {mark} [{100 * i // len(tests):>3}%]"
            for i, (test, mark) in enumerate(marks, start=1)
        ]
        for test in failed:
            lines.append(f"____ {test['name'].rpartition('::')[2]} ____\n{test['trace'].rstrip()}")
        failures = f"{len(failed)} failed, " if failed else ""
        return "\n".join([*lines, f"==== {failures}{len(tests) - len(failed)} passed ===="])

    def _calendar(self, first: str, last: str) -> str:
        entries = [e for e in self._paper["calendar"] if first <= str(e["day"]) <= last]
        return (
            "\n".join(f"{e['day']:%a %F} {e['at']:<11} {e['what']} [{e['who']}]" for e in entries)
            or "nothing"
        )

    def _shell(self, command: str) -> str:
        if command.startswith("vanplan import"):
            return report_dry_run(draw_dairy_orders())
        output: str = self._paper["shell"][command]
        return output.rstrip()


def report_dry_run(orders: Iterable[tuple[str, ...]]) -> str:
    """Report what the importer would do with each order."""
    lines, counts, seen = [], {"take": 0, "convert": 0, "reject": 0}, set()
    for order, site, product, _, weight, unit, day in orders:
        if order in seen:
            verdict, why = "reject", "order number seen before in this file"
        elif site not in SITES:
            verdict, why = "reject", f"unknown site {site!r}"
        elif unit == "lb":
            verdict, why = "convert", f"{weight} lb -> {float(weight) * KG_PER_POUND:.1f} kg"
        else:
            verdict, why = "take", f"{weight} kg for {day}"
        seen.add(order)
        counts[verdict] += 1
        lines.append(f"{verdict:<8}{order}  {site:<16}{product:<24}{why}")
    return "\n".join(
        [*lines, "total: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items())]
    )
