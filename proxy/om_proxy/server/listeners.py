"""Bind the sockets that a server listens on."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from om_proxy.errors import ConfigError

# `localhost` is ::1 too, also where there is no IPv6
_ABSENT_ADDRESS_ERRNOS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Open a socket for each address of this host, bound as asyncio does it. Raises ConfigError,
    which names the setting."""
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        found = []
    listeners = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
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
    """Open a socket that workers inherit. It can be bound while an old server's last connections
    still use the port. Raises OSError."""
    # with its protocol named: asyncio sets TCP_NODELAY on such sockets only
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers have one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # IPv4 has a socket of its own
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


def _describe_bind_failure(exc: OSError) -> str:
    """Return the end of a sentence about a port: why it cannot be used, and what to do."""
    if exc.errno == errno.EADDRINUSE:
        return "is in use: stop the other program, or set another port (OM_PROXY__SERVER__PORT)"
    if exc.errno in {errno.EACCES, errno.EPERM}:
        return "is not allowed for this user: set a port of 1024 or more (OM_PROXY__SERVER__PORT)"
    return f"cannot be used ({exc.strerror}): set another port (OM_PROXY__SERVER__PORT)"
