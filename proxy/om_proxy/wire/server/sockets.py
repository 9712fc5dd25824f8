"""Bind the sockets that a server listens on, allow as many as the system permits, and ask the system
about a client's connection."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import sys
from typing import Any

from om_proxy.common.errors import ConfigError


def set_reset_at_close(transport: asyncio.Transport, is_on: bool) -> None:
    """Set whether closing resets the connection, which drops the bytes that the system still holds
    for the client."""
    if (sock := transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_on, 0))


def has_client_ended(transport: asyncio.Transport) -> bool:
    """Return whether the client has ended its side (only Linux can tell), has left, or has reset
    the connection."""
    if (sock := transport.get_extra_info("socket")) is None or sys.platform == "win32":
        return False
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def count_unread_bytes(transport: asyncio.Transport) -> int:
    """Return the number of the client's bytes that the system holds and that we have not read."""
    if (sock := transport.get_extra_info("socket")) is None or sys.platform == "win32":
        return 0
    import fcntl  # noqa: PLC0415 - Windows has none
    import termios  # noqa: PLC0415 - Windows has none

    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


# `localhost` includes ::1, even on a machine without IPv6
_ABSENT_ADDRESS_ERRNOS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Open a socket for each address of this host, bound as asyncio does. Raises ConfigError, which
    names the setting."""
    host = host.strip("[]")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        addresses = []
    listeners = []
    for family, kind, protocol, _, address in dict.fromkeys(addresses):
        try:
            listeners.append(_open_listener(family, kind, protocol, address))
        except OSError as exc:
            if exc.errno not in _ABSENT_ADDRESS_ERRNOS:
                failure = _describe_bind_failure(exc)
                raise ConfigError(f"server.port: {port} of {host} {failure}") from exc
    if not listeners:
        raise ConfigError(
            f"server.host: {host} is not an address of this machine:"
            " use 127.0.0.1, or 0.0.0.0 for all addresses"
        )
    return listeners


def _open_listener(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """Open a socket that can be bound while the last connections of an old server still use the
    port. Raises OSError."""
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere two servers could bind one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # an IPv4 address gets its own socket
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _describe_bind_failure(exc: OSError) -> str:
    """Return the end of a sentence about a port that says why the port cannot be used, and what to
    do."""
    if exc.errno == errno.EADDRINUSE:
        return "is in use: stop the other program, or set another port (--port or OM_PROXY__SERVER__PORT)"
    if exc.errno in {errno.EACCES, errno.EPERM}:
        return "is not allowed for this user: set a port of 1024 or more (--port or OM_PROXY__SERVER__PORT)"
    return f"cannot be used ({exc.strerror}): set another port (--port or OM_PROXY__SERVER__PORT)"


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
