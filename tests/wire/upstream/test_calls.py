"""The errors that an operator reads if a model server cannot be reached."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest

from om_proxy.common.errors import UpstreamError, UpstreamTimeout
from om_proxy.wire.upstream.calls import get_origin, make_interrupted_error, make_unreachable_error

KEY: Any = SimpleNamespace(host="s3cret", port=1, ssl=True, is_ssl=True)
URL = "https://user:s3cret@api.example:8443/v1/s3cret?key=s3cret"


def make_transport_error(raised: type[httpx.HTTPError], cause: Exception) -> httpx.HTTPError:
    """The exception that the transport raises: httpx's class, from the library's."""
    exc = raised("s3cret")
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    ("exc", "kind", "said"),
    [
        (
            make_transport_error(
                httpx.ConnectError, aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "s3cret"))
            ),
            UpstreamError,
            "name not resolved (ClientConnectorDNSError); check upstream[2].base_url",
        ),
        (
            make_transport_error(
                httpx.ConnectError,
                aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "s3cret")),
            ),
            UpstreamError,
            "nothing listens there (ClientConnectorError); check upstream[2].base_url",
        ),
        (
            make_transport_error(
                httpx.ConnectError,
                aiohttp.ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "s3cret")),
            ),
            UpstreamError,
            "no route to it (ClientConnectorError); check upstream[2].base_url",
        ),
        (
            make_transport_error(httpx.ConnectTimeout, aiohttp.ConnectionTimeoutError("s3cret")),
            UpstreamTimeout,
            "no connection in time (ConnectionTimeoutError); check upstream[2].connect_timeout",
        ),
        (
            make_transport_error(httpx.ReadTimeout, aiohttp.SocketTimeoutError("s3cret")),
            UpstreamTimeout,
            "no answer in time (SocketTimeoutError); check upstream[2].read_timeout",
        ),
        (
            make_transport_error(
                httpx.RemoteProtocolError, aiohttp.ServerDisconnectedError("s3cret")
            ),
            UpstreamError,
            "ServerDisconnectedError; check upstream[2].base_url",
        ),
        (
            httpx.ReadTimeout("s3cret"),
            UpstreamTimeout,
            "no answer in time (ReadTimeout); check upstream[2].read_timeout",
        ),
        (httpx.InvalidURL("s3cret"), UpstreamError, "InvalidURL; check upstream[2].base_url"),
    ],
    ids=[
        "name",
        "port",
        "route",
        "slow to connect",
        "slow to answer",
        "hung up",
        "httpx's own",
        "no address",
    ],
)
def test_unreachable(exc: Exception, kind: type[UpstreamError], said: str) -> None:
    """The error names the host, the cause in plain words, the class and the setting to check. It
    contains no text of the exception, and no path, query or user."""
    error = make_unreachable_error(exc, URL, "upstream[2]")
    assert type(error) is kind
    assert str(error) == f"could not reach https://api.example:8443: {said}"


def test_broken_off() -> None:
    """A response that ended too early is reported with its server and the class."""
    error = make_interrupted_error(
        make_transport_error(httpx.RemoteProtocolError, aiohttp.ClientPayloadError("s3cret")), URL
    )
    assert str(error) == "https://api.example:8443 broke off its answer (ClientPayloadError)"


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://[::1/v1", "//host"])
def test_an_unreadable_address(url: str) -> None:
    """An unreadable address is described, not repeated."""
    assert get_origin(url) == "the model server"
