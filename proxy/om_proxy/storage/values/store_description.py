"""Describe a store as a whole, as plain values."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
