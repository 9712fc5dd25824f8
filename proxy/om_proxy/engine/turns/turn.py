"""Hold the values of a turn in the order of its steps: reconciled, opened, prepared, committed.

Below them are pure functions of these values. No value is changed: a step returns the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.reasons import Reason, Status
from om_proxy.engine.policy import Instructions, MemoryContext
from om_proxy.memory.ledger import PromptMark
from om_proxy.memory.model import Item, Key, Memory, Message, Scope, extend_chain
from om_proxy.memory.prompt.tail import holds_conversation
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import Verdict
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply, Request, Unreadable
from om_proxy.wire.apis.registry import cut_beginning


class ReconciledTurn(Struct, frozen=True):
    """A request compared with a memory."""

    memory: Memory  # as committed
    base: Memory  # `memory`, rolled back if the request forks before coverage
    sent: SentHistory  # as recognised by the views of this memory
    verdict: Verdict
    revived: Mapping[int, Message]  # superseded messages that are live again, by seq
    tokens: Mapping[int, int]  # payload tokens of new messages, by their index in `sent`
    asked: Memory  # `base` with this request, unanswered
    projected: Memory  # the same, as its prompt shows it: with the values it is built with

    @property
    def forks_before_coverage(self) -> bool:
        """Whether the request forks at a message that the notes cover."""
        return self.base is not self.memory


class OpenedTurn(Struct, frozen=True):
    """A request of a thread, reconciled with the thread's memory."""

    key: Key
    scope: Scope  # whether the thread owns its log or shares the log of its resource
    context: MemoryContext
    hints: Hints
    request: Request
    reconciled: ReconciledTurn
    # The first verdict. A later one may be a retry: messages are stored while the request waits.
    case: str
    previous_render_date: float | None  # of the memory when the request came
    timezone: str | None  # as the client names it
    # `Memory.row_id` of the thread's row. If that row is forgotten, nothing of the turn is stored.
    row_id: int
    forget_count: int  # `Forgettings.count` when the turn began: a first turn has no row yet
    asked_at: float  # unix seconds when the request came
    should_store: bool
    can_rewrite: bool  # whether the prompt may differ from the client's
    reason: Reason | None = None  # why expected notes are missing
    # the name under which the request offers the tool that looks up earlier messages; None: it
    # does not
    recall_tool: str | None = None
    look_up_scope: Scope = "thread"  # how far its look-ups may reach
    # of a prompt that may not differ from the client's
    kept_reason: Reason = Reason.WRITE_ONLY
    # whether its past at the server holds instructions, which no memory keeps
    has_instructions: bool = False

    @property
    def work_context(self) -> MemoryContext:
        """The context for memory work, with a copy of the beginning of the instructions."""
        request = self.request
        if not request.instructions:
            return self.context
        return self.context.with_instructions(
            Instructions(self.key, cut_beginning(request.instructions))
        )


class PreparedTurn(Struct, frozen=True):
    """An opened turn with the prompt that goes upstream."""

    opened: OpenedTurn
    receipt: Mapping[str, int]  # the figures among the X-OM-* headers
    status: Status = Status.RAW
    reason: Reason | None = None
    body: bytes | None = None  # the rewritten request; None: the original bytes go upstream
    has_notes: bool = False  # whether the rewritten request has notes
    # the seq from which the rewritten request shows the thread as it is; None: not known
    raw_from: int | None = None
    mark: PromptMark | None = None  # of the prompt, for the ledger


class CommittedTurn(Struct, frozen=True):
    """The result of a turn's commit."""

    memory: Memory | None = None  # None: nothing was written for the turn
    reply_seq: int = 0  # seq of the reply in the store; 0: it is not stored


NOTHING_COMMITTED = CommittedTurn()


class TakenForSideRequest(Exception):
    """The request does not belong to its thread's conversation. It goes upstream unchanged, and
    nothing of it is stored."""

    reason = Reason.SIDE_REQUEST


class UnknownPast(TakenForSideRequest):
    """The request names a reply or an item that the thread does not have: the server alone knows
    what it goes on from."""

    reason = Reason.SERVER_STATE


def replace_projected(turn: OpenedTurn, projected: Memory) -> OpenedTurn:
    return replace(turn, reconciled=replace(turn.reconciled, projected=projected))


def can_stand_alone(turn: OpenedTurn) -> bool:
    """Return whether the client's own request may go out: it shows the conversation, or names the
    reply whose past the server holds."""
    reconciled = turn.reconciled
    names_past = turn.request.previous is not None
    return names_past or holds_conversation(reconciled.projected, reconciled.sent)


def is_before_fork(reconciled: ReconciledTurn, last: int) -> bool:
    """Return whether the messages up to this seq are before the fork of the request, or the request
    does not fork. No message counts as before a fork that is before coverage."""
    cut_seq = reconciled.verdict.cut_seq
    return not reconciled.forks_before_coverage and (cut_seq is None or last <= cut_seq)


def is_everything_sent(memory: Memory, sent: SentHistory) -> bool:
    """Return whether the client sent every message of the memory, one for one, and no other."""
    cells, sent_count = memory.views[-1].cells if memory.views else (), sent.count
    return (
        sent_count == memory.count
        and len(cells) == 1
        and cells[0].kind == "same"
        and cells[0].sent_to == sent_count
    )


def find_recorded_reply(reconciled: ReconciledTurn) -> Item | None:
    """Return the stored reply of the request that this one repeats, if it is the newest message."""
    repeats, memory = reconciled.verdict.repeats, reconciled.memory
    newest = memory.tail[-1] if memory.tail else None
    return newest.item if repeats and newest and newest.seq == repeats.reply else None


def number_interrupted_reply(
    memory: Memory, item: Item, tokens: int, now: float, encoding: str
) -> tuple[Memory, Message]:
    """Give an interrupted reply a seq without making it live. It is observed only if the client
    sends it back (docs/contributing/http.md#leaving)."""
    message = Message(
        memory.next_seq, item, extend_chain(memory.chain, item.fp), tokens, now, encoding
    )
    return replace(memory, next_seq=memory.next_seq + 1), message


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
