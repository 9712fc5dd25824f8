"""The nouns of a conversation's memory: frozen values that know neither storage, JSON nor HTTP.

A thread's *transcript* is its live messages in order of `seq`. The *log* covers it up to `coverage`; behind that lies
the *tail*, what the actor still sees raw. *Chunks* are observations made ahead: they continue the log without a gap but
are not active yet. So at every moment

    0 ──── log[0] ──── log[1] ──┤coverage├── chunks[0] ── chunks[1] ── rest of the tail ──┤end

and each message lies in the tail or inside exactly one log entry: never both, never neither.

What a message *is* is said by its fingerprint; what a whole prefix is, by the chain of fingerprints at its end. Work
done elsewhere (a chunk, a reflection) names the chain it was made from, so a result is recognised by value, not by a flag.

Frozen msgspec structs, not dataclasses: every request makes a few and compares one, and of a Memory that takes 0.3 µs against
10 and 13.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import force_setattr

from om_proxy.memory.stretch import Stretch

EMPTY_CHAIN = bytes(16)  # the chain before the first message
# marks kept before coverage, enough to recognise a client's window;
# docs/spec/reconcile.md#kept-state
RECENT_MARKS = 256
MAX_VIEWS = 8  # recorded attempts kept per thread; docs/spec/reconcile.md#kept-state
# what a message costs beyond its payload; OpenAI's cookbook figure for chat models
MESSAGE_FRAMING_TOKENS = 4

Style = Literal["unknown", "full", "window", "thin"]
Scope = Literal["thread", "resource"]


def chained(chain: bytes, fp: bytes) -> bytes:
    """The chain after one more message."""
    return hashlib.blake2b(chain + fp, digest_size=16).digest()


class Key(NamedTuple):
    """Whose memory: the tenant comes from the credential only. Without a resource, the thread is its own."""

    tenant: str
    resource: str
    thread: str


HUB = ""  # the thread name of a resource's shared memory: no header can carry it


def hub_of(key: Key) -> Key:
    """Where the shared log of this thread's resource is kept."""
    return Key(key.tenant, key.resource, HUB)


class Item(Struct, frozen=True):
    """One message as it stood on the wire, in the neutral form: a chat message's JSON."""

    raw: bytes  # its JSON exactly as received; forwarded as it is, unknown keys included
    role: str
    fp: bytes  # 16 bytes, keyed per tenant; memory/fingerprint.py
    calls: tuple[str, ...] = ()  # ids of the tool calls it makes
    answers: str | None = None  # id of the tool call it is the result of


class Mark(NamedTuple):
    """A stored message without its text: all that reconciling needs."""

    seq: int
    fp: bytes
    chain: bytes  # of the live transcript up to and including this message
    role: str
    calls: tuple[str, ...]
    answers: str | None
    tokens: int


EMPTY_MARK = Mark(0, EMPTY_CHAIN, EMPTY_CHAIN, "", (), None, 0)


class Message(Struct, frozen=True):
    """A stored message. `seq` is given by the memory, grows, and is never reused."""

    seq: int
    item: Item
    chain: bytes
    tokens: int  # payload only; MESSAGE_FRAMING_TOKENS are added at use
    at: float  # unix seconds when we first saw it
    encoding: str = ""  # what `tokens` was counted by: another model's is another count; empty: not known
    mark: Mark = EMPTY_MARK  # made at birth, whatever is given: every request looks at the marks of the whole tail

    def __post_init__(self) -> None:
        item = self.item
        mark = Mark(self.seq, item.fp, self.chain, item.role, item.calls, item.answers, self.tokens)
        force_setattr(self, "mark", mark)

    @property
    def weight(self) -> int:
        """Tokens it costs in a prompt."""
        return self.tokens + MESSAGE_FRAMING_TOKENS

    def __repr__(self) -> str:
        return f"<Message {self.seq} {self.item.role} {self.tokens}t {self.item.fp.hex()[:6]}>"


