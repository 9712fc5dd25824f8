"""Make connections to model servers. The time to make one counts while this process runs
(common/running_time.py): a server that answered a process that stood still is there."""

from __future__ import annotations

from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from om_proxy.common.running_time import limit_running_time
from om_proxy.wire.upstream.connection import Connection

KEEP_ALIVE_S = 15.0  # of an idle connection; a server that closes it earlier is noticed at once
NO_TIMEOUT = aiohttp.ClientTimeout()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, with our own connections and clock. `sock_connect` bounds all of a new
    connection: name lookup, TCP and TLS."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        # Any, because aiohttp declares a partial of its own class
        factory: Any = partial(Connection, self._loop)
        self._factory = factory

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> ResponseHandler:
        """Make a connection where none is kept: one that is takes no timer."""
        if timeout.sock_connect is None:
            return await super()._create_connection(req, traces, timeout)
        async with limit_running_time(timeout.sock_connect):
            return await super()._create_connection(req, traces, NO_TIMEOUT)
