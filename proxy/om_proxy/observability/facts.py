"""Record what happened to turns and memories, as values.

A fact is emitted once, where it happens. app/app.py attaches the subscribers:
observability/fact_lines.py writes each fact as a line of the log. A subscriber runs on
the request's path, inside `emit`: it must be quick. One that raises costs only what it would have
noted.

Between the end of a reply and its commit much is done that the turn does not need. Such an extra
runs in `try_extra` or `await_extra`: a fault of it becomes a fact, and the turn is stored.

A fact holds no text of a message, a header or an exception. It names a thread by its key. A
subscriber replaces the key by the thread's label before it shows the fact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from msgspec import Struct

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import CredentialKind, OmError, Unauthorized, raise_site
from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.events.parts import NotesChange
from om_proxy.memory.ledger import Account, History
from om_proxy.memory.model import Key
from om_proxy.memory.recall.offering import Offer
from om_proxy.memory.rounds import LookUpMode, LookUpOutcome
from om_proxy.memory.token_prices import Usage

AgentWork = Literal["observe", "reflect", "embed"]
# `abandoned`: the deadline passed, or the process ended
DecisionPlace = Literal["request", "background"]
CallOutcome = Literal["answered", "failed", "abandoned"]
# What is done beside a turn. tests/e2e/test_turn_extras.py makes each of them fail.
TurnExtra = Literal[
    "split",  # what makes the thread's next request quicker to read
    "inline",  # the comments before a stream
    "receipt",
    "reply_copy",  # what was read of the reply; without it the request is stored as unanswered
    "reply_item",  # likewise
    "rounds",  # the usage of a reply with look-ups, and those that it keeps
    "repeat",  # whether this very reply is stored already
    "shadow",  # the prompt that memory would have sent
    "ledger",  # prices and sums
    "look_up_tokens",
    "look_ups",  # whether look-ups quote a thread that is gone
    "quotes",  # the same for a turn that waits for the store
    "title",  # that a client asked for; its thread keeps it
    "tokens",  # counts of messages; without them they are estimated
    "prompt_values",  # what the next prompt takes over from this one
    "events",  # what a change means to those who watch it
    "due",  # when background work is due
    "held",  # the memory that is held for the next request
    "watchers",  # readers of events in this process
    "wake",  # background work at once
    "recount",
    "delivery",  # that the reply went out to its last byte
    "figures",  # how long the store took
    "facts",  # one subscriber of facts
]
TURN_EXTRAS: tuple[TurnExtra, ...] = get_args(TurnExtra)
P = ParamSpec("P")
T = TypeVar("T")


class TurnEnded(Struct, frozen=True):
    """A request of an API with memory has its answer, or has ended without one."""

    key: Key | None  # None: the request names no thread
    status: int
    memory: Status
    reason: Reason | None
    model: str | None  # as the client names it
    tokens_received: int | None
    tokens_sent: int | None
    case: str | None  # how the request stood against its memory
    end: str  # how the reply ended, or the code of the error that the client got
    overhead_ms: float
    total_ms: float
    upstream: str = ""  # the model server's name in the settings
    first_byte_s: float | None = None  # from the newest prompt sent; None: no answer came
    usage: Usage | None = None  # None: not reported, or the reply was not read
    recall: Offer | None = None  # None: the tool for look-ups is not for this request
    recall_steps: int = 0
    later_rounds: int = 0  # of the reply, after the first
    observer: str | None = None  # the model that makes notes of this conversation
    api: ApiName = "chat"
    client: str = ""  # if memory is off: settings/identity/client_names.py


class LookUpsMade(Struct, frozen=True):
    """A reply's model has looked up earlier messages, in one step."""

    key: Key
    look_ups: tuple[tuple[LookUpMode, LookUpOutcome], ...]
    seconds: float


class RequestRefused(Struct, frozen=True):
    """The proxy has refused a request of an API with memory before it was sent anywhere."""

    status: int
    error: str  # the code of the error that the client got
    api: ApiName = "chat"
    client: str = ""  # as in TurnEnded


class CredentialRefused(Struct, frozen=True):
    """A wrong key or token was sent, on any route. An expired one is not wrong."""

    kind: CredentialKind


class UnreachedTurnEnded(Struct, frozen=True):
    """A request that names a thread has ended, on a route without memory."""

    key: Key | None
    status: int
    route: str
    end: str
    total_ms: float
    api: ApiName = "chat"  # by its path or its headers (common/apis.py)
    client: str = ""  # as in TurnEnded


class Bypassed(Struct, frozen=True):
    """Memory failed, and the client's original request goes upstream."""

    key: Key | None
    reason: Reason | None
    error: str  # the exception's class
    at: str  # where it was raised: errors.raise_site


class Uncommitted(Struct, frozen=True):
    """A turn could not be stored, and is lost."""

    key: Key | None
    error: str  # the exception's class, or why turns were given up
    at: str | None = None
    turns: int | None = None


class ExtraFailed(Struct, frozen=True):
    """Something beside a turn has failed. The turn goes on without it."""

    key: Key | None
    extra: TurnExtra
    error: str  # the exception's class
    at: str  # where it was raised: errors.raise_site


class TurnPriced(Struct, frozen=True):
    """The ledger has priced a turn, once, whether or not the turn is stored."""

    key: Key
    model: str | None  # as the client names it
    history: History
    account: Account  # the sums of this one call


