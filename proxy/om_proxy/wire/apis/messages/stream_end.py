"""The event that ends the turn of a streamed reply: the first `message_delta` with a stop reason, else
`message_stop` or `error`."""

from __future__ import annotations

import re

from om_proxy.wire.apis.stream_end import BLANK_LINE, EventEndFinder, compile_naming


class TurnEndFinder(EventEndFinder):
    """A search for the blank line of the event that ends the turn."""

    _start = compile_naming((b"message_delta", b"message_stop", b"error"))
    _hints = (b"message_", b"error")
    _doubted = b"message_delta"
    # a quote inside a JSON string is written \", so the name is a member's
    _doubt = re.compile(rb'("stop_reason"\s*:\s*")|' + BLANK_LINE.pattern)
