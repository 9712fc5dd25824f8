"""The values of one request on its way through the proxy, what memory work needs of them, and its
receipt. Tracing is imported only where it is on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace
from starlette.types import Scope

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest, raise_site
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.engine.event_feed.inline import InlineComments
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.accounting import AccountedTurn
from om_proxy.engine.turns.prompt_builder import ShadowPrompt, find_ready
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.token_prices import Usage
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.observability.facts import Bypassed
from om_proxy.settings.config import UpstreamSettings
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.naming import encode_name
from om_proxy.wire.apis.additions import Trial
from om_proxy.wire.apis.api import TURN, Kind, Request
from om_proxy.wire.server.headers import Header, find_header

if TYPE_CHECKING:
    from om_proxy.observability.spans import ChatSpan

CALLER_CREDENTIAL_HEADERS = frozenset(
    (
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"openai-organization",
        b"openai-project",
    )
)
# What else an inherited memory call takes along: by these, gateways know who asks, and where the
# words may go.
GATEWAY_HEADERS = frozenset(
    (
        b"http-referer",
        b"x-title",
        b"cf-access-client-id",
        b"cf-access-client-secret",
        b"cf-access-token",
        b"apikey",
        b"x-goog-api-key",
        b"x-goog-user-project",
        b"ocp-apim-subscription-key",
        b"openai-beta",
        b"anthropic-version",
        b"anthropic-beta",
        b"x-model-authorization",  # NeMo Guardrails
        b"oe-key",  # EdgeOne
        b"oe-ai-provider",
        b"x-hf-bill-to",  # Hugging Face: the organization that pays
        b"modal-key",
        b"modal-secret",
        b"x-vertex-ai-llm-request-type",  # provisioned throughput, or not
    )
)
CARRIED_HEADERS = CALLER_CREDENTIAL_HEADERS | GATEWAY_HEADERS
GATEWAY_HEADER_BEGINNINGS = (
    b"cf-aig-",
    b"x-portkey-",
    b"helicone-",
    b"x-litellm-",
    b"x-tfy-",
    b"x-bf-",
    b"x-kong-",
    b"x-openrouter-",
    b"x-llmgateway-",
    b"oe-gateway-",
)
MIN_REPORTED_BODY_BYTES = 1 << 16
# for a request that was refused before anything was done for it
NO_MEMORY_RECEIPT = ((b"x-om-status", Status.OFF.encode()),)


@dataclass(slots=True)
class Delivery:
    """The end of a reply. The reply is stored and sent, and either may be done first."""

    reply_seq: int = 0  # of the stored reply; 0: none is stored, or not yet
    is_end_sent: bool | None = None  # None: not known yet
    accounted: AccountedTurn | None = None  # None: its turn is not accounted for yet


@dataclass(slots=True)
class Exchange:
    """One request and what has become of it so far."""

    scope: Scope
    body: bytes
    request: Request | None
    caller: Caller
    upstream: UpstreamSettings
    started: float  # when its body was complete, in seconds of `perf_counter`
    # by which the caller was identified
    rules: IdentityRules = field(default_factory=IdentityRules)
    turn: PreparedTurn | None = None
    status: Status = Status.OFF
    reason: Reason | None = None
    overhead_ms: float = 0.0
    first_byte_s: float | None = None  # from the newest prompt sent; None: no answer came
    usage: Usage | None = None  # as the reply reports it
    span: ChatSpan | None = None  # None: tracing is off
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    context: MemoryContext | None = None
    came_at: float = 0.0  # unix seconds of the store's clock; 0: it has no memory
    # `came_at`; None: its memory was read. Otherwise the turn is reconciled later.
    missed_at: float | None = None
    delivery: Delivery = field(default_factory=Delivery)
    has_contacted_upstream: bool = False
    # the prompt that memory would have sent; None: none is built
    shadow: asyncio.Task[ShadowPrompt | None] | None = None
    # for a stream whose client asked for them
    comments: InlineComments | None = None
    # None: the tool for look-ups is not for this request (docs/contributing/recall.md#offered)
    recall: RecallRecord | None = None
    # what its server may refuse of what memory adds; None: it has no memory
    trial: Trial | None = None
    # reports how many copies of its body are held (wire/server/capacity/admission.py)
    report_copies: Callable[[int], None] = lambda copies: None
    api: ApiName = "chat"
    kind: Kind = TURN
    asks_for_title: bool = False  # a side request that names its thread

    def report_copies_before_sending(self) -> None:
        """Report the copies held before sending: the body; with memory also its messages, cut out
        of it; and the rewritten prompt if there is one."""
        if self.turn is None:
            self.report_copies(1)
        else:
            self.report_copies(2 if self.turn.body is None else 3)

    def report_copies_after_answer(self) -> None:
        """Free the copies that are not needed after the answer, and report the others. The body
        will not be sent again. Without a turn to close, nothing needs it, and the reply may take
        minutes."""
        if self.turn is not None:
            self.turn = replace(self.turn, body=None)
        if self.turn is not None or self.missed_at is not None:
            # a later round of the reply is written from the rewritten prompt
            self.report_copies(3 if self.recall and self.recall.tool else 2)
            return
        self.body = b""
        if self.request is not None:
            self.request = self.request.without_content()
        self.report_copies(0)


def apply_kind(caller: Caller, kind: Kind) -> Caller:
    """Return the caller of a request of this kind: where the prompt stays as it is, memory writes
    only."""
    if caller.key is None or kind == TURN:
        return caller
    if kind.treatment == "off" or caller.mode == "read":
        return caller.without_memory(kind.reason)
    return caller.write_only()


def find_off_reason(exchange: Exchange, config: EdgeConfig) -> Reason | None:
    """Return the reason why this request has no memory; None if it has memory."""
    if exchange.caller.reason:
        return exchange.caller.reason
    if exchange.request is None:
        return Reason.UNREADABLE
    if config.is_side_request(exchange.request):
        return Reason.SIDE_REQUEST
    if not exchange.request.messages:
        return Reason.NO_MESSAGES
    return None


def require_resource(caller: Caller, context: MemoryContext) -> None:
    """Raise BadRequest for resource scope without a resource: there would be no shared log
    (docs/contributing/behaviour.md#names)."""
    scope = caller.scope or context.effective.memory.scope
    if scope == "resource" and not caller.has_named_resource:
        raise BadRequest(
            "this thread's memory is its resource's (scope: resource): "
            "name the resource in X-OM-Resource",
            "om_no_resource",
            "X-OM-Resource",
        )


def read_hints(exchange: Exchange) -> Hints:
    headers = exchange.scope["headers"]
    return Hints(history=exchange.caller.history, sdk_retry=is_sdk_retry(headers))


def is_sdk_retry(headers: Sequence[Header]) -> bool:
    """Return whether an SDK of OpenAI says that it sends the request again."""
    return find_header(headers, b"x-stainless-retry-count") not in (None, b"0", b"")


def build_memory_context(exchange: Exchange, config: EdgeConfig) -> MemoryContext:
    """Return the context of this request's memory work. The credential is never stored."""
    assert exchange.request is not None  # an unreadable body has no memory
    assert exchange.caller.key is not None  # a request without a thread has no memory
    return config.policy.context_of_request(
        exchange.request.model,
        exchange.caller.key.resource,
        exchange.upstream,
        select_carried(exchange.headers),
        exchange.scope["query_string"],
        exchange.request.routing,
        exchange.api,
    )


def select_carried(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Return the request's headers that an inherited memory call has, too."""
    return tuple(
        [
            (name, value)
            for name, value in headers
            if name in CARRIED_HEADERS or name.startswith(GATEWAY_HEADER_BEGINNINGS)
        ]
    )


def describe_bypass(exchange: Exchange, exc: Exception) -> Bypassed:
    """Return the fact that this exception kept memory out of the exchange."""
    return Bypassed(exchange.caller.key, exchange.reason, type(exc).__name__, raise_site(exc))


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
