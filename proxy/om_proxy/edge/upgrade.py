"""A request that offers another protocol is served as the HTTP/1.1 request it is, its body included.

Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every first request in the clear, and a server may pass the offer over
(RFC 9110 7.8). httptools takes it for accepted: it calls the request complete at the end of its head. The body would be lost, and
what of it comes in a later packet be read as the next request: a way to smuggle one past a server in front.
"""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class Upgradeless(HttpToolsProtocol):
    """uvicorn's protocol without upgrades: to be served with `ws="none"`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.framing: tuple[bytes, ...] = ()  # of a body that the parser knows nothing of
        self._packet = b""
        self._use(_Callbacks(self))

    def data_received(self, data: bytes) -> None:
        self._packet = data
        super().data_received(data)
        self._packet = b""

    def _use(self, callbacks: object) -> None:
        self.parser = httptools.HttpRequestParser(callbacks)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls this when the parser has said that another protocol begins; none does."""
        offered = sys.exception()
        while isinstance(offered, httptools.HttpParserUpgrade):
            self._packet = self._packet[offered.args[0] :]
            offered = self._read_on()

    def _read_on(self) -> Exception | None:
        try:
            if self.framing:
                head = b"".join((b"POST / HTTP/1.1\r\n", *self.framing, b"\r\n"))
                self.framing = ()
                self._use(_AfterHead(self))
                self.parser.feed_data(head)
            self.parser.feed_data(self._packet)
        except httptools.HttpParserUpgrade as again:
            return again
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        return None


class _Callbacks:
    """What a parser calls: the protocol itself, apart from the end of a request whose body is still to come."""

    def __init__(self, protocol: Upgradeless) -> None:
        self._protocol = protocol
        self.on_message_begin = protocol.on_message_begin
        self.on_url = protocol.on_url
        self.on_header = protocol.on_header
        self.on_body = protocol.on_body

    def on_headers_complete(self) -> None:
        protocol = self._protocol
        protocol.on_headers_complete()
        if protocol.parser.should_upgrade():
            protocol.framing = tuple(b"%s: %s\r\n" % item for item in protocol.scope["headers"] if item[0] in FRAMING)

    def on_message_complete(self) -> None:
        if not self._protocol.framing:
            self._protocol.on_message_complete()


class _AfterHead:
    """The same for a parser that is told a head once more, so that it reads the body: the protocol has heard that head already."""

    def __init__(self, protocol: Upgradeless) -> None:
        self._after = _Callbacks(protocol)
        self._heard = True

    def on_message_begin(self) -> None:
        if not self._heard:
            self._after.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._heard:
            self._after.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._heard:
            self._after.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._heard:
            self._after.on_headers_complete()
        self._heard = False

    def on_body(self, body: bytes) -> None:
        self._after.on_body(body)

    def on_message_complete(self) -> None:
        self._after.on_message_complete()
