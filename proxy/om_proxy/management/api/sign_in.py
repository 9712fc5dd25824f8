"""Sign a person in by a link that a server on loopback prints at its start."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Sequence
from hashlib import sha256

from om_proxy.wire.server.headers import Header, find_header

LINK_LIFE_S = 600
SESSION_LIFE_S = 7 * 86_400
# The page sends its half of the session in it. The cookie alone counts for nothing: browsers send it
# to all ports of this machine, and a page's storage belongs to one.
SESSION_HEADER = b"x-om-session"


class SignIn:
    """The link of one start of a server, and the sessions that it opens. Workers share it: it is
    created before they are forked. A restart ends all sessions."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._token = secrets.token_urlsafe(32)
        self._session_key = secrets.token_bytes(32)
        self._link_until = clock() + LINK_LIFE_S
        # one byte in a pipe is the link's one use: of several workers, one reads it
        self._use, writer = os.pipe()
        os.write(writer, b"1")
        os.close(writer)

    def link_to(self, base_url: str) -> str:
        """Return the link. Its token stands behind the `#`, which no browser sends."""
        return f"{base_url}/om/#/sign-in/{self._token}"

    def take_link(self, token: bytes) -> bool:
        """Use the link up, and return whether the token was its own, in time and for the first
        time."""
        is_right = hmac.compare_digest(token, self._token.encode())
        return is_right and self._clock() < self._link_until and os.read(self._use, 1) == b"1"

    def open_session(self) -> bytes:
        """Return the value of a new session's cookie: its end, and a signature."""
        return self._sign(b"%d" % (self._clock() + SESSION_LIFE_S))

    def make_page_half(self, session: bytes) -> bytes:
        """Return what the page itself keeps of a session."""
        return hmac.new(self._session_key, b"page\0" + session, sha256).hexdigest().encode()

    def has_session(self, headers: Sequence[Header], cookie_name: bytes) -> bool:
        """Return whether the request carries both halves of a session that lasts."""
        half = find_header(headers, SESSION_HEADER) or b""
        sent = [part for name, value in headers if name == b"cookie" for part in value.split(b";")]
        return any(
            self._is_session(value) and hmac.compare_digest(half, self.make_page_half(value))
            for name, _, value in (part.strip().partition(b"=") for part in sent)
            if name == cookie_name
        )

    def _is_session(self, value: bytes) -> bool:
        end = value.partition(b".")[0]
        return hmac.compare_digest(value, self._sign(end)) and self._clock() < int(end)

    def _sign(self, end: bytes) -> bytes:
        return b"%s.%s" % (end, hmac.new(self._session_key, end, sha256).hexdigest().encode())


def name_cookie(host: str) -> bytes:
    """Return the name of a server's cookie. It holds the port: browsers send a cookie to all ports
    of a host."""
    port = host.rpartition(":")[2]
    return f"om-session-{port if port.isdecimal() else 80}".encode()
