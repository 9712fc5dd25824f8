"""Make permission bits count: drop the super-user's right to ignore them for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
BY_PASSING_BITS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def enforce_permission_bits(folder: Path) -> Iterator[None]:
    """Enforce the bits for this thread and those it starts meanwhile. Skips the test where they
    still stop nobody."""
    libc, sets = ctypes.CDLL(None, use_errno=True), (_Set * 2)()
    header = _Header(CAPABILITY_VERSION_3, 0)
    before = 0
    if sys.platform == "linux" and libc.capget(ctypes.byref(header), sets) == 0:
        before = sets[0].effective
        sets[0].effective = before & ~BY_PASSING_BITS
        libc.capset(ctypes.byref(header), sets)
    try:
        probe = folder / "probe"
        probe.touch()
        probe.chmod(0o400)
        is_ignored = os.access(probe, os.W_OK, effective_ids=True) or _can_write(probe)
        probe.unlink()
        if is_ignored:
            pytest.skip(
                "permission bits stop nobody here: this user writes files that are read-only"
            )
        yield
    finally:
        if before:
            sets[0].effective = before
            libc.capset(ctypes.byref(header), sets)


def _can_write(file: Path) -> bool:
    try:
        file.open("r+b").close()
    except PermissionError:
        return False
    return True
