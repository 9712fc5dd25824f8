"""The records that a store keeps about its memories: who changed what, and what was forgotten. None
holds a text of a conversation or a thread's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

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

SECONDS_PER_DAY = 86_400.0
AUDIT_KEPT_S = 90 * SECONDS_PER_DAY
RECEIPTS_KEPT_S = 30 * SECONDS_PER_DAY


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
