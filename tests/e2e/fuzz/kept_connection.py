"""One connection for many requests, with less work for each than a session of `requests` does."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

import requests
from schemathesis import Case
from schemathesis.core.transport import Response

ANSWER_TIMEOUT_S = 300
# An event stream does not end: its first piece is the answer.
STREAM_TYPE = "text/event-stream"
STREAM_PIECE_BYTES = 65_536
LEFT_BY_SERVER = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class KeptConnection:
    """A connection to one server, opened again when the server has closed it."""

    def __init__(self, base: str) -> None:
        self.base = base
        address = urlsplit(base)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=ANSWER_TIMEOUT_S
        )

    def close(self) -> None:
        self._connection.close()

    def send(self, case: Case) -> Response:
        """Send what Schemathesis would send for this case."""
        return self.send_request(requests.Request(**case.as_transport_kwargs(self.base)).prepare())

    def send_request(self, request: requests.PreparedRequest) -> Response:
        was_open = self._connection.sock is not None
        try:
            return self._exchange(request)
        except LEFT_BY_SERVER:
            self._connection.close()
            if not was_open:
                raise
        return self._exchange(request)  # the server had closed the idle connection

    def _exchange(self, request: requests.PreparedRequest) -> Response:
        started = time.monotonic()
        body = request.body.encode() if isinstance(request.body, str) else request.body
        headers = {str(name): value for name, value in request.headers.items()}
        self._connection.request(str(request.method), request.path_url, body, headers)
        answer = self._connection.getresponse()
        if answer.headers.get_content_type() == STREAM_TYPE:
            content = answer.read1(STREAM_PIECE_BYTES)
            self._connection.close()
        else:
            content = answer.read()
        names = {name.lower() for name in answer.headers}
        values = {name: list(answer.headers.get_all(name, [])) for name in names}
        elapsed = time.monotonic() - started
        return Response(answer.status, values, content, request, elapsed, verify=False)
