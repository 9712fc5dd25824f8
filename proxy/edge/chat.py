"""The intercepted route: memory before and after one chat completion, and the one place that fails open.

Whatever goes wrong with memory, the client's original bytes go upstream and the receipt says so; whatever goes wrong upstream
arrives as it came. Only a request that cannot be meant (two credentials, a bad header) is refused.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from proxy.agents.llm import Target
from proxy.background import Background
from proxy.edge import answers
from proxy.edge.disconnect import watching, while_there
from proxy.edge.headers import Header, asking_identity
from proxy.edge.kept import kept
from proxy.edge.site import Site
from proxy.edge.tee import relay
from proxy.engine import Engine
from proxy.errors import BadRequest, Conflict, OmError, StorageError
from proxy.memory import identity
from proxy.memory.context import ContextOptions, layout_for
from proxy.memory.identity import Caller
from proxy.memory.transcript import Hints
from proxy.observing import Call, priced
from proxy.settings import UpstreamSettings
from proxy.turn import Turn
from proxy.upstream import Answer, Upstream, join
from proxy.wire import refusals
from proxy.wire.chat import ChatRequest, Unreadable, parse
from proxy.wire.reply import Reply, ReplyReader

log = structlog.get_logger("turn")

OPEN_WITHIN = 5.0  # seconds memory may take before the original goes upstream; waiting for an observation not counted
SHORTEN_WITHIN = 1.0  # seconds the store may take around an observation that a prompt beyond the window is waited with
COMMIT_WITHIN = 5.0  # seconds the end of a reply may wait for the commit; it goes on afterwards
REFUSED = (400, 413, 422)  # answers to a rewritten prompt after which the original is sent once (behaviour.md 8)
UNVERIFIED = (400, 401, 403, 404, 413, 422)  # answers after which nothing of the request is kept
OF_THE_CALLER = (b"authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project")
PAUSES = (0.2, 1.0, 5.0)  # seconds between tries of a commit that the store refused
NO_MEMORY = ((b"x-om-status", b"off"),)  # the receipt of a request that was refused before anything was done for it
NO_ANSWER = 499  # the client left before there was one (nginx's number for it)


@dataclass(slots=True)
class Exchange:
    """One request on its way through."""

    scope: Scope
    body: bytes
    request: ChatRequest | None
    caller: Caller
    upstream: UpstreamSettings
    started: float
    turn: Turn | None = None
    status: str = "off"
    reason: str | None = None
    overhead_ms: float = 0.0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


class ChatRoute:
    """`POST /v1/chat/completions` as a raw ASGI endpoint."""

    def __init__(self, engine: Engine, background: Background, upstream: Upstream, secret: bytes) -> None:
        self._engine = engine
        self._background = background
        self._upstream = upstream
        self._secret = secret
        self._log = log.bind()  # the logger itself: a lazy one is looked up anew for every event

    async def __call__(self, scope: Scope, receive: Receive, send: Send, site: Site) -> None:
        started = time.perf_counter()
        try:
            exchange = await self._accept(scope, receive, site, started)
            await self._open(exchange, site)
        except OmError as exc:
            await answers.error(send, exc, NO_MEMORY)
            return
        except answers.Disconnected:
            return
        exchange.overhead_ms = (time.perf_counter() - started) * 1_000
        await self._forward(exchange, receive, send)

    async def _accept(self, scope: Scope, receive: Receive, site: Site, started: float) -> Exchange:
        caller = identity.identify(scope["headers"], site.identity, self._secret, time.time())
        body = await answers.read_body(receive, site.settings.limits.body)
        try:
            request = parse(body)
        except Unreadable:
            request = None
        upstream = site.upstream_for(request.model) if request else site.settings.upstream[0]
        if upstream is None:
            raise BadRequest(
                "no upstream in the configuration matches this model; add one under `upstream`",
                "om_no_upstream",
                "model",
            )
        headers = site.sent_on(scope["headers"], upstream)
        return Exchange(scope, body, request, caller, upstream, started, headers=headers)

    # ── memory, failing open ─────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self, exchange: Exchange, site: Site) -> None:
        try:
            exchange.reason = why_off(exchange, site)
            if exchange.reason or exchange.request is None:
                return
            call = call_of(exchange, site)
            if not call.effective.memory.enabled:
                exchange.reason = "disabled"
                return
            must_name_resource(exchange.caller, call)
            exchange.turn = await self._opened(exchange, exchange.request, call)
        except BadRequest:
            raise  # what cannot be meant is refused, not guessed at
        except Exception as exc:  # promise 2: on any fault of ours the original goes upstream
            exchange.status, exchange.reason = "degraded", reason_of(exc)
            bypassed(exchange, exc)
            return
        exchange.headers = asking_identity(exchange.headers)  # a reply we have to read
        exchange.status, exchange.reason = exchange.turn.status, exchange.turn.reason

    async def _opened(self, exchange: Exchange, request: ChatRequest, call: Call) -> Turn:
        async with asyncio.timeout(OPEN_WITHIN) as limit:

            def longer(seconds: float) -> None:
                limit.reschedule((limit.when() or 0.0) + seconds)

            return await self._engine.open_turn(exchange.caller, request, call, hints_of(exchange), longer)

    def _close(self, exchange: Exchange, reply: Reply | None, status: int) -> asyncio.Task[None]:
        """Commit the turn in a task that outlives the request."""
        return self._background.hold(self._closing(exchange, reply, status))

    async def _closing(self, exchange: Exchange, reply: Reply | None, status: int) -> None:
        turn = exchange.turn
        if turn is None:
            return
        known = turn.standing.memory.turns > 0  # the upstream has accepted this caller's thread before
        try:
            if 200 <= status < 300:
                await insisting(lambda: self._engine.close_turn(turn, reply, accepted=True))
            elif status not in UNVERIFIED and (known or status != NO_ANSWER):
                await insisting(lambda: self._engine.keep_unanswered(turn))
        except Exception as exc:  # the client has its answer; what failed is told to the operator
            log.error("memory.uncommitted", error=type(exc).__name__, thread=turn.key.thread, at=place_of(exc))

    # ── the upstream ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _forward(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        async with watching(exchange.scope, receive) as left:
            gone = None if exchange.upstream.on_disconnect == "drain" else left
            try:
                answer = await while_there(gone, self._ask(exchange))
            except OmError as exc:
                await asyncio.wait([self._close(exchange, None, exc.status)], timeout=COMMIT_WITHIN)
                await answers.error(send, exc, receipt(exchange))
                self._story(exchange, exc.status, exc.code)
                return
            if answer is None:
                self._close(exchange, None, NO_ANSWER)
                self._story(exchange, NO_ANSWER, "disconnected")
                return
            await self._relay(exchange, answer, send, gone)

    async def _ask(self, exchange: Exchange) -> Answer:
        """The rewritten prompt is asked, then the original, then one made shorter, each only where the one before was refused."""
        answer = await self._ask_original_last(exchange)
        turn = exchange.turn
        if turn is None or answer.status not in REFUSED:
            return answer
        answer, error = await kept(answer, refusals.LARGEST)
        if error is None or not refusals.too_long(answer.status, error):
            return answer
        return await self._ask_shortened(exchange, turn, accepted=refusals.says_too_long(error)) or answer

    async def _ask_original_last(self, exchange: Exchange) -> Answer:
        rewritten = exchange.turn.body if exchange.turn else None
        if rewritten is None:
            return await self._send(exchange, exchange.body)
        answer = await self._send(exchange, rewritten)
        if answer.status not in REFUSED:
            return answer
        await answer.aclose()
        exchange.status, exchange.reason = "degraded", "upstream-refused"
        assert exchange.turn is not None  # noqa: S101 — it made the rewritten body
        exchange.turn.receipt["tokens-sent"] = exchange.turn.receipt["tokens-received"]
        return await self._send(exchange, exchange.body)

    async def _ask_shortened(self, exchange: Exchange, turn: Turn, *, accepted: bool) -> Answer | None:
        """The answer to a prompt shorter than the client's own, which did not fit; None: the refusal of that one stands."""
        started = time.perf_counter()
        shortened = await self._shortened(exchange, turn, accepted=accepted)
        exchange.overhead_ms += (time.perf_counter() - started) * 1_000
        if shortened and turn.body is not None and (answer := await self._unless_refused(exchange, turn.body)):
            exchange.status = turn.status
            return answer
        turn.receipt["tokens-sent"] = turn.receipt["tokens-received"]
        return None

    async def _shortened(self, exchange: Exchange, turn: Turn, *, accepted: bool) -> bool:
        try:
            if not self._engine.can_shorten(turn, accepted=accepted):
                return False
            exchange.status, exchange.reason = "degraded", "context-overflow"
            async with asyncio.timeout(turn.call.effective.limits.block_timeout + SHORTEN_WITHIN):
                return await self._engine.shorten(turn)
        except Exception as exc:  # promise 2: the client gets the model server's own word
            bypassed(exchange, exc)
            return False

    async def _unless_refused(self, exchange: Exchange, body: bytes) -> Answer | None:
        try:
            answer = await self._send(exchange, body)
        except OmError:
            return None
        if answer.status not in REFUSED:
            return answer
        await answer.aclose()
        return None

    async def _send(self, exchange: Exchange, body: bytes) -> Answer:
        upstream, scope = exchange.upstream, exchange.scope
        return await self._upstream.send(
            scope["method"],
            join(upstream.base_url, scope["raw_path"].decode("latin-1"), scope["query_string"]),
            exchange.headers,
            body,
            connect_timeout=upstream.connect_timeout,
            read_timeout=upstream.read_timeout,
        )

    async def _relay(self, exchange: Exchange, answer: Answer, send: Send, gone: asyncio.Future[None] | None) -> None:
        turn = exchange.turn
        reader = ReplyReader(exchange.request.stream) if turn and exchange.request else None
        closed = False

        async def before_end() -> None:
            nonlocal closed
            assert reader is not None  # noqa: S101 — asked for only where there is one
            assert turn is not None  # noqa: S101 — without a turn there is no reader
            closed, reply = True, read(reader)
            if not self._engine.holds(turn, reply):
                await asyncio.wait([self._close(exchange, reply, answer.status)], timeout=COMMIT_WITHIN)

        relayed = await relay(
            answer,
            send,
            receipt=receipt(exchange),
            reader=reader,
            before_end=before_end if reader else None,
            disconnected=gone,
        )
        if turn is not None and reader is not None and not closed:
            turn.broken, reply = True, read(reader)
            if relayed.outcome == "truncated":  # the client was told so: kept as interrupted, however whole it looks
                reply = replace(reply, complete=False)
            self._close(exchange, reply, answer.status)
        self._story(exchange, answer.status, relayed.outcome)

    def _story(self, exchange: Exchange, status: int, end: str) -> None:
        """One line a request."""
        turn = exchange.turn
        self._log.info(
            "turn",
            status=status,
            memory=exchange.status,
            reason=exchange.reason,
            thread=exchange.caller.key.thread if exchange.caller.key else None,
            case=turn.standing.rec.case if turn else None,
            end=end,
            overhead_ms=round(exchange.overhead_ms, 2),
            total_ms=round((time.perf_counter() - exchange.started) * 1_000, 1),
        )


