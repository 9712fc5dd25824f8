"""Workers share their arrays: what an ended one counted is neither lost nor counted twice."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from om_proxy.observability.figures import metrics, worker_folder
from om_proxy.observability.figures.series import Series
from om_proxy.observability.figures.worker_folder import (
    ARRAY_SUFFIX,
    FOLDER_PREFIX,
    WorkerFolder,
    create_folder,
    remove_abandoned,
)

OBSERVE = ("om_failures_total", "cause", "observe")
COUNTING_WORKER = """
import os, signal, sys
from collections.abc import Callable
from pathlib import Path
from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.series import Series
from om_proxy.observability.figures.worker_folder import WorkerFolder
folder = WorkerFolder(Path(sys.argv[1]))
series = Series(folder.array)
series.set(metrics.WORK_RUNNING, 5)
for _ in range(int(sys.argv[2])):
    series.add(metrics.FAILURES, "observe")
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_killed_worker(folder: Path, times: int) -> None:
    """Run a process that counts so often and is then killed."""
    command = [sys.executable, "-c", COUNTING_WORKER, str(folder), str(times)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def count_failures(worker: WorkerFolder, times: int) -> Series:
    series = Series(worker.array)
    series.add(metrics.FAILURES, "observe", amount=times)
    return series


def test_living_workers_add_up(tmp_path: Path) -> None:
    first, second = WorkerFolder(tmp_path), WorkerFolder(tmp_path)
    count_failures(first, 2)
    count_failures(second, 3).set(metrics.WORK_RUNNING, 4)
    for worker in (first, second):
        assert worker.add_up() == {OBSERVE: (5.0,), ("om_work_running",): (4.0,)}


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """Its counters stay, at every later scrape; its gauges end with it."""
    run_killed_worker(tmp_path, 3)
    run_killed_worker(tmp_path, 4)
    worker = WorkerFolder(tmp_path)
    count_failures(worker, 1)
    for _ in range(3):
        assert worker.add_up() == {OBSERVE: (8.0,)}
    assert len(list(tmp_path.glob(f"*{ARRAY_SUFFIX}"))) == 1
    run_killed_worker(tmp_path, 2)
    assert worker.add_up() == {OBSERVE: (10.0,)}


def test_a_worker_that_closed_is_folded(tmp_path: Path) -> None:
    ended, living = WorkerFolder(tmp_path), WorkerFolder(tmp_path)
    count_failures(ended, 2)
    ended.close()
    assert living.add_up() == {OBSERVE: (2.0,)}
    assert not ended._file.exists()


@pytest.mark.parametrize("cut_at", ["write_bytes", "replace", "unlink"])
def test_a_kill_while_folding_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: str
) -> None:
    """Whatever step the fold does not reach, the next scrape says the same."""
    run_killed_worker(tmp_path, 3)
    worker = WorkerFolder(tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, cut_at, stop)
        with pytest.raises(KeyboardInterrupt):
            worker.add_up()
    assert worker.add_up() == {OBSERVE: (3.0,)}
    assert worker.add_up() == {OBSERVE: (3.0,)}


def test_the_folder_is_private_and_goes_with_its_server() -> None:
    with create_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        WorkerFolder(folder)
    assert not folder.exists()


def test_a_folder_where_there_is_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_folder, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with create_folder() as folder:
        assert folder.parent == tmp_path


def test_folders_of_killed_servers_are_removed(tmp_path: Path) -> None:
    """A folder in use stays: a server or one of its workers lives."""
    abandoned = tmp_path / f"{FOLDER_PREFIX}abandoned"
    in_use = tmp_path / f"{FOLDER_PREFIX}in-use"
    for folder in (abandoned, in_use):
        folder.mkdir()
        (folder / "server").touch()
    run_killed_worker(abandoned, 1)
    worker = WorkerFolder(in_use)
    remove_abandoned(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == [in_use.name]
    worker.close()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_growing_array_is_locked_still(tmp_path: Path) -> None:
    """A worker whose array grew still counts as living."""
    worker, reader = WorkerFolder(tmp_path), WorkerFolder(tmp_path)
    series = Series(worker.array)
    for number in range(5_000):
        series.add(metrics.FAILURES, str(number))
    assert len(reader.add_up()) == 5_000
    assert len(list(tmp_path.glob(f"*{ARRAY_SUFFIX}"))) == 2
    assert os.path.getsize(worker._file) > 1 << 16


def run_before_next_lock(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Run this in the moment between the creation of the next file and its lock."""
    lock, waiting = fcntl.flock, [meanwhile]

    def lock_later(descriptor: int, operation: int) -> None:
        if waiting:
            waiting.pop()()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_later)


def test_a_scrape_while_a_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that is not locked yet is not taken for that of an ended worker."""
    reader = WorkerFolder(tmp_path)
    run_before_next_lock(monkeypatch, reader.add_up)
    worker = WorkerFolder(tmp_path)
    count_failures(worker, 2)
    assert reader.add_up() == {OBSERVE: (2.0,)}


def test_a_server_that_starts_while_another_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is not taken for that of a killed server."""
    monkeypatch.setattr(worker_folder, "SHARED_MEMORY", tmp_path)
    run_before_next_lock(monkeypatch, lambda: remove_abandoned(tmp_path))
    with create_folder() as folder:
        remove_abandoned(tmp_path)
        WorkerFolder(folder)
    assert not folder.exists()
