"""The lines of the ledger by day, as every backend takes and returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from om_proxy.memory.ledger import Account, History

Who = Literal["actor", "observer", "reflector", "embedder"]  # what a model was asked for
Grouping = Literal["day", "model", "resource"]
NAMELESS_RESOURCE = ""  # of forgotten resources, and of those that nothing is stored of
SECONDS_PER_DAY = 86_400
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