async def insisting(commit: Callable[[], Awaitable[None]]) -> None:
    """Commit, and once more after a moment for every pause that is left: a store is locked or full for seconds, not for ever."""
    for pause in PAUSES:
        try:
            return await commit()
        except StorageError:
            await asyncio.sleep(pause)
    return await commit()


def read(reader: ReplyReader) -> Reply:
    """What the copy of a reply says; nothing where it is beyond reading: the client's own bytes are not touched by that."""
    try:
        return reader.finish()
    except (ValueError, TypeError, RecursionError) as exc:
        log.warning("reply.unread", cause=type(exc).__name__)
        return Reply()


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
    """Raises BadRequest for resource scope without a resource: whose threads are to share a log? (behaviour.md 2)"""
    if (caller.scope or call.effective.memory.scope) == "resource" and not caller.names_resource:
        raise BadRequest(
            "this thread's memory is its resource's (scope: resource): name the resource in X-OM-Resource",
            "om_no_resource",
            "X-OM-Resource",
        )


def hints_of(exchange: Exchange) -> Hints:
    retried = next((v for n, v in exchange.scope["headers"] if n == b"x-stainless-retry-count"), b"0")
    return Hints(history=exchange.caller.history, sdk_retry=retried not in (b"0", b""))


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


def reason_of(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return "memory-slow"
    if isinstance(exc, Unreadable | UnicodeDecodeError):
        return "unreadable"
    if isinstance(exc, Conflict):
        return "conflict"
    return "storage" if isinstance(exc, StorageError) else "memory-error"


def bypassed(exchange: Exchange, exc: Exception) -> None:
    thread = exchange.caller.key.thread if exchange.caller.key else None
    log.error("memory.bypassed", error=type(exc).__name__, reason=exchange.reason, thread=thread, at=place_of(exc))


def place_of(exc: BaseException) -> str:
    """Where an exception was raised, as `file:line`: all of a traceback that cannot hold somebody's words."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""


def receipt(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """The X-OM-* response headers (http.md)."""
    turn = exchange.turn
    said = [(b"x-om-status", exchange.status.encode())]
    if exchange.reason:
        said.append((b"x-om-reason", exchange.reason.encode()))
    if exchange.caller.key:
        said.append((b"x-om-thread", exchange.caller.key.thread.encode()))
    if turn:
        said += [(b"x-om-" + name.encode(), b"%d" % value) for name, value in turn.receipt.items()]
    said.append((b"x-om-overhead-ms", b"%.2f" % exchange.overhead_ms))
    return said
