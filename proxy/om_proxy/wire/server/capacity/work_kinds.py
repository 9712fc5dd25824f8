"""The table of the work that people can start beside chat, with its bounds in one process. The queues
(work_queues.py) and the table in docs/guides/capacity.md are made from it."""

from __future__ import annotations

from dataclasses import dataclass

_KIB, _MIB = 2**10, 2**20
# whose slots a request takes: a tenant's; None: the admin's
Share = str | None
# the share of all keys that nobody has verified: anybody can make up more of them than there are
# slots
UNKNOWN_KEYS = "unknown keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKind:
    """One kind of work. The last slot of `at_once` is kept for the admin."""

    name: str
    covers: str  # for the docs
    at_once: int  # slots
    of_tenant: int  # slots that one tenant may have, or the admin
    of_unknown: int | None = None  # slots of all unknown keys together; None: as of one tenant
    waiting: int  # requests of one tenant that may wait; the next one is refused
    held_bytes: int  # charged to limits.memory for each slot that is taken

    def find_max_slots(self, share: Share) -> int:
        """Return how many slots this share may have."""
        if share == UNKNOWN_KEYS and self.of_unknown is not None:
            return self.of_unknown
        return self.of_tenant

    @property
    def max_waiting(self) -> int:
        """How many requests of all tenants may wait."""
        return 8 * self.waiting


# 3 000 passages of 150 words, or the newest messages where there is no index
_SEARCH_BYTES = 32 * _MIB
LOOK_UP = WorkKind(
    name="look-up",
    covers="steps of look-ups that the actor model makes for a reply",
    at_once=4,
    of_tenant=2,
    waiting=32,
    held_bytes=_SEARCH_BYTES,
)
SEARCH = WorkKind(
    name="search",
    covers="searches of messages or notes, by the admin API or MCP",
    at_once=3,
    of_tenant=1,  # a second one makes none faster, and a neighbour's chat wait
    waiting=32,
    held_bytes=_SEARCH_BYTES,
)
PAGE = WorkKind(
    name="page",
    covers="everything else that the admin API, the dashboard or MCP reads or changes",
    at_once=16,
    of_tenant=6,  # a browser has as many connections to a host
    waiting=64,
    held_bytes=4 * _MIB,
)
PREVIEW = WorkKind(
    name="preview",
    covers="previews of a prompt",
    at_once=4,
    of_tenant=2,
    waiting=16,
    held_bytes=16 * _MIB,  # beside the body, which counts as any other
)
EXPORT = WorkKind(
    name="export",
    covers="exports, until the client has read them",
    at_once=4,
    of_tenant=1,  # a client that reads slowly holds its slot; two tenants leave one for a third
    waiting=4,
    held_bytes=8 * _MIB,  # a page of 50 messages, in three forms
)
IMPORT = WorkKind(
    name="import",
    covers="imports of exports and of conversations",
    at_once=3,
    of_tenant=1,
    waiting=4,
    held_bytes=0,  # the body counts as any other, three times its bytes
)
MEMORY_WORK = WorkKind(
    name="memory work",
    covers="observing, condensing and activating by hand, as long as the caller waits for it",
    at_once=16,
    of_tenant=4,
    waiting=4,
    held_bytes=_MIB,
)
EVENT_STREAM = WorkKind(
    name="event stream",
    covers="streams of events, until they end",
    at_once=64,
    of_tenant=16,
    of_unknown=4,
    waiting=0,
    held_bytes=256 * _KIB,  # 256 events that wait for a slow reader
)

WORK_KINDS = (LOOK_UP, SEARCH, PAGE, PREVIEW, EXPORT, IMPORT, MEMORY_WORK, EVENT_STREAM)
