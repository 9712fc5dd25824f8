"""The receipt of a request: the X-OM-* response headers (docs/contributing/http.md#receipt)."""

from __future__ import annotations

from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.exchange import Exchange
from om_proxy.engine.turns.prompt.shadow import find_ready
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.naming import encode_name
from om_proxy.wire.server.headers import Header

# for a request that was refused before anything was done for it
NO_MEMORY_RECEIPT = ((b"x-om-status", Status.OFF.encode()),)


def build_base_receipt(status: Status, reason: Reason | None, caller: Caller) -> list[Header]:
    """Return the headers of every receipt: what memory did, why, and the thread of the request."""
    headers = [(b"x-om-status", status.encode())]
    if reason:
        headers.append((b"x-om-reason", reason.encode()))
    if caller.key:
        headers.append((b"x-om-thread", encode_name(caller.key.thread).encode()))
    return headers


def build_receipt(exchange: Exchange) -> list[Header]:
    """Return all headers of the receipt, with the figures of the turn."""
    headers = build_base_receipt(exchange.status, exchange.reason, exchange.caller)
    if exchange.turn:
        headers += [
            (b"x-om-" + name.encode(), b"%d" % value)
            for name, value in exchange.turn.receipt.items()
        ]
    if (recall := exchange.recall) is not None:
        headers.append((b"x-om-recall", recall.word.encode()))
        if recall.is_whole:  # a stream's head goes out before its look-ups
            headers.append((b"x-om-recall-steps", b"%d" % recall.steps))
    if shadow := find_ready(exchange.shadow):
        headers.append((b"x-om-tokens-shadow", b"%d" % shadow.tokens))
    headers.append((b"x-om-overhead-ms", b"%.2f" % exchange.overhead_ms))
    return headers