class MemoryCallEnded(Struct, frozen=True):
    """The observer, the reflector or the embedding model has been asked, with all its tries, and has
    answered or failed.

    A call for several threads is one call. `usage` is what the servers
    reported for every answer, usable or not, and our counts where they reported nothing.
    """

    keys: tuple[Key, ...]
    work: AgentWork
    model: str  # the one that answered; after a failure the first one asked
    outcome: CallOutcome
    seconds: float
    calls: int  # tries, refused ones included
    usage: Usage
    cost: int | None = None  # in integer micro-dollars; None: the price of some call is not known
    history: History = "full"  # how much of its history the thread's client sends
    accounts: tuple[tuple[str, Account], ...] = ()  # the calls that were paid for, by model asked


class Observed(Struct, frozen=True):
    """The observer has made notes of some messages."""

    key: Key
    source_tokens: int
    tokens: int
    kept: bool  # False: the memory has changed meanwhile, and the notes are not stored
    model: str | None


class Reflected(Struct, frozen=True):
    """The reflector has condensed notes."""

    key: Key
    source_tokens: int
    tokens: int
    model: str | None


class MemoryWorkFailed(Struct, frozen=True):
    """A memory model has given nothing usable."""

    key: Key
    work: AgentWork
    error: str  # the error's code
    failures: int  # in a row, this one included
    advice: str  # what the operator can do; may be empty


class Forgotten(Struct, frozen=True):
    """A person has forgotten a thread, a resource or a tenant, with everything kept of it."""

    key: Key
    messages: int
    bytes: str  # what the store reports about the bytes on disk


class Retired(Struct, frozen=True):
    """A thread, or a resource as a whole, was forgotten because it had not been used for long."""

    key: Key  # without a thread name: the resource
    why: Literal["ttl"]
    threads: int
    messages: int
    bytes: str  # as in `Forgotten`


class LogRetired(Struct, frozen=True):
    """Parts of a log were removed by a rule of `retention`: lines of its oldest entries, or older
    generations."""

    key: Key
    why: Literal["max_observations", "max_reflections", "generations"]
    count: int  # of entries, or of generations


class NotesChanged(Struct, frozen=True):
    """A person has changed a thread's notes, or those of the log that it shares."""

    key: Key
    change: NotesChange


class ForgottenMeanwhile(Struct, frozen=True):
    """Work under way ended after its thread had been forgotten, so nothing of it is stored."""

    key: Key


class Decided(Struct, frozen=True):
    """Memory has decided what to do next on a thread. Only emitted if `Facts.tells_decisions`."""

    key: Key
    place: DecisionPlace
    decision: str  # one word; `nothing` if nothing is due
    numbers: Mapping[str, int | str]  # the decision's own


Fact = (
    TurnEnded
    | LookUpsMade
    | RequestRefused
    | CredentialRefused
    | UnreachedTurnEnded
    | Bypassed
    | Uncommitted
    | ExtraFailed
    | TurnPriced
    | MemoryCallEnded
    | Observed
    | Reflected
    | MemoryWorkFailed
    | Forgotten
    | Retired
    | LogRetired
    | NotesChanged
    | ForgottenMeanwhile
    | Decided
)
FACT_KINDS: tuple[type[Fact], ...] = get_args(Fact)
Subscriber = Callable[[Any], None]  # takes facts of the kinds that it subscribed to


class Facts:
    """Passes each fact to the subscribers of its kind, in the order of subscription, before `emit`
    returns."""

    __slots__ = ("_subscribers", "tells_decisions")

    def __init__(self, *subscribers: Subscriber, tells_decisions: bool = False) -> None:
        """`subscribers`: of every kind. `tells_decisions`: whether each decision is a fact. There
        are several for a request."""
        self._subscribers: dict[type[Fact], list[Subscriber]] = {kind: [] for kind in FACT_KINDS}
        self.tells_decisions = tells_decisions
        for subscriber in subscribers:
            self.subscribe(subscriber)

    def subscribe(self, subscriber: Subscriber, *kinds: type[Fact]) -> None:
        """Pass the facts of these kinds to the subscriber; without any, those of every kind."""
        for kind in kinds or FACT_KINDS:
            self._subscribers[kind].append(subscriber)

    def emit(self, fact: Fact) -> None:
        for notify in self._subscribers[type(fact)]:
            try:
                notify(fact)
            except Exception as exc:
                self.report_extra("facts", None, exc)

    def try_extra(
        self,
        extra: TurnExtra,
        key: Key | None,
        fallback: T,
        run: Callable[P, T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Return what `run` returns, or `fallback` if it raises. `key`: of the turn's thread."""
        try:
            return run(*args, **options)
        except Exception as exc:
            self.report_extra(extra, key, exc)
            return fallback

    async def await_extra(
        self,
        extra: TurnExtra,
        key: Key | None,
        fallback: T,
        run: Callable[P, Awaitable[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Do the same as `try_extra` for an extra that waits."""
        try:
            return await run(*args, **options)
        except Exception as exc:
            self.report_extra(extra, key, exc)
            return fallback

    def report_extra(self, extra: TurnExtra, key: Key | None, exc: Exception) -> None:
        """Emit the fact that an extra has failed."""
        fact = ExtraFailed(key, extra, type(exc).__name__, raise_site(exc))
        for notify in self._subscribers[ExtraFailed]:
            with suppress(Exception):  # a subscriber that fails even here cannot be reported
                notify(fact)

    def emit_refusal(self, exc: OmError) -> None:
        """Emit the fact of an error that refuses a credential; no other error is one here."""
        if isinstance(exc, Unauthorized) and exc.wrong is not None:
            self.emit(CredentialRefused(exc.wrong))
