"""Ports of 127.0.0.1 for servers that are processes of their own."""

from __future__ import annotations

import socket
import sys


def free_port() -> int:
    """Return a port for a server to come. On Linux the system gives it to nobody else until this
    process ends: a bound socket keeps it, and a server may listen there all the same."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = int(keeper.getsockname()[1])
        if sys.platform == "linux":
            keeper.detach()
        return port
