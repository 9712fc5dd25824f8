"""One request and its reply as far as memory goes, and the questions about it that need no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.model import Item, Key, Memory, Message, Scope, chained
from om_proxy.memory.transcript import Hints, Reconciled, Sent
from om_proxy.observing import Call, Instructions
from om_proxy.wire.beginning import cut_beginning
from om_proxy.wire.chat import ChatRequest


class Standing(Struct, frozen=True):
    """A request as it stands against a memory."""

    memory: Memory  # as committed
    base: Memory  # rolled back to where the request's branch leaves it
    rec: Reconciled
    revived: Mapping[int, Message]
    tokens: Mapping[int, int]  # payload tokens of what is new, by index in what was sent
    virtual: Memory  # with everything the request implies


@dataclass(slots=True)
class Turn:
    """One request and its reply, as far as memory goes; `receipt` becomes the X-OM-* headers."""

    key: Key
    call: Call
    hints: Hints
    request: ChatRequest
    sent: Sent
    standing: Standing
    scope: Scope = "thread"  # whether the log is to be the thread's own or its resource's
    case: str = ""  # how the request stood when it came; what is stored while it waits makes it look like a retry
    status: str = "raw"
    reason: str | None = None
    body: bytes | None = None  # the rewritten request; None: the original bytes go upstream
    timezone: str | None = None  # the client's, where it names one
    found_date: float | None = None  # the render date the request found
    born: int = 0  # of the row it stands on: once that has been forgotten, nothing of the turn is stored
    forgets: int = 0  # `Memories.forgets` when it began: of a first turn there is no row yet
    stores: bool = True
    rewrites: bool = True  # whether its prompt may differ from the client's
    broken: bool = (
        False  # its answer broke off, or the client left before its end: the client may have asked again since
    )
    reply_seq: int = 0  # of the reply as committed; 0: none is, or not yet
    delivered: bool = False  # its reply went out to its last byte
    # tells who waits for the turn that an observation is waited for
    longer: Callable[[float], None] = lambda seconds: None
    receipt: dict[str, int] = field(default_factory=dict)

    @property
    def work(self) -> Call:
        """What memory work is given of this turn: the call with the beginning of its instructions, copied. Of most turns none is."""
        if not self.request.instructions:
            return self.call
        return self.call.with_instructions(Instructions(self.key, cut_beginning(self.request.instructions)))


class TakenForSideRequest(Exception):
    """The request is none of its thread's conversation: it goes on as it came, and leaves nothing."""


def stored_through(standing: Standing, last: int) -> bool:
    """Whether the memory holds, as it is, what a forking request leaves up to this message."""
    cut = standing.rec.cut
    return standing.base is standing.memory and (cut is None or last <= cut)


def shows_everything(memory: Memory, sent: Sent) -> bool:
    """Whether the client sent all we hold, message for message, and nothing else."""
    cells = memory.views[-1].cells if memory.views else ()
    return sent.count == memory.count and len(cells) == 1 and cells[0].kind == "same" and cells[0].sent_to == sent.count


def standing_reply(standing: Standing) -> Item | None:
    """The reply that stands there for a retry: one that gets the very same has nothing to write."""
    repeats, memory = standing.rec.repeats, standing.memory
    newest = memory.tail[-1] if memory.tail else None
    return newest.item if repeats and newest and newest.seq == repeats.reply else None


def aside(memory: Memory, item: Item, tokens: int, now: float, encoding: str) -> tuple[Memory, Message]:
    """An interrupted reply, numbered but not live: it is observed only if the client sends it back
    (docs/spec/http.md#leaving)."""
    message = Message(memory.next_seq, item, chained(memory.chain, item.fp), tokens, now, encoding)
    return replace(memory, next_seq=memory.next_seq + 1), message