class Part(NamedTuple):
    """What of one thread an entry of a shared log stands for; as in `Observation`."""

    label: str  # of the thread: its name under a keyed hash, so that it may be shown
    after: int
    last: int
    chain: bytes
    task: str | None = None  # the newest hints about this thread: a reflection over several has none of its own
    suggestion: str | None = None
    at: float = 0.0  # unix seconds as of which the task stands


class Observation(Struct, frozen=True, kw_only=True):
    """Notes that stand for the live messages with `after < seq <= last`: a chunk while buffered, then a log entry.

    `chain` is the transcript's chain at `last`: the value that says exactly what was observed. A `note` covers nothing.
    """

    id: int  # grows per thread, never reused
    after: int
    last: int
    chain: bytes
    text: str
    tokens: int  # of the text
    source_tokens: int  # of the messages it stands for
    at: float  # unix seconds of the newest message it stands for, as of which its hints hold
    task: str | None = None  # None: as before; empty: nothing is open any more
    suggestion: str | None = None
    title: str | None = None
    kind: Literal["observation", "reflection", "note"] = "observation"
    model: str = ""  # which model wrote it
    parts: tuple[
        Part, ...
    ] = ()  # in a shared log, what it covers thread by thread; `after`, `last`, `chain` say nothing there
    sources: tuple[int, ...] = ()  # of a reflection: ids of the entries it replaced
    depth: int = 0  # how often its words have been condensed; 0: as the observer wrote them

    def __repr__(self) -> str:
        return f"<{self.kind.capitalize()} {self.id} ({self.after}, {self.last}] {self.source_tokens}t→{self.tokens}t>"


class Reflection(Struct, frozen=True, kw_only=True):
    """A shorter text for a stretch of the log, kept beside it until it is swapped in."""

    generation: int  # it was made from; another one may not take it
    sources: tuple[int, ...]  # ids of the entries it replaces: neighbours in the log
    text: str
    tokens: int
    source_tokens: int  # of the entries it replaces
    at: float
    task: str | None = None
    suggestion: str | None = None
    model: str = ""


class Cell(NamedTuple):
    """A stretch of the client's view against a stretch of the transcript.

    Sent messages `[sent_from, sent_to)` stand where the live messages with `from_seq <= seq <= to_seq` do; either side may be
    empty (`sent_from == sent_to`, or `to_seq < from_seq`). memory/transcript.py says which kinds there are.
    """

    kind: str
    sent_from: int
    sent_to: int
    from_seq: int
    to_seq: int


class View(Struct, frozen=True, kw_only=True):
    """A request as the client sent it, remembered: recognises a retry by its digest, and the next request by its prefix."""

    count: int  # messages sent after the instructions
    digest: bytes  # of their raw bytes (wire/chat.py): equal bytes need no parsing
    chain: bytes  # of their fingerprints, the client's own view
    seq: int  # the transcript message its last message stands at; a reply comes right after
    end: int  # the end of the transcript it saw
    reply: int = 0  # seq of the recorded reply; 0 while unanswered
    cells: tuple[Cell, ...] = ()


class Trouble(Struct, frozen=True):
    """How observing this thread has failed lately; one success clears it."""

    failures: int = 0  # in a row
    until: float = 0.0  # unix seconds before which nothing is tried
    parked: bool = False  # given up until `om-proxy doctor --revive` or a new success
    cause: str = (
        ""  # of the last failure: `observe om_model 401: check memory.api_key`; no text of a server's or a person's
    )


class Hub(Struct, frozen=True, kw_only=True):
    """What a memory that shares its resource's log knows of where that log is kept (memory/shared.py)."""

    label: str  # of this thread, in `Part`
    version: int = 0  # of the hub's row; 0: nothing stored yet
    born: int = 0  # of the hub's row, as `Memory.born`
    next_id: int = 1  # of the log's entries: chunks are numbered by the thread
    own: tuple[int, int] = (0, 1)  # generation and next generation of the thread's own log


