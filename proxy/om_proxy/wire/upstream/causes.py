"""Name the cause of a failed call to a model server so that an operator can act on it.

A message names the server's origin (scheme, host, port), never its path or query, because either
may hold a key. A message names the class of the exception, never its text, which may quote an
address or a header.
"""

from __future__ import annotations

import errno
from urllib.parse import urlsplit

import aiohttp
import httpx

from om_proxy.common.errors import UpstreamError, UpstreamTimeout

CAUSES_BY_ERRNO = {
    errno.ECONNREFUSED: "nothing listens there",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it",
}


def make_unreachable_error(exc: Exception, url: str, path_in_settings: str) -> UpstreamError:
    """Make the error for a request that got no response. `path_in_settings`: the path of the server
    in the settings, such as `upstream[0]`."""
    error_class = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    source = exc.__cause__ or exc
    cause, key = find_cause(exc, source)
    class_name = type(source).__name__
    description = f"{cause} ({class_name})" if cause else class_name
    return error_class(
        f"could not reach {get_origin(url)}: {description}; check {path_in_settings}.{key}"
    )


def make_interrupted_error(exc: Exception, url: str) -> UpstreamError:
    """Make the error for a response that broke off."""
    error_class = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    return error_class(
        f"{get_origin(url)} broke off its answer ({type(exc.__cause__ or exc).__name__})"
    )


def is_broken_connection(exc: UpstreamError) -> bool:
    """Return whether the server broke the connection before its response: an outage, or its way to
    refuse the request."""
    cause = exc.__cause__
    return isinstance(cause, httpx.RemoteProtocolError | httpx.NetworkError) and not isinstance(
        cause, httpx.ConnectError
    )


def find_cause(exc: Exception, source: BaseException) -> tuple[str, str]:
    """Return the cause in plain words, and the setting to check. The words are "" if the class of
    the error says it best. `source`: the exception that `exc` was made from, or `exc` itself."""
    if isinstance(exc, httpx.ConnectTimeout):
        return "no connection in time", "connect_timeout"
    if isinstance(exc, httpx.TimeoutException):
        return "no answer in time", "read_timeout"
    if isinstance(source, aiohttp.ClientConnectorDNSError):
        return "name not resolved", "base_url"
    if isinstance(source, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted", "base_url"
    if isinstance(source, aiohttp.ClientSSLError):
        return "TLS failed", "base_url"
    number = source.errno if isinstance(source, OSError) else None
    return CAUSES_BY_ERRNO.get(number or 0, ""), "base_url"


def get_origin(url: str) -> str:
    """Return scheme, host and port of an address, without user, path and query."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `http://[::1/`
        return "the model server"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if parts.scheme and host else "the model server"
