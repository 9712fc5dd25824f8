"""What is acknowledged survives power cuts: a process that commits is killed, and only what it had
synced by then is kept of its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY
from tests.storage.sqlite.test_store import COMMITTER
from tests.support.long_forms import IS_LONG

CUTS = 30 if IS_LONG else 3
# between two of them, at most; some 300 bring a checkpoint, which moves the log's content
COMMITS = 400 if IS_LONG else 60
ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("gcc") or shutil.which("cc")

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux",
    reason="NO POWER IS CUT: that takes Linux and a C compiler",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("built") / "synced_files.so"
    source = Path(__file__).with_name("synced_files.c")
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


def commit_until_cut(disk: Path, least: int, environment: Mapping[str, str]) -> int:
    """Return the last seq that a committing process acknowledged before its power was cut, soon
    after its `least`-th commit. `disk` holds what it had synced then, and nothing else."""
    volatile = disk.with_name("volatile")
    shutil.copytree(disk, volatile)
    places = os.pathsep.join(map(str, (ROOT, ROOT / "proxy")))
    env = {**os.environ, **environment, "PYTHONPATH": places, "OM_SYNCED": str(disk)}
    command = [sys.executable, "-c", COMMITTER, str(volatile / "om.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout
        told = [process.stdout.readline() for _ in range(least)]
        process.kill()  # by now it is anywhere in a later commit
        told += process.stdout.readlines()
    shutil.rmtree(volatile)
    for unfinished in disk.glob("*-part"):
        unfinished.unlink()
    return int([line for line in told if line.endswith(b"\n")][-1])


async def read_texts(disk: Path) -> list[bytes]:
    """Return what a server finds that is started on the disk after the cut."""
    store = await SqliteStore.open(disk / "om.db")
    memory = await store.load(KEY)
    messages = await store.messages_by_seq(KEY, range(memory.next_seq + 9))
    await store.close()
    return [message.item.raw for message in messages]


async def test_power_cuts_lose_nothing_acknowledged(tmp_path: Path, library: Path) -> None:
    """One after the other, on the same disk."""
    random, disk = Random(30), tmp_path / "disk"
    disk.mkdir()
    for _ in range(CUTS):
        least = random.randint(1, COMMITS)
        acknowledged = commit_until_cut(disk, least, {"LD_PRELOAD": str(library)})
        found = await read_texts(disk)
        assert len(found) >= acknowledged
        assert found == [f"m{seq}".encode() for seq in range(1, len(found) + 1)]


async def test_a_log_that_is_not_synced_loses_them(tmp_path: Path, library: Path) -> None:
    """So the test above would notice."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unsynced = {"LD_PRELOAD": str(library), "OM_UNSYNCED": "-wal"}
    acknowledged = commit_until_cut(disk, 20, unsynced)
    assert len(await read_texts(disk)) < acknowledged
