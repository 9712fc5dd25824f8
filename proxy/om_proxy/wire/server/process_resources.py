"""Set how many files the process may open, and how it reuses freed memory."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's numbers for mallopt(3): -3 is M_MMAP_THRESHOLD (the size from which a block is a mapping
# of its own), -1 is M_TRIM_THRESHOLD (the free bytes at the heap's end before they are returned to
# the system), -2 is M_TOP_PAD (the bytes by which the heap grows). The values are the Dockerfile's,
# except 32 MiB, which is the most that mallopt accepts everywhere.
MALLOC_OPTIONS = {-3: 32 << 20, -1: 512 << 20, -2: 64 << 20}


def raise_open_file_limit() -> None:
    """Allow as many open files as the system permits. Each connection is a file, and the usual 1
    024 are too few for slow clients."""
    try:
        import resource  # noqa: PLC0415 - Windows has none

        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    except (ImportError, ValueError):
        # Windows has no such limit; macOS reports an infinite limit, and refuses to set it
        return


def keep_freed_heap() -> bool:
    """Keep freed memory in the process, and return whether it is kept. A request with a body of a
    megabyte then needs no fresh pages, which halves its time and costs 20 MB of memory.

    MALLOC_* in the environment takes precedence. Only glibc's allocator has these options.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) for option in MALLOC_OPTIONS.items())


def release_freed_memory() -> None:
    """Return free pages to the system. `keep_freed_heap` lets malloc keep up to half a gigabyte,
    which must not remain after a peak. The call takes about 0.1 ms a megabyte, and does not hold
    the interpreter's lock."""
    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)
