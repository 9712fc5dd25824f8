"""The records that a store keeps beside its memories: who changed what, what was forgotten, events and
how many are kept, and the ledger by day. None but an event holds a text of a conversation, or a
thread's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from om_proxy.memory.ledger import Account, History
from om_proxy.memory.model import Key

SECONDS_PER_DAY = 86_400

# what has become of forgotten bytes. `gone`: they are overwritten. `keys_destroyed`: they stay, and
# nothing can decrypt them. `pending`: they stay until a reader ends, or the log is rewritten, which
# the store waits for. `until_rewrite`: they stay until somebody has the server rewrite its tables, or
# its log is used again. `not_covered`: forgetting does not reach them
ErasureState = Literal["gone", "pending", "keys_destroyed", "until_rewrite", "not_covered"]
# the worst last
_ERASURE_ORDER: tuple[ErasureState, ...] = (
    "gone",
    "keys_destroyed",
    "pending",
    "until_rewrite",
    "not_covered",
)
ForgetScope = Literal["thread", "resource", "tenant"]

AUDIT_KEPT_S = 90.0 * SECONDS_PER_DAY
RECEIPTS_KEPT_S = 30.0 * SECONDS_PER_DAY


class ForgetResult(NamedTuple):
    """The number of rows that were removed with a thread; all 0 if there was no memory of it."""

    threads: int = 0
    messages: int = 0  # live or not
    # notes in its logs, buffered notes, and entries of a shared log that mention it
    observations: int = 0
    generations: int = 0  # of its own log and the shared one, that held any of these
    reflections: int = 0  # made and not yet swapped in
    database: ErasureState = "gone"  # the bytes in the database itself
    log: ErasureState = "gone"  # the bytes in the write-ahead log
    # removed ones; those of a shared log that only lost their texts are not counted
    events: int = 0
    backups: ErasureState = "not_covered"  # the bytes in copies that were made before

    def add(self, other: ForgetResult) -> ForgetResult:
        """Return the sums of both. The bytes are gone once those of both are."""
        return ForgetResult(
            self.threads + other.threads,
            self.messages + other.messages,
            self.observations + other.observations,
            self.generations + other.generations,
            self.reflections + other.reflections,
            _choose_worse(self.database, other.database),
            _choose_worse(self.log, other.log),
            self.events + other.events,
            self._add_backups(other),
        )

    def _add_backups(self, other: ForgetResult) -> ErasureState:
        """Return what is true of copies of both. Where nothing was removed, no copy counts."""
        if not any(self.counts.values()):
            return other.backups
        if not any(other.counts.values()):
            return self.backups
        return _choose_worse(self.backups, other.backups)

    def settle_keys(self, *, is_destroyed: bool) -> ForgetResult:
        """Return the result, given whether the keys of all that was removed are destroyed. Bytes that
        wait for something else are then bytes that nobody can decrypt."""
        if not is_destroyed or self.backups != "pending":
            return self
        settled: list[ErasureState] = [
            "keys_destroyed" if state == "pending" else state for state in (self.database, self.log)
        ]
        return self._replace(database=settled[0], log=settled[1], backups="keys_destroyed")

    @property
    def counts(self) -> dict[str, int]:
        return {
            "threads": self.threads,
            "messages": self.messages,
            "observations": self.observations,
            "generations": self.generations,
            "reflections": self.reflections,
            "events": self.events,
        }


def _choose_worse(one: ErasureState, other: ErasureState) -> ErasureState:
    return max(one, other, key=_ERASURE_ORDER.index)


class AuditRecord(NamedTuple):
    """One change of a memory, or the first reading of its text in an hour."""

    at: float  # unix seconds
    who: str  # `admin`, `cli`, `retention`, or the keyed digest of a credential; never a key
    tenant: str
    what: str  # `forget_thread`, `read_text` …
    label: str = ""  # of the thread, or of a resource's shared log; empty: a whole tenant
    counts: Mapping[str, int] = {}
    id: int = 0  # set by the store; grows


class StoredReceipt(NamedTuple):
    """The record of what was forgotten at a person's request."""

    id: str
    at: float  # unix seconds
    tenant: str
    scope: ForgetScope
    label: str  # as in `AuditRecord`
    result: ForgetResult


# ── events ──

# events are kept until there are so many newer ones, or so long
MAX_EVENTS = 10_000
# of a tenant, the newest: among them a commit that keeps quotes looks for the forgetting of what it
# quotes. The turn has read all events a moment before.
MAX_EVENTS_BEFORE_COMMIT = 1_000
MAX_EVENT_AGE_S = 7.0 * SECONDS_PER_DAY


class StoredEvent(NamedTuple):
    """An event as it is stored."""

    id: int
    # of the thread; with an empty thread, of a shared log; with an empty resource too, of a thread
    # that is forgotten
    key: Key
    at: float  # unix seconds
    type: str
    data: str  # JSON in ASCII


class EventPage(NamedTuple):
    """Some events, in order."""

    events: tuple[StoredEvent, ...]
    cursor: int  # the id after which the next page begins
    has_gap: bool  # whether events that should come before these are no longer kept
    # whether events are stored that no reader may have yet: a transaction before them still runs
    is_held_back: bool = False
    # those of them that tell of forgotten threads, with this tenant: they come again in their order
    held_back_forgettings: tuple[StoredEvent, ...] = ()


class WebhookState(NamedTuple):
    """How far a webhook has got."""

    cursor: int  # id of the last event that its receiver took
    failures: int  # in a row
    cause: str  # of the last failure: our words
    at: float  # of the last attempt, in unix seconds


# ── the ledger ──

Who = Literal["actor", "observer", "reflector", "embedder"]  # what a model was asked for
Grouping = Literal["day", "model", "resource"]
NAMELESS_RESOURCE = ""  # of forgotten resources, and of those that nothing is stored of
LEDGER_KEPT_DAYS = 400  # a year can be compared with the month before it
# a process that could not write for longer may add its last batch twice
WRITER_RETENTION_S = 30 * SECONDS_PER_DAY


class LedgerLine(NamedTuple):
    """The fields that the calls of one line share."""

    tenant: str
    resource: str
    day: int  # since 1970-01-01, in UTC
    model: str
    who: Who
    history: History


class LedgerBatch(NamedTuple):
    """Sums to add to the ledger, once."""

    writer: str  # a random name of the process
    number: int  # from 1 on, without gaps
    lines: Mapping[LedgerLine, Account]


class LedgerQuery(NamedTuple):
    """A question about the ledger. `tenant=None`: all tenants (the operator's view)."""

    tenant: str | None
    by: Grouping
    first_day: int | None = None
    last_day: int | None = None
    after: LedgerGroup | None = None  # only groups behind this one
    limit: int = 100  # of groups
    resource: str | None = None  # only its lines
    model: str | None = None  # likewise


# what the sums are by: a day, a model, or a tenant and its resource
LedgerGroup = tuple[int | str, ...]


class LedgerSum(NamedTuple):
    """The sums of one group, of one kind of call. A group has one for each kind."""

    group: LedgerGroup
    who: Who
    history: History
    account: Account
