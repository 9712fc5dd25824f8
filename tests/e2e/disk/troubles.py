"""What may happen to the disk under a database: begun and ended at will, by means of the machine
and not of our code."""

from __future__ import annotations

import io
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

SHIM = Path(__file__).with_name("shim.c")
TMPFS_BYTES = 32 * 2**20  # above what the write-ahead log grows to


class Impossible(Exception):
    """This machine cannot be brought into this trouble; the text says what is missing."""


class Trouble(Protocol):
    environment: dict[str, str]  # of the proxy

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Shimmed:
    """A library before libc lets system calls fail: `n` no space, `e` no reading and no writing,
    `f` no syncing."""

    def __init__(self, folder: Path, letter: str) -> None:
        self._letter = letter
        self._control = folder / "control"
        self._control.write_bytes(b"-")
        self.environment = {
            "LD_PRELOAD": str(_compiled(folder)),
            "OM_DISK_FAULT": str(self._control),
        }

    def begin(self) -> None:
        self._set(self._letter)

    def end(self) -> None:
        self._set("-")

    def _set(self, letter: str) -> None:
        with self._control.open("r+b") as control:  # in place: the proxy has mapped it
            control.write(letter.encode())


def _compiled(folder: Path) -> Path:
    compiler, library = shutil.which("gcc") or shutil.which("cc"), folder / "shim.so"
    if compiler is None:
        raise Impossible("no C compiler for the shim")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True
    )
    return library


class Locked:
    """Another process's lock: a backup, a shell."""

    def __init__(self, database: Path) -> None:
        self.environment: dict[str, str] = {}
        self._database = database
        self._connection: sqlite3.Connection | None = None

    def begin(self) -> None:
        self._connection = sqlite3.connect(self._database, isolation_level=None, timeout=10)
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        if self._connection is not None:
            with closing(self._connection) as connection:
                connection.execute("ROLLBACK")
            self._connection = None


class Full:
    """A small file system without a byte left."""

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        self._filler = folder / "filler"

    def begin(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            for size in (65_536, 4_096, 1):
                self._fill(filler, size)

    @staticmethod
    def _fill(filler: io.RawIOBase, size: int) -> None:
        try:
            while filler.write(bytes(size)) == size:
                pass
        except OSError:
            return

    def end(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_file_system(at: Path) -> Iterator[Path]:
    """A tmpfs of a few megabytes. Raises Impossible where nothing may be mounted."""
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(at)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise Impossible("no file system may be mounted here") from exc
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