class Memory(Struct, frozen=True, kw_only=True):
    """All a thread's next turn needs, bounded: a thread of a million messages loads as fast as one of a hundred."""

    key: Key
    version: int = 0  # of the stored row; 0: nothing stored yet. Set by the store alone
    born: int = (
        0  # which row: set by the store alone, never reused, so a thread made anew differs; 0: nothing stored yet
    )
    next_seq: int = 1
    next_id: int = 1  # of observations
    generation: int = 0  # of the log; a reflection or a rollback starts the next. Never reused
    next_generation: int = 1

    coverage: int = 0  # the log covers every live message up to this seq
    covered_count: int = 0  # live messages up to coverage
    covered_tokens: int = 0  # their weight
    recent: tuple[Mark, ...] = ()  # the newest RECENT_MARKS live messages up to coverage
    tail: tuple[Message, ...] = ()  # every live message after coverage

    log: tuple[Observation, ...] = ()
    chunks: tuple[Observation, ...] = ()
    reflection: Reflection | None = None
    unproductive_at: int = 0  # log tokens at which reflecting last achieved nothing

    undated_to: int = (
        0  # seq; when messages up to it were said nobody knows: they came together, before the first request's turn
    )
    style: Style = "unknown"
    views: tuple[View, ...] = ()  # oldest first, at most MAX_VIEWS
    turns: int = 0  # completed
    render_date: float | None = None  # unix seconds against which relative dates are rendered
    turn_at: float | None = None  # unix seconds of the newest turn
    model: str | None = None  # the actor's, of the newest turn
    timezone: str | None = None  # IANA name, as a client has named it last
    trouble: Trouble = field(default_factory=Trouble)
    due: float | None = None  # when background work should look at this thread; None: nothing to do
    title: str | None = None
    title_pinned: bool = False  # by a person: no model changes it
    offers_tools: bool = False  # whether the client offered any with the thread's newest turn
    overrides: bytes | None = None  # JSON of this thread's own settings, as the admin API took them

    scope: Scope = "thread"  # whether the log is the thread's own or its resource's
    hub: Hub | None = None  # set while the resource's log stands in `log`, `generation`, `reflection`
    others: str = ""  # the resource's other conversations as this prompt tells them, rendered
    shown: tuple[int, int] = (0, 0)  # generation and length of the shared log that this prompt was last built from

    @property
    def end(self) -> int:
        """seq of the newest live message; 0 when empty."""
        return self.tail[-1].seq if self.tail else self.coverage

    @property
    def count(self) -> int:
        """Live messages."""
        return self.covered_count + len(self.tail)

    @property
    def chain_at_coverage(self) -> bytes:
        return self.recent[-1].chain if self.recent else EMPTY_CHAIN

    @property
    def chain(self) -> bytes:
        """The chain at the end."""
        return self.tail[-1].chain if self.tail else self.chain_at_coverage

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The live messages that are loaded, in order; `count - len(marks)` older ones are not."""
        return self.recent + Stretch.of(self.tail).marks

    @property
    def pending(self) -> int:
        """Tokens of the tail."""
        return Stretch.of(self.tail).weight

    @property
    def log_tokens(self) -> int:
        return sum(o.tokens for o in self.log)

    @property
    def shared_state(self) -> tuple[int, int]:
        """Names the shared log as it stands: within a generation it only grows."""
        return self.generation, len(self.log)

    @property
    def chunked_to(self) -> int:
        """Where the newest chunk ends: beyond it, messages are observed by nobody yet."""
        return self.chunks[-1].last if self.chunks else self.coverage

    def __repr__(self) -> str:
        return (
            f"<Memory {self.key.thread} v{self.version} g{self.generation} log {len(self.log)}/{self.log_tokens}t "
            f"coverage {self.coverage} chunks {len(self.chunks)} tail {len(self.tail)}/{self.pending}t>"
        )


def weight(messages: Iterable[Message]) -> int:
    """Tokens the messages cost in a prompt."""
    weights = [m.tokens + MESSAGE_FRAMING_TOKENS for m in messages]  # not `weight`: every request sums its whole tail
    return sum(weights)
