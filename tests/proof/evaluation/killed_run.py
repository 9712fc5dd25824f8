"""Run by test_run.py: plays a run that is killed at each of twenty calls, again and again, and
compares its report with that of a run in one piece."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from om_proxy.proof.evaluation import call_log
from om_proxy.proof.evaluation.call_log import CallLog, CallRecord
from om_proxy.proof.evaluation.run import REPORT_FILE, RunFolder, describe_run, play_run
from tests.proof.evaluation.tiny import make_plan, write_data

KILLS = 20


def play(folder: Path, data: Path) -> None:
    asyncio.run(play_run(RunFolder(folder), make_plan(data), None, lambda _: None))


def play_until(calls: int, folder: Path, data: Path) -> None:
    """Play in a child process that kills itself at its next call but `calls`."""
    child = os.fork()
    if child == 0:
        append, left = CallLog.append, [calls]

        def append_or_die(log: CallLog, record: CallRecord) -> None:
            left[0] -= 1
            if left[0] >= 0:
                append(log, record)
                return
            if calls % 2:  # a part of the record is on the disk
                append(log, record)
                path = max(folder.glob(call_log.FILE_PATTERN))
                os.truncate(path, path.stat().st_size - 7)
            os.kill(os.getpid(), signal.SIGKILL)

        CallLog.append = append_or_die  # type: ignore[method-assign]  # the child alone has it
        play(folder, data)
        os._exit(0)
    os.waitpid(child, 0)


def main(root: Path) -> None:
    data = write_data(root, cases=2)
    whole, killed = root / "whole", root / "killed"
    for folder in (whole, killed):
        RunFolder(folder).create(describe_run(make_plan(data)))
    kills, known = 0, 0
    for number in range(KILLS):
        play_until(number % 3, killed, data)
        calls = len(list(CallLog(killed)))
        assert calls >= known, "a logged call was lost"
        kills, known = kills + 1, calls
    play(killed, data)
    play(whole, data)
    keys = [record.key for record in CallLog(killed)]
    assert len(keys) == len(set(keys)), "a call was paid for twice"
    reports = [(folder / REPORT_FILE).read_bytes() for folder in (whole, killed)]
    assert reports[0] == reports[1], "the reports differ"
    print(f"{kills} kills, {known} calls before the last part, {len(keys)} in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
