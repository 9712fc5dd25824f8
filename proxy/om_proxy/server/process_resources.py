"""Set how many files the process may open, and how it keeps freed memory."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's numbers for mallopt(3): M_MMAP_THRESHOLD (from how many bytes on a block is a mapping of
# its own), M_TRIM_THRESHOLD (how much may lie free at the heap's end before it is given back),
# M_TOP_PAD (how much the heap grows at once). The values are the Dockerfile's, except 32 MiB, which
# is the most that mallopt takes everywhere.
MALLOC_OPTIONS = {-3: 32 << 20, -1: 512 << 20, -2: 64 << 20}


def raise_open_file_limit() -> None:
    """Allow as many open files as the system permits. Each connection is one, and the usual 1 024
    are few where clients are slow."""
    try:
        import resource  # noqa: PLC0415 - Windows has none

        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    except (ImportError, ValueError):
        # Windows has no such limit; macOS names an infinite one, and does not let it be set
        return


def keep_freed_memory() -> bool:
    """Keep freed memory, so that bodies of a megabyte stay off fresh pages: half the time of such a
    request, for 20 MB of memory. Return whether it is kept.

    MALLOC_* in the environment takes precedence. Only glibc's allocator has these options.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) for option in MALLOC_OPTIONS.items())


def release_freed_memory() -> None:
    """Return free pages to the system. `keep_freed_memory` lets malloc keep up to half a gigabyte,
    and a peak must not cost that for ever. It takes about 0.1 ms a megabyte, outside of the
    interpreter's lock."""
    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)
