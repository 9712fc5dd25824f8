"""Report a request that names a thread, or a coding agent's session, on a route without memory: with a receipt, a log line, and
one warning for its client and route.

Otherwise a user of embeddings, or of an API that `identity.apis` leaves out, never learns why nothing
is remembered (docs/contributing/http.md#receipt). What clients ask beside their requests with
memory, such as how many tokens a prompt has, warns of nothing, nor does a WebSocket in place of a
post. A caller that invents a credential for each request counts as a new client each time, so the
number of warnings in a minute is limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from starlette.types import Scope

from om_proxy.common.apis import ApiName
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import HttpInstead
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.passthrough import RequestEnd
from om_proxy.edge.replies.receipt import build_base_receipt
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts, UnreachedTurnEnded
from om_proxy.observability.logs import WarningLimit, get_thread_label
from om_proxy.settings.identity.callers import Caller, identify_off_route
from om_proxy.settings.identity.client_names import name_client
from om_proxy.wire.server.headers import Header

logger = structlog.get_logger("turn")

# pairs of client and route; above it, the pair that came longest ago may get another warning
MAX_WARNED_CLIENTS = 1_024
MAX_WARNINGS_A_MINUTE = 20  # per process; the next warning logged says how many were left out
ROUTE_ADVICE = "this route has no memory; have the client post to {paths} (docs/clients)"
TURN_ROUTES: Mapping[ApiName, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
# of these APIs' own clients, about a conversation that has memory all the same
HELPER_ROUTES = frozenset(
    ("/v1/responses/compact", "/v1/responses/input_tokens", "/v1/messages/count_tokens")
)
# in which coding agents name their sessions, which are no threads of ours
AGENT_SESSION_HEADERS = (b"x-claude-code-session-id", b"session_id", b"session-id")
# only these words are logged: a path may end in an id
KNOWN_ROUTES = frozenset(
    (
        *("responses", "messages", "chat", "completions", "embeddings", "models", "files"),
        *("uploads", "batches", "audio", "images", "moderations", "assistants", "threads"),
        *("vector_stores", "conversations", "realtime", "rerank"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreached:
    """A request that names a thread on a route without memory."""

    caller: Caller
    route: str
    program: str
    api: ApiName
    advice: str
    started: float = field(default_factory=time.perf_counter)

    @property
    def base_receipt(self) -> list[Header]:
        return build_base_receipt(Status.OFF, Reason.ROUTE, self.caller)


class UnreachedRequests:
    """The log lines of these requests, and one warning for each client and route."""

    def __init__(
        self, secret: bytes, facts: Facts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._secret = secret
        self._facts = facts
        self._clock = clock
        self._limit = WarningLimit(MAX_WARNINGS_A_MINUTE, lambda: self._clock())  # noqa: PLW0108 - the clock may be replaced
        self._warned: BoundedCache[tuple[str, str, str], bool] = BoundedCache(
            max_items=MAX_WARNED_CLIENTS
        )

    def find(self, scope: Scope, config: EdgeConfig, api: ApiName) -> Unreached | None:
        """Return the request as one without memory; None if it names no thread and no session."""
        caller = identify_off_route(scope["headers"], config.identity, self._secret, time.time())
        if caller is None:
            if not any(name in AGENT_SESSION_HEADERS for name, _ in scope["headers"]):
                return None
            caller = Caller(None, None)
        paths = " or ".join(TURN_ROUTES[name] for name in config.settings.identity.apis)
        return Unreached(
            caller,
            _name_route(scope["raw_path"]),
            name_client(scope["headers"]),
            api,
            ROUTE_ADVICE.format(paths=paths),
        )

    def log_request(self, unreached: Unreached, end: RequestEnd) -> None:
        """Log the end of the request, as the routes with memory do."""
        if unreached.route not in HELPER_ROUTES and end.status != HttpInstead.status:
            self._warn_once(unreached)
        self._facts.emit(
            UnreachedTurnEnded(
                unreached.caller.key,
                end.status,
                unreached.route,
                end.end,
                total_ms=(time.perf_counter() - unreached.started) * 1_000,
                api=unreached.api,
                client=unreached.program,
            )
        )

    def _warn_once(self, unreached: Unreached) -> None:
        client = get_thread_label(self._secret, Key(unreached.caller.tenant or "", "", "")) or ""
        pair = (client, unreached.program, unreached.route)
        if self._warned.get(pair):
            return
        left_out = self._limit.take()
        if left_out is None:
            return  # the pair's next request may get the warning
        self._warned.put(pair, True)
        logger.warning(
            "memory.unreached",
            client=client,
            program=unreached.program,
            route=unreached.route,
            advice=unreached.advice,
            **left_out,
        )


def _name_route(raw_path: bytes) -> str:
    """Return the API that a path belongs to, as one of the known words."""
    segments = [part for part in raw_path.decode("latin-1").split("/") if part and part != "v1"]
    whole = "/v1/" + "/".join(segments)
    if whole in HELPER_ROUTES:
        return whole
    return f"/v1/{segments[0]}" if segments and segments[0] in KNOWN_ROUTES else "other"
