"""How a server reuses freed memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

MAPPED = """
import ctypes, sys
from om_proxy.wire.server.capacity.budget import keep_freed_heap

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks mapped rest1 rest2 rest3 rest4 rest5 rest6".split()]

look = ctypes.CDLL(None).mallinfo2
look.restype = Info
set_ = keep_freed_heap()
before = look().mapped
block = bytearray(4 << 20)
print(set_, look().mapped - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="another allocator than glibc's",
)
@pytest.mark.parametrize(("more", "said"), [({}, "True 0"), ({"MALLOC_ARENA_MAX": "9"}, "False 1")])
def test_large_blocks_come_from_the_heap(more: dict[str, str], said: str) -> None:
    """Unless the environment decides otherwise, a body is not a mapping of its own, whose pages are
    new each time."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    } | more
    run = subprocess.run(
        [sys.executable, "-c", MAPPED], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == said
