"""A request that names a thread on a route without memory: its receipt, its line in the log, and one warning for its client and route.

A client that speaks the Responses or the Messages API would otherwise never learn why it is
forgotten (docs/spec/http.md#receipt). A stranger who invents a credential for each request is a new
client each time, so a minute has room for few warnings.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from starlette.types import Scope

from om_proxy.edge.exchange import named_receipt
from om_proxy.edge.headers import Header, header
from om_proxy.edge.passthrough import Passed
from om_proxy.edge.site import Site
from om_proxy.logs import thread_label, thread_name
from om_proxy.memory import identity
from om_proxy.memory.identity import Caller
from om_proxy.memory.model import Key

log = structlog.get_logger("turn")

MAX_WARNED_CLIENTS = 1_024  # pairs of client and route; the one that came longest ago is warned of again
MAX_WARNINGS_A_MINUTE = 20  # of one process; the next one logged says how many were left out
ADVICE = "this route has no memory; have the client use /v1/chat/completions (docs/clients)"
# What a log may hold of a path, which may end in an id, and of a User-Agent, which is the client's own text: words of ours alone.
ROUTES = frozenset(
    (
        *("responses", "messages", "chat", "completions", "embeddings", "models", "files", "uploads", "batches", "audio", "images"),
        *("moderations", "assistants", "threads", "vector_stores", "conversations", "realtime", "rerank"),
    )
)  # fmt: skip
PROGRAMS = (
    *("codex", "claude-cli", "opencode", "openai/python", "asyncopenai/python", "openai/js", "anthropic/python", "anthropic/js"),
    *("litellm", "ai-sdk", "continue", "aider", "python-httpx", "python-requests", "node", "curl"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreached:
    """One such request."""

    caller: Caller
    route: str
    program: str
    started: float = field(default_factory=time.perf_counter)

    @property
    def receipt(self) -> list[Header]:
        return named_receipt("off", "route", self.caller)


class UnreachedRequests:
    """Tells the log of each, and warns once of each client and route."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = secret
        self._clock = clock
        self._warned: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._minute_ends = float("-inf")
        self._warnings = 0  # in this minute
        self._left_out = 0  # since the last one that was logged

    def find(self, scope: Scope, site: Site) -> Unreached | None:
        """None where the request names no thread."""
        caller = identity.identify_off_route(scope["headers"], site.identity, self._secret, time.time())
        if caller is None:
            return None
        return Unreached(caller, _route(scope["raw_path"]), _program(scope["headers"]))

    def tell(self, unreached: Unreached, passed: Passed) -> None:
        """The request's line in the log, as chat has it."""
        self._warn_once(unreached)
        key = unreached.caller.key
        name = thread_name(key)
        tell = log.warning if passed.status >= 500 and passed.end.startswith("om_") else log.info
        tell(
            "turn",
            status=passed.status,
            memory="off",
            reason="route",
            route=unreached.route,
            thread=thread_label(self._secret, key),
            **({"name": name} if name else {}),
            case=None,
            end=passed.end,
            overhead_ms=0.0,
            total_ms=round((time.perf_counter() - unreached.started) * 1_000, 1),
        )

    def _warn_once(self, unreached: Unreached) -> None:
        client = thread_label(self._secret, Key(unreached.caller.tenant or "", "", "")) or ""
        pair = (client, unreached.program, unreached.route)
        if pair in self._warned:
            self._warned.move_to_end(pair)
            return
        if not self._has_room():
            self._left_out += 1
            return  # it is warned of when it comes again
        self._warned[pair] = None
        if len(self._warned) > MAX_WARNED_CLIENTS:
            self._warned.popitem(last=False)
        missing = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        log.warning(
            "memory.unreached",
            client=client,
            program=unreached.program,
            route=unreached.route,
            advice=ADVICE,
            **missing,
        )

    def _has_room(self) -> bool:
        """Whether this minute has room for one more warning, which it then takes."""
        now = self._clock()
        if now >= self._minute_ends:
            self._minute_ends, self._warnings = now + 60.0, 0
        self._warnings += 1
        return self._warnings <= MAX_WARNINGS_A_MINUTE


def _route(raw_path: bytes) -> str:
    """The API that a path belongs to, by a word of ours."""
    segments = [part.decode("latin-1") for part in raw_path.split(b"/") if part and part != b"v1"]
    return f"/v1/{segments[0]}" if segments and segments[0] in ROUTES else "other"


def _program(headers: Sequence[Header]) -> str:
    """Which of the programs known here the client says it is."""
    agent = (header(headers, b"user-agent") or b"").decode("latin-1").lower()
    return next((program for program in PROGRAMS if agent.startswith(program)), "other")
