"""A PostgreSQL server of one test's own, to be killed and started again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.free_port import free_port
from tests.support.postgres_server import HOW_TO_START

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
START_TIMEOUT_S = 60.0


def find_programs() -> Path:
    """Return the folder of the newest server's programs. Skip the test where there is none, or fail
    it in CI."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda f: float(f.parent.name))
    if named := shutil.which("initdb"):
        folders.insert(0, Path(named).resolve().parent)
    for folder in reversed(folders):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    if os.environ.get("OM_TEST_SERVERS") == "required":
        pytest.fail(HOW_TO_START)
    pytest.skip(HOW_TO_START)


class OwnPostgres:
    """A server on a port that stays the same. Its data outlives `kill`."""

    def __init__(self, folder: Path, log: Path | None = None) -> None:
        self._programs = find_programs()
        self._data = folder / "data"
        self._copy = folder / "copy"
        self._log = (log or folder / "log").open("ab")
        # PostgreSQL refuses to run as root
        self._owner = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._data.mkdir()
        if self._owner:
            shutil.chown(self._data, "postgres", "postgres")
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://postgres:geheim@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *options: str) -> None:
        command = [self._programs / program, "--pgdata", self._data, *options]
        subprocess.run(
            command, check=True, stdout=self._log, stderr=self._log, cwd="/", **self._owner
        )

    def start(self, *settings: str) -> None:
        """Start it, with settings as `max_connections=9`, and return once it answers."""
        options = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            *settings,
        ]
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._data, *(f"--{option}" for option in options)],
            stdout=self._log,
            stderr=self._log,
            cwd="/",
            **self._owner,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        ready = [self._programs / "pg_isready", "--host=127.0.0.1", f"--port={self.port}"]
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            assert self._process.poll() is None, "PostgreSQL did not start"
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """End all its processes at once, as a power cut does. What is acknowledged is in its log."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown, without a checkpoint
            self._process.wait(30)
            self._process = None

    def copy(self) -> None:
        """Copy its files, while it does not run."""
        self._replace_files(self._data, self._copy)

    def put_copy_back(self) -> None:
        """Take its files back to the copy, while it does not run."""
        self._replace_files(self._copy, self._data)

    def _replace_files(self, source: Path, target: Path) -> None:
        assert self._process is None
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "--archive", source, target], check=True)

    def count_in_tables(self, words: bytes) -> int:
        """Return how often the words stand in the files of tables and indexes, dead rows too."""
        files = (file for file in (self._data / "base").rglob("*") if file.is_file())
        return sum(file.read_bytes().count(words) for file in files)

    def count_in_log(self, words: bytes) -> int:
        """Return how often the words stand in the write-ahead log."""
        files = (file for file in (self._data / "pg_wal").rglob("*") if file.is_file())
        return sum(file.read_bytes().count(words) for file in files)

    def dump(self) -> bytes:
        """Return what `pg_dump` writes."""
        command = [self._programs / "pg_dump", f"--dbname={self.url}"]
        return subprocess.run(command, check=True, capture_output=True, cwd="/").stdout

    def close(self) -> None:
        self.kill()
        self._log.close()


@contextmanager
def own_postgres(log: Path | None = None) -> Iterator[OwnPostgres]:
    """Yield a server that does not run yet. `log`: the file for its log, to outlive it."""
    parent = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="om-test-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = OwnPostgres(folder, log)
        try:
            yield server
        finally:
            server.close()
