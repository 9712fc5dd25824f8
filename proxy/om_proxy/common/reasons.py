"""List the values of the headers `x-om-status` and `x-om-reason`. Both lists are closed.

The log's `turn` and `memory.bypassed` events use the same words. edge/vocabulary.py explains each
word; tests/common/test_reasons.py checks that the code uses each.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The outcome of a request for memory."""

    OFF = "off"
    RAW = "raw"
    APPLIED = "applied"
    DEGRADED = "degraded"


class Reason(StrEnum):
    """The reason for the status, if something needs explaining."""

    NO_THREAD = "no-thread"
    ROUTE = "route"
    NO_CREDENTIAL = "no-credential"
    DISABLED = "disabled"
    MODE_OFF = "mode-off"
    SIDE_REQUEST = "side-request"
    UNREADABLE = "unreadable"
    NO_MESSAGES = "no-messages"
    SERVER_STATE = "server-state"
    BACKGROUND = "background"
    COMPACTION = "compaction"
    CODING_AGENT = "coding-agent"
    WRITE_ONLY = "write-only"
    NO_OBSERVER = "no-observer"
    OBSERVER_FAILING = "observer-failing"
    OBSERVER_LATE = "observer-late"
    FORK_NOT_WAITED = "fork-not-waited"
    ECONOMY = "economy"
    TAIL_LIMIT = "tail-limit"
    TOOL_PAIRS = "tool-pairs"
    UPSTREAM_REFUSED = "upstream-refused"
    CONTEXT_OVERFLOW = "context-overflow"
    REPLY_TOO_LARGE = "reply-too-large"
    STORAGE = "storage"
    MEMORY_SLOW = "memory-slow"
    MEMORY_ERROR = "memory-error"
    CONFLICT = "conflict"
