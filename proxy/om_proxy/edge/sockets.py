"""What the system knows of a client's connection beside what it hands over; where it does not tell, nothing is known."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
from typing import Any


def reset_at_close(transport: asyncio.Transport, on: bool) -> None:
    """Whether closing it resets the connection, and drops what the system still holds for the client."""
    if (sock := _of(transport)) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, 0))


def has_ended(transport: asyncio.Transport) -> bool:
    """Whether the client sends no more (which Linux tells apart), is gone, or has reset the connection."""
    if (sock := _of(transport)) is None or sys.platform == "win32":
        return False
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def unread(transport: asyncio.Transport) -> int:
    """Bytes that the system holds of a client."""
    if (sock := _of(transport)) is None or sys.platform == "win32":
        return 0
    import fcntl  # noqa: PLC0415 - Windows has none
    import termios  # noqa: PLC0415 - the same

    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def _of(transport: asyncio.Transport) -> Any:
    return transport.get_extra_info("socket")
