"""Serve a request that offers another protocol as the HTTP/1.1 request that it is, with its body.

Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every first request without TLS, and a server
may ignore the offer (RFC 9110 7.8). httptools treats the offer as accepted: it calls the request
complete at the end of its head. The body would be lost, and its later packets would be read as the
next request, which is a way to smuggle a request past a server in front of the proxy.
"""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BODY_FRAMING_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class NoUpgradeProtocol(HttpToolsProtocol):
    """uvicorn's protocol without upgrades. Serve it with `ws="none"`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # the framing headers of a body that the parser does not expect
        self.body_framing: tuple[bytes, ...] = ()
        self._packet = b""
        self._set_parser(_ParserCallbacks(self))

    def data_received(self, data: bytes) -> None:
        self._packet = data
        super().data_received(data)
        self._packet = b""

    def _set_parser(self, callbacks: object) -> None:
        self.parser = httptools.HttpRequestParser(callbacks)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn

    def _unsupported_upgrade_warning(self) -> None:
        """Continue to parse HTTP/1.1. uvicorn calls this method when the parser has stopped for
        another protocol."""
        upgrade = sys.exception()
        while isinstance(upgrade, httptools.HttpParserUpgrade):
            self._packet = self._packet[upgrade.args[0] :]
            upgrade = self._continue_parsing()

    def _continue_parsing(self) -> Exception | None:
        try:
            if self.body_framing:
                head = b"".join((b"POST / HTTP/1.1\r\n", *self.body_framing, b"\r\n"))
                self.body_framing = ()
                self._set_parser(_BodyCallbacks(self))
                self.parser.feed_data(head)
            self.parser.feed_data(self._packet)
        except httptools.HttpParserUpgrade as upgrade:
            return upgrade
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        return None


class _ParserCallbacks:
    """The callbacks of a parser. They are the protocol's own, except that a request does not end
    while its body is expected."""

    def __init__(self, protocol: NoUpgradeProtocol) -> None:
        self._protocol = protocol
        self.on_message_begin = protocol.on_message_begin
        self.on_url = protocol.on_url
        self.on_header = protocol.on_header
        self.on_body = protocol.on_body

    def on_headers_complete(self) -> None:
        protocol = self._protocol
        protocol.on_headers_complete()
        if protocol.parser.should_upgrade():
            protocol.body_framing = tuple(
                b"%s: %s\r\n" % header
                for header in protocol.scope["headers"]
                if header[0] in BODY_FRAMING_HEADERS
            )

    def on_message_complete(self) -> None:
        if not self._protocol.body_framing:
            self._protocol.on_message_complete()


class _BodyCallbacks:
    """The callbacks of a second parser, which gets the head again so that it reads the body. The
    protocol knows that head already, so only the body and the later requests are passed on."""

    def __init__(self, protocol: NoUpgradeProtocol) -> None:
        self._callbacks = _ParserCallbacks(protocol)
        self._is_repeated_head = True

    def on_message_begin(self) -> None:
        if not self._is_repeated_head:
            self._callbacks.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_repeated_head:
            self._callbacks.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_repeated_head:
            self._callbacks.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_repeated_head:
            self._callbacks.on_headers_complete()
        self._is_repeated_head = False

    def on_body(self, body: bytes) -> None:
        self._callbacks.on_body(body)

    def on_message_complete(self) -> None:
        self._callbacks.on_message_complete()
