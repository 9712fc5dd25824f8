"""The part of the Store protocol in which a store says how it is, and the values that it says it with.
Its docstrings are the contract."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

# what an acknowledged commit survives. `fsync`: a power cut. `second`: a killed process; a power cut
# may lose the newest second. `none`: a killed process; a power cut may lose everything. `process`:
# nothing; the data ends with the process
Durability = Literal["fsync", "second", "none", "process"]

# when the bytes of forgotten rows leave the database. `now`: they are overwritten as soon as no
# reader holds them. `rewrite`: they stay until its tables are rewritten. `keys`: they stay, and
# cannot be read once their keys are destroyed
Erasure = Literal["now", "rewrite", "log", "keys"]

# a thread counts as at most so many in the sums of all: its row may be forged
MAX_COUNTED_TOKENS = 10**12


class Promise(NamedTuple):
    """The promises of a store about the data that it keeps."""

    kind: str  # `sqlite`, `postgresql` …
    durable: Durability
    erases: Erasure
    schema_version: int  # number of the newest migration that the database has
    encrypted: bool = False  # whether texts are
    # whether their keys are apart from them, where copies of the data do not hold them
    separate_keys: bool = False
    # whether it can keep an index of original messages; else a search reads the newest ones
    has_index: bool = True


class StoreTotals(NamedTuple):
    """Sums over all threads of the store, whatever their tenant."""

    messages_tokens: int = 0  # of messages that no notes cover yet
    observations_tokens: int = 0  # of notes in logs, reflections left out
    reflections_tokens: int = 0  # of notes in logs that the reflector wrote
    due_threads: int = 0  # whose work is due and not leased
    parked_threads: int = 0


class StoreStatus(Protocol):
    """How a store is, and what it promises."""

    async def describe(self) -> Promise:
        """Return what this store promises."""

    async def totals(self, now: float) -> StoreTotals:
        """Return sums over all threads, as of `now`. Each thread counts as last committed. The
        method reads in short steps, so the sums need not be those of one moment."""

    async def wait_erased(self) -> None:
        """Return once no forgotten bytes are `pending`."""

    async def check_schema(self) -> None:
        """Raise `StorageError` if this program is too old to write to the database: a newer one has
        changed its schema since it was opened."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""
