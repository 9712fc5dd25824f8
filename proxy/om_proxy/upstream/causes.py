"""Why a model server could not be reached, in words that an operator can act on.

A message names the server's origin (scheme, host, port), never its path or query: either may hold a key.
It names the class of what was raised and never its text, which may quote an address or a header.
"""

from __future__ import annotations

import errno
from urllib.parse import urlsplit

import aiohttp
import httpx

from om_proxy.errors import UpstreamError, UpstreamTimeout

CAUSES_BY_ERRNO = {
    errno.ECONNREFUSED: "nothing listens there",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it",
}


def unreachable(exc: Exception, url: str, setting: str) -> UpstreamError:
    """The error for a request that got no answer. `setting`: where the server stands in the settings, as `upstream[0]`."""
    kind = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    below = exc.__cause__ or exc
    cause, key = cause_and_key(exc, below)
    said = f"{cause} ({type(below).__name__})" if cause else type(below).__name__
    return kind(f"could not reach {origin(url)}: {said}; check {setting}.{key}")


def broken_off(exc: Exception, url: str) -> UpstreamError:
    """The error for an answer that ended before its end."""
    kind = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    return kind(f"{origin(url)} broke off its answer ({type(exc.__cause__ or exc).__name__})")


def cause_and_key(exc: Exception, below: BaseException) -> tuple[str, str]:
    """The cause in plain words, "" where the class says it best; and the setting that it may come from."""
    if isinstance(exc, httpx.ConnectTimeout):
        return "no connection in time", "connect_timeout"
    if isinstance(exc, httpx.TimeoutException):
        return "no answer in time", "read_timeout"
    if isinstance(below, aiohttp.ClientConnectorDNSError):
        return "name not resolved", "base_url"
    if isinstance(below, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted", "base_url"
    if isinstance(below, aiohttp.ClientSSLError):
        return "TLS failed", "base_url"
    number = below.errno if isinstance(below, OSError) else None
    return CAUSES_BY_ERRNO.get(number or 0, ""), "base_url"


def origin(url: str) -> str:
    """Scheme, host and port of an address, without user, path and query."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `http://[::1/`
        return "the model server"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if parts.scheme and host else "the model server"
