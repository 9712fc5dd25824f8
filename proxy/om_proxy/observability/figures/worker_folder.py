"""Share the arrays of all workers of one server in a folder, so that any worker answers for all.

    lock              held while arrays are read or folded
    models, threads   the label values that were admitted (label_values.py)
    <id>.numbers      the array of one worker, which holds a lock on it as long as it lives
    folded            the sums of workers that have ended

The array of an ended worker is added to `folded`, which also names the arrays that it holds. It is
replaced as a whole, so a kill between that and the removal of the array counts nothing twice.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from om_proxy.observability.figures.series import (
    NumberArray,
    SeriesName,
    Sums,
    add_numbers,
    add_up,
    drop_gauges,
)

if sys.platform != "win32":  # there, one process serves and counts in its own memory
    import fcntl

FOLDER_PREFIX = "om-proxy-figures-"
ARRAY_SUFFIX = ".numbers"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it has a random name and is private


class Folded(msgspec.Struct):
    """The file `folded`."""

    arrays: tuple[str, ...] = ()  # whose numbers are in it
    sums: tuple[tuple[SeriesName, tuple[float, ...]], ...] = ()


@contextmanager
def create_folder() -> Iterator[Path]:
    """Make a folder for the workers of one server, and remove it at the end. In shared memory an
    addition never waits for a disk."""
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    try:
        descriptor = _create_locked(folder / "server")
        try:
            remove_abandoned(parent)
            yield folder
        finally:
            os.close(descriptor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of servers that were killed: no process holds a lock in them. One without
    the file `server` is of a server that starts now."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, or just removed
            server = folder / "server"
            held = [server, *folder.glob(f"*{ARRAY_SUFFIX}")]
            is_ours = folder.stat().st_uid == os.getuid() and server.exists()
            if is_ours and not any(map(is_locked, held)):
                shutil.rmtree(folder)


class WorkerFolder:
    """The folder as one worker uses it. `array` is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / f"{os.getpid()}-{uuid.uuid4().hex}{ARRAY_SUFFIX}"
        self.array = NumberArray(_create_locked(self._file))

    def add_up(self) -> Sums:
        """Return the sums of all workers, ended ones included. Fold the arrays of ended workers.
        This reads files: call it in a thread."""
        with _hold_lock(self.folder / "lock"):
            folded = _fold_ended(self.folder)
            living = add_up(map(Path.read_bytes, _list_arrays(self.folder)))
        for name, numbers in folded.sums:
            add_numbers(living, name, numbers)
        return living

    def close(self) -> None:
        """Stop counting. The numbers stay in the file, for the workers that go on."""
        self.array.close()


def _fold_ended(folder: Path) -> Folded:
    """Add the arrays of ended workers to `folded`. Return its content."""
    file = folder / "folded"
    folded = msgspec.json.decode(file.read_bytes(), type=Folded) if file.exists() else Folded()
    ended = [array for array in _list_arrays(folder) if not is_locked(array)]
    unread = [array for array in ended if array.name not in folded.arrays]
    if unread:
        folded = _add_arrays(folded, unread, ended)
        new_file = folder / "folded.new"
        new_file.write_bytes(msgspec.json.encode(folded))
        new_file.replace(file)
    for array in ended:
        array.unlink()
    return folded


def _add_arrays(folded: Folded, unread: Sequence[Path], ended: Sequence[Path]) -> Folded:
    sums = dict(folded.sums)
    for name, numbers in drop_gauges(add_up(map(Path.read_bytes, unread))).items():
        add_numbers(sums, name, numbers)
    return Folded(tuple(array.name for array in ended), tuple(sums.items()))


def _list_arrays(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{ARRAY_SUFFIX}"))


def is_locked(file: Path) -> bool:
    """Return whether a living process holds a lock on the file."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _create_locked(file: Path) -> int:
    """Create a file that is locked until the returned descriptor is closed, or the process ends. It
    gets its name when it is locked: one that others find without a lock is of an ended process."""
    unnamed = file.with_name(f"{file.name}.new")
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.replace(file)
    return descriptor


@contextmanager
def _hold_lock(file: Path) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
