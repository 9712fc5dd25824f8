"""One request on its way through: what it is, what memory work needs of it, and the receipt it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.types import Scope

from om_proxy.agents.llm import Target
from om_proxy.edge.headers import Header, header
from om_proxy.edge.site import Site
from om_proxy.errors import BadRequest
from om_proxy.memory.context import ContextOptions, layout_for
from om_proxy.memory.identity import Caller
from om_proxy.memory.naming import encode_name
from om_proxy.memory.transcript import Hints
from om_proxy.observing import Call, priced
from om_proxy.settings import UpstreamSettings
from om_proxy.turn import Turn
from om_proxy.wire.chat import ChatRequest

OF_THE_CALLER = (b"authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project")

WORTH_WEIGHING = 1 << 16  # bytes of a body


@dataclass(slots=True)
class Exchange:
    """One request on its way through."""

    scope: Scope
    body: bytes
    request: ChatRequest | None
    caller: Caller
    upstream: UpstreamSettings
    started: float  # when its body had come, by perf_counter
    turn: Turn | None = None
    status: str = "off"
    reason: str | None = None
    overhead_ms: float = 0.0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    call: Call | None = None
    missed_at: float | None = None  # unix seconds when its memory could not be read: the turn is reconciled later
    broken: bool = False  # its answer is known not to have gone out to its last byte
    asked: bool = False  # a model server, or a place to ask it from
    weigh: Callable[[int], None] = lambda weight: (
        None
    )  # how many times the bytes of its body are held (edge/admission.py)

    def weigh_asked(self) -> None:
        """What goes upstream is made: the body, beside it the messages cut out of it where it has memory, and a prompt of ours."""
        self.weigh(1 if self.turn is None else 2 if self.turn.body is None else 3)

    def weigh_answered(self) -> None:
        """It will not be sent again. Without a turn to close nothing asks for the body any more, while the reply may take minutes."""
        if self.turn is not None:
            self.turn.body = None
        if self.turn is not None or self.missed_at is not None:
            self.weigh(2)
            return
        self.body = b""
        if self.request is not None:
            empty: dict[str, Any] = dict.fromkeys(("body", "frame", "readable"), b"") | {
                "messages": (),
                "instructions": (),
            }
            self.request = replace(self.request, **empty)
        self.weigh(0)


def why_off(exchange: Exchange, site: Site) -> str | None:
    """The word for why this request has no memory; None: it has."""
    if exchange.caller.reason:
        return exchange.caller.reason
    if exchange.request is None:
        return "unreadable"
    if site.is_side_request(exchange.request):
        return "side-request"
    if not exchange.request.messages:
        return "no-messages"
    return None


def must_name_resource(caller: Caller, call: Call) -> None:
    """Raises BadRequest for resource scope without a resource: whose threads are to share a log?
    (docs/spec/behaviour.md#names)"""
    if (caller.scope or call.effective.memory.scope) == "resource" and not caller.names_resource:
        raise BadRequest(
            "this thread's memory is its resource's (scope: resource): name the resource in X-OM-Resource",
            "om_no_resource",
            "X-OM-Resource",
        )


def hints_of(exchange: Exchange) -> Hints:
    retried = header(exchange.scope["headers"], b"x-stainless-retry-count")
    return Hints(history=exchange.caller.history, sdk_retry=retried not in (None, b"0", b""))


def call_of(exchange: Exchange, site: Site) -> Call:
    """What memory work needs of this request; the credential stays in memory only."""
    assert exchange.request is not None  # noqa: S101 — unreadable bodies have no memory
    assert exchange.caller.key is not None  # noqa: S101 — nor have requests without a thread
    model, resource, upstream = exchange.request.model, exchange.caller.key.resource, exchange.upstream
    credential = tuple((n, v) for n, v in exchange.headers if n in OF_THE_CALLER)
    key = (model, resource, upstream.name, credential)
    return site.call(key, lambda: made_call(site, model, resource, upstream, credential))


def made_call(
    site: Site, model: str | None, resource: str, upstream: UpstreamSettings, credential: Sequence[Header]
) -> Call:
    effective = priced(site.settings.effective(model, resource), model)
    headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in credential)
    layout = upstream.layout if effective.context.layout == "auto" else effective.context.layout
    return Call(
        effective=effective,
        inherited=Target(model, base_url=upstream.base_url, headers=headers) if model else None,
        layout=layout_for(urlsplit(upstream.base_url).hostname or "", layout),
        context_options=ContextOptions(effective.context.relative_time, effective.context.priorities),
    )


def named_receipt(status: str, reason: str | None, caller: Caller) -> list[Header]:
    """What every receipt says: what memory did, why, and which thread the request was taken for."""
    said = [(b"x-om-status", status.encode())]
    if reason:
        said.append((b"x-om-reason", reason.encode()))
    if caller.key:
        said.append((b"x-om-thread", encode_name(caller.key.thread).encode()))
    return said


def receipt(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """The X-OM-* response headers (docs/spec/http.md#receipt)."""
    turn, said = exchange.turn, named_receipt(exchange.status, exchange.reason, exchange.caller)
    if turn:
        said += [(b"x-om-" + name.encode(), b"%d" % value) for name, value in turn.receipt.items()]
    said.append((b"x-om-overhead-ms", b"%.2f" % exchange.overhead_ms))
    return said
