"""A Redis server of one test's own, to be killed and started again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.free_port import free_port
from tests.support.redis_server import HOW_TO_START

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
START_TIMEOUT_S = 60.0
PASSWORD = "geheim"


class OwnRedis:
    """A server on a port that stays the same. Its log outlives `kill`."""

    def __init__(
        self, folder: Path, program: str, log: Path | None, settings: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._program = program
        self._settings = {"appendonly": "yes", "save": "", **settings}
        self._log = (log or folder / "log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self, **settings: str) -> None:
        """Start it, with settings as `appendfsync="always"`, and return once it answers."""
        chosen = {**self._settings, **settings}
        options = [
            part
            for name, value in chosen.items()
            for part in (f"--{name.replace('_', '-')}", value)
        ]
        self.process = subprocess.Popen(
            [
                *(self._program, "--bind", "127.0.0.1", "--port", str(self.port)),
                *("--dir", str(self.folder), "--requirepass", PASSWORD, *options),
            ],
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, "Redis did not start"
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        import redis

        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def ask(self, *command: str | int) -> Any:
        """Run one command on a connection of its own."""
        import redis  # of the few tests that have a server

        with redis.Redis.from_url(self.url, socket_timeout=START_TIMEOUT_S) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """End it at once. What it has written to its log's file stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def count_in_files(self, words: bytes) -> int:
        """Return how often the words stand in its log and snapshots."""
        files = (file for file in self.folder.rglob("*") if file.is_file())
        return sum(file.read_bytes().count(words) for file in files)

    def close(self) -> None:
        self.kill()
        self._log.close()


@contextmanager
def own_redis(log: Path | None = None, **settings: str) -> Iterator[OwnRedis]:
    """Yield a server that does not run yet. `log`: the file for its log, to outlive it. `settings`:
    of each start."""
    program = shutil.which("redis-server")
    if program is None:
        if os.environ.get("OM_TEST_SERVERS") == "required":
            pytest.fail(HOW_TO_START)
        pytest.skip(HOW_TO_START)
    parent = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="om-test-redis-") as name:
        server = OwnRedis(Path(name), program, log, settings)
        try:
            yield server
        finally:
            server.close()
