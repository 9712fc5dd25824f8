"""Run the story's tools: a small database, files, a test run, logs. Their answers are computed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from importlib.resources import files
from typing import Any

import yaml

from om_proxy.cli.demo import nights

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
    "drops": nights.draw_drops,
    "plans": nights.draw_plan,
    "runs": lambda night: [nights.draw_run(night)],
    "readings": nights.draw_readings,
}


class World:
    """The world that the assistant's tools read and change."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.executescript(_TABLES)
        self._insert_rows("vans", ((van, *facts) for van, facts in nights.VANS.items()))
        self._insert_rows("sites", ((site, *facts) for site, facts in nights.SITES.items()))
        self._next = nights.FIRST_NIGHT
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
            "tail_log": lambda night, lines: nights.render_planner_log(
                date.fromisoformat(night), lines
            ),
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
                    *map(",".join, nights.draw_dairy_orders()),
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
        return "\n".join(
            [
                *_render_progress(tests, failed),
                *_render_failures(failed),
                _render_summary(tests, failed),
            ]
        )

    def _calendar(self, first: str, last: str) -> str:
        entries = [e for e in self._paper["calendar"] if first <= str(e["day"]) <= last]
        return (
            "\n".join(f"{e['day']:%a %F} {e['at']:<11} {e['what']} [{e['who']}]" for e in entries)
            or "nothing"
        )

    def _shell(self, command: str) -> str:
        if command.startswith("vanplan import"):
            return report_dry_run(nights.draw_dairy_orders())
        output: str = self._paper["shell"][command]
        return output.rstrip()


def _render_progress(
    tests: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]
) -> Iterable[str]:
    for i, test in enumerate(tests, start=1):
        yield f"{test['name']} {'FAILED' if test in failed else 'PASSED'} [{100 * i // len(tests):>3}%]"


def _render_failures(failed: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for test in failed:
        yield f"____ {test['name'].rpartition('::')[2]} ____\n{test['trace'].rstrip()}"


def _render_summary(tests: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]) -> str:
    passed = f"{len(tests) - len(failed)} passed"
    return f"==== {f'{len(failed)} failed, ' if failed else ''}{passed} ===="


def report_dry_run(orders: Iterable[tuple[str, ...]]) -> str:
    """Report what the importer would do with each order."""
    lines, counts, seen = [], {"take": 0, "convert": 0, "reject": 0}, set()
    for order, site, product, _, weight, unit, day in orders:
        if order in seen:
            verdict, why = "reject", "order number seen before in this file"
        elif site not in nights.SITES:
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
