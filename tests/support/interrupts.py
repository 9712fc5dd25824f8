"""Ctrl-C, as a person's shell gives it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heed_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C interrupt this process and those that it begins. A shell's job in the background
    ignores it, and a command that ran in this process may have left a handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
