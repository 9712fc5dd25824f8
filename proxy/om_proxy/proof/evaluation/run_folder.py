"""The folder of a run: what was asked for, the log of calls, the cases that are done, and the
report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from om_proxy.common.errors import Conflict, NotFound, UsageError
from om_proxy.proof.evaluation.case_player import SYSTEMS

RUN_FILE, CASES_FILE = "run.json", "cases.jsonl"
REPORT_FILE, REPORT_PAGE = "report.json", "report.md"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, run: Mapping[str, Any]) -> None:
        """Begin a run. Raises Conflict if the folder has anything in it."""
        if self.path.exists() and any(self.path.iterdir()):
            raise Conflict(
                f"{self.path} is not empty: `om-proxy eval resume {self.path}` goes on with a run"
            )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self.path / RUN_FILE, dump(run))

    def read_run(self) -> dict[str, Any]:
        """Read what was asked for. Raises UsageError for a folder with links: it may come from
        others, and what is written in it would change files elsewhere."""
        if self.path.is_dir() and any(path.is_symlink() for path in self.path.iterdir()):
            raise UsageError(f"{self.path} holds links, and the folder of a run has none")
        try:
            run: dict[str, Any] = orjson.loads((self.path / RUN_FILE).read_bytes())
        except FileNotFoundError as exc:
            raise NotFound(f"{self.path} holds no run: there is no {RUN_FILE}") from exc
        except ValueError as exc:
            raise UsageError(f"{self.path / RUN_FILE} is damaged: {exc}") from exc
        return run

    def append_case(self, row: Mapping[str, Any]) -> None:
        with (self.path / CASES_FILE).open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_cases(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are whole; a killed run may have left a part of its last one."""
        path = self.path / CASES_FILE
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):
                yield orjson.loads(line)

    def cut_torn_case(self) -> None:
        path = self.path / CASES_FILE
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            write_whole(path, data[: data.rfind(b"\n") + 1])

    def write_report(self, report: Mapping[str, Any], page: str) -> None:
        if unknown := set(report["systems"]).difference(SYSTEMS):
            raise UsageError(
                f"{CASES_FILE} names system {min(unknown)!r}: there are {', '.join(SYSTEMS)}"
            )
        for system in report["systems"]:
            hypotheses = self._read_hypotheses(system)
            write_whole(self.path / f"hypotheses-{system}.jsonl", b"".join(hypotheses))
        write_whole(self.path / REPORT_PAGE, page.encode())
        write_whole(self.path / REPORT_FILE, dump(report))

    def read_report(self) -> dict[str, Any]:
        try:
            report: dict[str, Any] = orjson.loads((self.path / REPORT_FILE).read_bytes())
        except (FileNotFoundError, ValueError) as exc:
            raise NotFound(
                f"{self.path} has no {REPORT_FILE}: `om-proxy eval resume {self.path}` ends the run"
            ) from exc
        return report

    def _read_hypotheses(self, system: str) -> Iterable[bytes]:
        """Yield lines in the form that LongMemEval's own script reads."""
        for row in self.read_cases():
            for answer in row.get("answers", ()):
                if answer["system"] == system:
                    line = {"question_id": answer["question"], "hypothesis": answer["hypothesis"]}
                    yield orjson.dumps(line) + b"\n"


def dump(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody sees half of."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)
