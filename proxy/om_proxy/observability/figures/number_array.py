"""Hold the numbers of one process as named rows of doubles, in memory or in a mapped file.

A mapped file keeps each addition when the process is killed: its pages belong to the kernel. The
file can be read while it grows, because a row is complete before `used` counts its bytes:

    magic · used (8 bytes) · spare numbers · rows: length of name (4), numbers (4), name, numbers

A name is UTF-8, padded with zeros to 8 bytes. A number is a double in the machine's byte order.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import Protocol

MAGIC = b"OMFIGS01"
USED_OFFSET = len(MAGIC)
# Rows that find no room share these numbers, which nobody reads: counting never fails a request.
SPARE_OFFSET = 16
SPARE_NUMBERS = 32
ROWS_OFFSET = SPARE_OFFSET + 8 * SPARE_NUMBERS
FIRST_BYTES = 1 << 16
ROW_HEAD = struct.Struct("=II")


class Backing(Protocol):
    """The bytes behind an array."""

    def resize(self, size: int) -> memoryview:
        """Return all bytes, `size` of them: the old ones, then zeros. Raise OSError for no room."""

    def close(self) -> None: ...


class MemoryBacking:
    """Bytes that end with the process."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def resize(self, size: int) -> memoryview:
        self._bytes = self._bytes + bytes(size - len(self._bytes))
        return memoryview(self._bytes)

    def close(self) -> None:
        self._bytes = bytearray()


class FileBacking:
    """Bytes of a file that other processes can read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def resize(self, size: int) -> memoryview:
        # Reserve the bytes: a write to a page without room on its disk would end the process.
        _reserve_bytes(self._descriptor, size)
        self._map = mmap.mmap(self._descriptor, size)
        return memoryview(self._map)

    def close(self) -> None:
        self._map = None  # the map is closed with its last view
        os.close(self._descriptor)


def _reserve_bytes(descriptor: int, size: int) -> None:
    """Let the file have `size` bytes, the new ones zero, all of them with room on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS has no such call; what is written has its room
    while (old_size := os.fstat(descriptor).st_size) < size:
        os.pwrite(descriptor, bytes(size - old_size), old_size)


class NumberArray:
    """An array of doubles. `numbers` is replaced when the array grows, so it must not be kept."""

    __slots__ = ("_backing", "_bytes", "_used", "numbers")

    def __init__(self, backing: Backing | None = None) -> None:
        self._backing = backing or MemoryBacking()
        self._bytes = self._backing.resize(FIRST_BYTES)
        self._bytes[:USED_OFFSET] = MAGIC
        self.numbers = self._bytes.cast("d")
        self._set_used(ROWS_OFFSET)

    def add_row(self, name: str, count: int) -> int:
        """Add a row of `count` zeros. Return the index of its first number in `numbers`."""
        encoded = name.encode()
        name_offset = self._used + ROW_HEAD.size
        numbers_offset = _pad(name_offset + len(encoded))
        end = numbers_offset + 8 * count
        if end > len(self._bytes) and not self._grow(end):
            return SPARE_OFFSET // 8
        ROW_HEAD.pack_into(self._bytes, self._used, len(encoded), count)
        self._bytes[name_offset : name_offset + len(encoded)] = encoded
        self._set_used(end)
        return numbers_offset // 8

    def copy(self) -> bytes:
        """Return the bytes of all rows, for `read_rows`."""
        return bytes(self._bytes[: self._used])

    def close(self) -> None:
        """Let the backing go. What is counted from now on is not read."""
        self._bytes = memoryview(bytearray(self._bytes))
        self.numbers = self._bytes.cast("d")
        self._backing.close()

    def _grow(self, end: int) -> bool:
        try:
            grown = self._backing.resize(max(end, 2 * len(self._bytes)))
        except OSError:
            return False
        self.numbers = grown.cast("d")
        self._bytes = grown
        return True

    def _set_used(self, used: int) -> None:
        self._used = used
        # in native form it is one store, which no kill can cut in two
        struct.pack_into("Q", self._bytes, USED_OFFSET, used)


def read_rows(content: bytes) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the rows of an array, names with numbers. Content that is no array has none."""
    if not content.startswith(MAGIC) or len(content) < ROWS_OFFSET:
        return
    used = min(struct.unpack_from("Q", content, USED_OFFSET)[0], len(content))
    offset = ROWS_OFFSET
    while offset < used:
        length, count = ROW_HEAD.unpack_from(content, offset)
        name_offset = offset + ROW_HEAD.size
        numbers_offset = _pad(name_offset + length)
        name = content[name_offset : name_offset + length].decode()
        yield name, struct.unpack_from(f"={count}d", content, numbers_offset)
        offset = numbers_offset + 8 * count


def _pad(offset: int) -> int:
    return -(-offset // 8) * 8
