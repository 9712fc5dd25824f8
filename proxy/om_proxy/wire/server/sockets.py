"""Ask the system about a client's connection. If the system cannot tell, a check returns False and
a count 0."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
from typing import Any


def set_reset_at_close(transport: asyncio.Transport, is_on: bool) -> None:
    """Set whether closing resets the connection, which drops the bytes that the system still holds
    for the client."""
    if (sock := _get_socket(transport)) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_on, 0))


def has_client_ended(transport: asyncio.Transport) -> bool:
    """Return whether the client has ended its side (only Linux can tell), has left, or has reset
    the connection."""
    if (sock := _get_socket(transport)) is None or sys.platform == "win32":
        return False
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def count_unread_bytes(transport: asyncio.Transport) -> int:
    """Return the number of the client's bytes that the system holds and that we have not read."""
    if (sock := _get_socket(transport)) is None or sys.platform == "win32":
        return 0
    import fcntl  # noqa: PLC0415 - Windows has none
    import termios  # noqa: PLC0415 - Windows has none

    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def _get_socket(transport: asyncio.Transport) -> Any:
    return transport.get_extra_info("socket")
