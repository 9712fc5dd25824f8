"""What a server takes of its machine: ports, open files, and the memory it has freed."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from typing import Any

from om_proxy.errors import ConfigError


def listeners(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of this host, bound as asyncio does it. Raises ConfigError, which names the setting."""
    host = host.strip("[]")
    absent = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # `localhost` is ::1 too where there is no IPv6
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        found = []
    bound = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            bound.append(listener(family, kind, protocol, address))
        except OSError as exc:
            if exc.errno not in absent:
                raise ConfigError(f"server.port: {port} of {host} {unusable(exc)}") from exc
    if not bound:
        raise ConfigError(f"server.host: {host} is no address of this machine: 127.0.0.1 is, and 0.0.0.0 is all it has")
    return bound


def listener(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """One that an old server's last connections do not keep from its port, and that workers inherit. Raises OSError."""
    made = socket.socket(family, kind, protocol)  # its protocol named: asyncio sets TCP_NODELAY on such ones only
    try:
        if os.name == "posix":  # elsewhere it would let two servers have one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind(address)
    except OSError:
        made.close()
        raise
    made.set_inheritable(True)
    return made


def unusable(exc: OSError) -> str:
    """What is the matter with a port, and what to do."""
    if exc.errno == errno.EADDRINUSE:
        return "is in use: end what listens there, or set another port (OM_PROXY__SERVER__PORT)"
    if exc.errno in {errno.EACCES, errno.EPERM}:
        return "is not for this user to listen on: set a port from 1024 on (OM_PROXY__SERVER__PORT)"
    return f"cannot be listened on ({exc.strerror}): set another (OM_PROXY__SERVER__PORT)"


def raise_open_files() -> None:
    """Take as many files as we may have: each connection is one, and the usual 1 024 are few where clients are slow."""
    try:
        import resource  # noqa: PLC0415 - Windows has none

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ImportError, ValueError):  # Windows has no such limit; macOS says it has none, and does not let it be taken
        return


# glibc's names for mallopt(3): from how many bytes on a block is a mapping of its own, how much may lie free at the heap's end before it
# is given back, and how much the heap grows at once. As in the Dockerfile, but for 32 MiB, which is the most mallopt takes everywhere.
MALLOC = {-3: 32 << 20, -1: 512 << 20, -2: 64 << 20}


def keep_freed_memory() -> bool:
    """Bodies of a megabyte stay off fresh pages: half the time of such a request, for 20 MB of memory. Whoever has set MALLOC_* in the
    environment has decided; other allocators than glibc's have no such settings."""
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, value) for name, value in MALLOC.items())


def give_back_freed_memory() -> None:
    """Return free pages to the system. `keep_freed_memory` has malloc keep up to half a gigabyte, which a peak must not cost for ever.
    Takes about 0.1 ms a megabyte, outside of the interpreter's lock."""
    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)
