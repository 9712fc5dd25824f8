"""A turn whose memory could not be read when its request came. Its original bytes went upstream,
and it is reconciled once the memory can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply, Request, Unreadable


@dataclass(eq=False, slots=True)
class MissedTurn:
    """The values with which such a turn is stored later. It holds no part of the body beside the
    messages."""

    caller: Caller
    # who the caller is under the secret of a store. It holds the request's credential: no store was
    # open yet, so nothing else can name the tenant. It is never written anywhere.
    identify: Callable[[bytes], Caller] = field(repr=False)
    request: Request
    context: MemoryContext
    hints: Hints
    came_at: float  # unix seconds, as is `ended_at`
    reply: Reply | None
    ended_at: float
    was_delivered: Callable[[], bool]  # as far as is known, its reply went out to its last byte
    # its client is known for its whole history: the next request shows the turn again
    is_sent_again: bool = False
    is_commit_begun: bool = False  # a commit that was cut may be written

    @property
    def held_bytes(self) -> int:
        """The bytes of its messages and its reply."""
        return sum(map(len, self.request.messages)) + len(
            (self.reply and self.reply.message) or b""
        )

    def mark_commit_begun(self) -> None:
        self.is_commit_begun = True

    def move(self, secret: bytes, clock_step_s: float) -> None:
        """Take the turn to a store with this secret, whose clock is so much ahead of the one that
        `came_at` is by."""
        self.caller = self.identify(secret)
        self.came_at += clock_step_s

    def shows_all_of(self, earlier: MissedTurn) -> bool:
        """Return whether this request begins with all that the earlier one sent, and with its
        reply: the code that stores this turn stores that one. A window that has moved on does
        not."""
        sent, count = self.request.messages, len(earlier.request.messages)
        if self.hints.history == "new" or tuple(sent[:count]) != tuple(earlier.request.messages):
            return False
        reply = earlier.reply
        if reply is None or reply.message is None or not reply.complete:
            return True
        return len(sent) > count and _has_same_text(self.request, sent[count], reply.message)


def _has_same_text(request: Request, shown: bytes, stored: bytes) -> bool:
    """Return whether two messages say the same, however their JSON is written."""
    try:
        shown_item, stored_item = (request.api.read_item(raw, key=b"") for raw in (shown, stored))
    except Unreadable:
        return False
    return shown_item.fp == stored_item.fp
