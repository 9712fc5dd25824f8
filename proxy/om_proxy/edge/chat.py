"""The intercepted route: memory before and after one chat completion, and the one place that fails open.

Whatever goes wrong with memory, the client's original bytes go upstream and the receipt says so; whatever goes wrong upstream
arrives as it came. Only a request that cannot be meant (two credentials, a bad header) is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial

import structlog
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from om_proxy.background import Background
from om_proxy.edge import answers
from om_proxy.edge.budget import MemoryBudget
from om_proxy.edge.disconnect import watching, while_there
from om_proxy.edge.exchange import WORTH_WEIGHING, Exchange, call_of, hints_of, must_name_resource, receipt, why_off
from om_proxy.edge.headers import asking_identity
from om_proxy.edge.kept import kept
from om_proxy.edge.limited import Limited
from om_proxy.edge.passthrough import CLIENT_LEFT
from om_proxy.edge.reply_copy import ReplyCopy
from om_proxy.edge.routing import server_for
from om_proxy.edge.site import Site
from om_proxy.edge.tee import relay
from om_proxy.edge.turnstile import LARGE
from om_proxy.edge.turnstile import turn as turn_of_loop
from om_proxy.engine import Engine
from om_proxy.errors import BadRequest, Conflict, OmError, StorageError, place_of
from om_proxy.logs import model_name, thread_label, thread_name
from om_proxy.memory import identity
from om_proxy.memory.identity import Caller
from om_proxy.observing import Call
from om_proxy.turn import TakenForSideRequest, Turn
from om_proxy.upstream import Answer, Upstream, join
from om_proxy.wire import refusals
from om_proxy.wire.chat import ChatRequest, Unreadable, kept_of, parse
from om_proxy.wire.reply import Reply
from om_proxy.wire.split import Splits

log = structlog.get_logger("turn")

OPEN_WITHIN = 5.0  # seconds memory may take before the original goes upstream; waiting for an observation not counted
SHORTEN_WITHIN = 1.0  # seconds the store may take around an observation that a prompt beyond the window is waited with
LARGE_AT_ONCE = 1  # large replies kept at a time: a small one waits in the store for those before it
LARGE_BODY = 1 << 18  # bytes from which reading a request takes a turn on the event loop: a millisecond and more
COMMIT_WITHIN = 5.0  # seconds the end of a reply may wait for the commit; it goes on afterwards
# answers to a rewritten prompt after which the original is sent once
# (docs/spec/behaviour.md#refused-prompts)
REFUSED = (400, 413, 422)
UNVERIFIED = (400, 401, 403, 404, 413, 422)  # answers after which nothing of the request is kept
NO_MEMORY = ((b"x-om-status", b"off"),)  # the receipt of a request that was refused before anything was done for it
NO_ANSWER = CLIENT_LEFT.status  # the client left before there was one


class ChatRoute:
    """`POST /v1/chat/completions` as a raw ASGI endpoint."""

    def __init__(
        self,
        engine: Engine,
        background: Background,
        upstream: Upstream,
        secret: bytes,
        budget: MemoryBudget,
    ) -> None:
        self._engine = engine
        self._background = background
        self._upstream = upstream
        self._secret = secret
        self._budget = budget
        self._splits = Splits()
        self._seed = identity.seed(secret)
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._log = log.bind()  # the logger itself: a lazy one is looked up anew for every event

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, site: Site, weigh: Callable[[int], None] = lambda weight: None
    ) -> None:
        """`weigh` tells how many times the bytes of the request's body are held, once that is known (edge/admission.py)."""
        try:
            exchange = await self._accept(scope, receive, site)
            exchange.weigh = weigh
            await self._open(exchange, site)
        except OmError as exc:
            await answers.error(send, exc, NO_MEMORY)
            return
        except answers.Disconnected:
            return
        exchange.overhead_ms = (time.perf_counter() - exchange.started) * 1_000
        if len(exchange.body) > WORTH_WEIGHING:
            exchange.weigh_asked()
        await self._forward(exchange, receive, send)

    async def _accept(self, scope: Scope, receive: Receive, site: Site) -> Exchange:
        caller = identity.identify(scope["headers"], site.identity, self._secret, time.time())
        body = await answers.read_body(receive, site.settings.limits.body)
        started = time.perf_counter()  # how long a client takes to send is its own time
        if len(body) > LARGE_BODY:
            await turn_of_loop()
        request = self._read(body, caller, site)
        upstream = site.server_for(request.model) if request else server_for(scope, site, body)
        headers = site.sent_on(scope["headers"], upstream)
        return Exchange(scope, body, request, caller, upstream, started, headers=headers)

    def _read(self, body: bytes, caller: Caller, site: Site) -> ChatRequest | None:
        """None for what is no chat request we understand, and where nobody asks what it says."""
        if caller.reason and site.meets_all:
            return None
        try:
            return parse(body, self._splits.get(caller.key))
        except Unreadable:
            return None

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
            exchange.call = call
            exchange.turn = await self._opened(exchange, exchange.request, call)
        except BadRequest:
            raise  # what cannot be meant is refused, not guessed at
        except TakenForSideRequest:
            exchange.reason = "side-request"
            return
        # docs/spec/behaviour.md#fail-open: on any fault of ours the original goes upstream
        except Exception as exc:
            exchange.status, exchange.reason = "degraded", reason_of(exc)
            bypassed(exchange, exc, self._secret)
            self._miss(exchange, exc)
            return
        self._keep_split(exchange.turn)
        exchange.headers = asking_identity(exchange.headers)  # a reply we have to read
        exchange.status, exchange.reason = exchange.turn.status, exchange.turn.reason

    def _miss(self, exchange: Exchange, exc: Exception) -> None:
        """What is said now is kept all the same by a client that sends only its newest message: it will not say it again. One
        that sends its history will, and of what it leaves out then more is known than can be told later from this request."""
        request, is_heard = exchange.request, exchange.call is not None and exchange.caller.mode != "read"
        is_thin = request is not None and is_heard and isinstance(exc, StorageError | TimeoutError)
        if is_thin and request is not None and not request.shows_replies:
            exchange.missed_at = self._engine.now()
            exchange.headers = asking_identity(exchange.headers)

    def _keep_split(self, turn: Turn) -> None:
        """Not of a client that shows a window: its next request begins elsewhere. A fault here costs time, and nothing else."""
        split = None
        if turn.standing.rec.style != "window":
            try:
                split = kept_of(turn.request, turn.sent.digests, self._seed)
            except Exception as exc:
                thread = thread_label(self._secret, turn.key)
                log.warning("split.failed", error=type(exc).__name__, thread=thread, at=place_of(exc))
        self._splits.keep(turn.key, split)

    async def _opened(self, exchange: Exchange, request: ChatRequest, call: Call) -> Turn:
        limit = Limited(OPEN_WITHIN)
        return await limit.of(self._engine.open_turn(exchange.caller, request, call, hints_of(exchange), limit.longer))

    def _close(self, exchange: Exchange, reply: Reply | None, status: int) -> asyncio.Task[None]:
        """Commit the turn in a task that outlives the request."""
        return self._background.hold(self._closing(exchange, reply, status))

    async def _closing(self, exchange: Exchange, reply: Reply | None, status: int) -> None:
        key, commit = exchange.caller.key, self._commit_of(exchange, reply, status)
        if key is None or commit is None:
            return
        held = len(exchange.body) + len((reply and reply.message) or b"")
        try:
            if exchange.missed_at is not None:  # its receipt has told the client; the reply waits for nothing
                self._engine.defer(key, commit, held)
            else:
                await self._engine.commit_or_defer(key, commit, held)
        except Exception as exc:  # the client has its answer
            self._tell_uncommitted(exchange, exc)

    def _tell_uncommitted(self, exchange: Exchange, exc: Exception) -> None:
        """A turn is lost, and the operator is told what failed."""
        thread = thread_label(self._secret, exchange.caller.key)
        log.error("memory.uncommitted", error=type(exc).__name__, thread=thread, at=place_of(exc))

    def _commit_of(self, exchange: Exchange, reply: Reply | None, status: int) -> Callable[[], Awaitable[None]] | None:
        """What has to be done to keep the turn; None: nothing of it is kept."""
        turn, accepted = exchange.turn, 200 <= status < 300
        if turn is None:
            return partial(self._close_missed, exchange, reply) if exchange.missed_at is not None and accepted else None
        if accepted:
            return partial(self._commit, turn, reply)
        known = turn.standing.memory.turns > 0  # the upstream has accepted this caller's thread before
        if status not in UNVERIFIED and (known or status != NO_ANSWER):
            return partial(self._engine.keep_unanswered, turn)
        return None

    async def _close_missed(self, exchange: Exchange, reply: Reply | None) -> None:
        assert exchange.request is not None  # noqa: S101 — one that cannot be read is not kept
        assert exchange.call is not None  # noqa: S101 — see `_miss`
        assert exchange.missed_at is not None  # noqa: S101 — see `_miss`
        await self._engine.close_missed(
            exchange.caller,
            exchange.request,
            exchange.call,
            hints_of(exchange),
            exchange.missed_at,
            reply,
            delivered=not exchange.broken,
        )

    async def _commit(self, turn: Turn, reply: Reply | None) -> None:
        large = reply is not None and len(reply.message or b"") > LARGE
        async with self._large if large else nullcontext():
            await self._engine.close_turn(turn, reply, accepted=True)

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
                if (
                    exchange.asked
                ):  # else it surely never happened: its client may have asked again, and been answered, since
                    self._close(exchange, None, NO_ANSWER)
                self._story(exchange, NO_ANSWER, "disconnected")
                return
            if len(exchange.body) > WORTH_WEIGHING:
                exchange.weigh_answered()
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
            if not self._engine.fitting.can_shorten(turn, accepted=accepted):
                return False
            exchange.status, exchange.reason = "degraded", "context-overflow"
            async with asyncio.timeout(turn.call.effective.limits.block_timeout + SHORTEN_WITHIN):
                return await self._engine.fitting.shorten(turn)
        # docs/spec/behaviour.md#fail-open: the client gets the model server's own word
        except Exception as exc:
            bypassed(exchange, exc, self._secret)
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
        exchange.asked = True
        return await self._upstream.send(
            scope["method"],
            join(upstream.base_url, scope["raw_path"].decode("latin-1"), scope["query_string"]),
            exchange.headers,
            body,
            connect_timeout=upstream.connect_timeout,
            read_timeout=upstream.read_timeout,
            setting=upstream.place,
        )

    async def _relay(self, exchange: Exchange, answer: Answer, send: Send, gone: asyncio.Future[None] | None) -> None:
        turn = exchange.turn
        keeps = exchange.turn is not None or exchange.missed_at is not None
        reader = ReplyCopy(exchange.request.stream, self._budget) if keeps and exchange.request else None
        is_settled = False
        closing: asyncio.Task[None] | None = None

        async def before_end() -> None:
            nonlocal is_settled, closing
            assert reader is not None  # noqa: S101 — asked for only where there is one
            reply = await read(reader)  # the client may leave meanwhile: what it says is settled below then
            is_settled = True
            try:
                if turn is not None and self._engine.holds(turn, reply):
                    reader.release()
                    return
                closing = self._close(exchange, reply, answer.status)
            # docs/spec/behaviour.md#fail-open: the client gets its answer's end
            except Exception as exc:
                self._tell_uncommitted(exchange, exc)
                return
            closing.add_done_callback(reader.release)
            await asyncio.wait([closing], timeout=COMMIT_WITHIN)

        try:
            relayed = await relay(
                answer,
                send,
                receipt=receipt(exchange),
                reader=reader,
                before_end=before_end if reader else None,
                disconnected=gone,
            )
            if reader is not None and not is_settled:
                if turn is not None:
                    turn.broken = True
                reply = await read(reader)
                # the client was told so: kept as interrupted, however whole it looks
                if relayed.outcome == "truncated":
                    reply = replace(reply, complete=False)
                closing = self._close(exchange, reply, answer.status)
                closing.add_done_callback(reader.release)
        finally:  # whatever it is: room that nobody gives back is lost to all until the process ends
            if reader is not None and closing is None:
                reader.release()
        if reader is not None and reader.is_given_up:
            exchange.reason = "reply-too-large"  # for the log alone: the receipt was sent before the reply
        exchange.broken = not relayed.is_end_sent
        if turn is not None and relayed.is_end_sent:
            self._engine.note_delivery(turn)
        self._story(exchange, answer.status, relayed.outcome)

    def _story(self, exchange: Exchange, status: int, end: str) -> None:
        """One line a request. A failure of ours is a warning; the model server's own answers are not."""
        turn, key = exchange.turn, exchange.caller.key
        name = thread_name(key)  # where the log may show it
        log = self._log.bind(name=name) if name else self._log
        say = log.warning if status >= 500 and end.startswith("om_") else log.info
        counts = turn.receipt if turn else {}
        say(
            "turn",
            status=status,
            memory=exchange.status,
            reason=exchange.reason,
            thread=thread_label(self._secret, key),
            model=model_name(exchange.request.model) if exchange.request else None,
            tokens_received=counts.get("tokens-received"),
            tokens_sent=counts.get("tokens-sent"),
            case=turn.case if turn else None,
            end=end,
            overhead_ms=round(exchange.overhead_ms, 2),
            total_ms=round((time.perf_counter() - exchange.started) * 1_000, 1),
        )


async def read(reader: ReplyCopy) -> Reply:
    """What the copy of a reply says; nothing where it is beyond reading: the client's own bytes are not touched by that."""
    try:
        return await reader.finish()
    except Exception as exc:  # the copy's failure touches nothing
        log.warning("reply.unread", cause=type(exc).__name__)
        return Reply()


def reason_of(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return "memory-slow"
    if isinstance(exc, Unreadable | UnicodeDecodeError):
        return "unreadable"
    if isinstance(exc, Conflict):
        return "conflict"
    return "storage" if isinstance(exc, StorageError) else "memory-error"


def bypassed(exchange: Exchange, exc: Exception, secret: bytes) -> None:
    thread = thread_label(secret, exchange.caller.key)
    told = log.info if exchange.reason == "unreadable" else log.error  # the client's fault needs nobody's attention
    told("memory.bypassed", error=type(exc).__name__, reason=exchange.reason, thread=thread, at=place_of(exc))
