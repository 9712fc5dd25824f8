"""The nouns of a conversation's memory: frozen values that know neither storage, JSON nor HTTP.

A thread's *transcript* is its live messages in order of `seq`. The *log* covers it up to
`coverage`; after that comes the *tail*, what the actor still sees raw. *Chunks* are observations
made ahead: they continue the log without a gap but are not active yet. So at every moment

    0 ──── log[0] ──── log[1] ──┤coverage├── chunks[0] ── chunks[1] ── rest of the tail ──┤end

and each message lies in the tail or inside exactly one log entry: never both, never neither.

A message's fingerprint identifies it; the chain of fingerprints at its end identifies a whole
prefix. Work done in the background (a chunk, a reflection) names the chain it was made from, so a
result is recognised by value, not by a flag.

The values are frozen msgspec structs, not dataclasses: every request makes a few and compares one.
For a Memory that takes 0.3 µs each, against 10 µs and 13 µs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from om_proxy.common.apis import ApiName
from om_proxy.memory.ledger import EMPTY_LEDGER, History, ThreadLedger
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.value_bounds import (
    Digest,
    Hint,
    Line,
    Model,
    Name,
    NoteText,
    Number,
    PastSeconds,
    PinText,
    RequestDigest,
    Seconds,
    ShownNumber,
    Title,
    Tokens,
)

EMPTY_CHAIN = bytes(16)  # the chain before the first message
# marks kept before coverage, enough to recognise a client's window;
# docs/contributing/reconcile.md#kept-state
RECENT_MARKS = 256
MAX_VIEWS = 8  # recorded attempts kept per thread; docs/contributing/reconcile.md#kept-state
# what a message costs beyond its payload; OpenAI's cookbook figure for chat models
MESSAGE_FRAMING_TOKENS = 4
_read_tokens = attrgetter("tokens")

Style = Literal["unknown", "full", "window", "thin"]
PARTIAL_STYLES: frozenset[Style] = frozenset(("window", "thin"))
# `scope`: the thread has joined its resource's log, or has left it
# `limit`: the oldest entries have lost lines (`retention.max_observations`)
GenerationCause = Literal["reflection", "undo", "fork", "edit", "forgotten", "scope", "limit"]
Scope = Literal["thread", "resource"]


def extend_chain(chain: bytes, fp: bytes) -> bytes:
    """Return the chain that goes on with one more message."""
    return hashlib.blake2b(chain + fp, digest_size=16).digest()


class Key(NamedTuple):
    """The name of a memory. The tenant comes from the credential only. Without a resource, the
    thread is its own resource."""

    tenant: str
    resource: str
    thread: str


RESOURCE_THREAD = ""  # the thread name of a resource's shared memory: no header can carry it


def resource_key(key: Key) -> Key:
    """Return the key of the shared log of this thread's resource."""
    return Key(key.tenant, key.resource, RESOURCE_THREAD)


class ReplyOrigin(Struct, frozen=True, array_like=True):
    """How a later request may name a reply, and what the server holds that gave it."""

    id: Digest  # of the response; 16 bytes, keyed
    server: str  # that gave it, as the settings name it
    is_stored: bool  # whether that server says that it keeps the response
    # whether its past at the server holds instructions, which no memory keeps
    has_instructions: bool


class Item(Struct, frozen=True):
    """One message as it came on the wire."""

    raw: bytes  # its JSON exactly as received; forwarded as it is, unknown keys included
    role: str
    fp: Digest  # 16 bytes, keyed per tenant; memory/message_view.py
    calls: tuple[str, ...] = ()  # ids of the tool calls it makes
    answers: str | None = None  # id of the tool call it is the result of
    api: ApiName = "chat"  # that it came by, whose room reads its JSON (wire/apis/registry.py)
    origin: ReplyOrigin | None = None  # of a reply that a later request may name


class Mark(NamedTuple):
    """A stored message without its text: all that reconciling needs of it."""

    seq: int
    fp: bytes
    chain: bytes  # of the live transcript up to and including this message
    role: str
    calls: tuple[str, ...]
    answers: str | None
    tokens: int
    at: float = 0.0  # unix seconds, as in `Message`


EMPTY_MARK = Mark(0, EMPTY_CHAIN, EMPTY_CHAIN, "", (), None, 0)


class Message(Struct, frozen=True):
    """A stored message. The memory gives `seq`, which grows and is never reused."""

    seq: Number
    item: Item
    chain: Digest
    tokens: Tokens  # payload only; MESSAGE_FRAMING_TOKENS are added at use
    at: PastSeconds  # unix seconds when the proxy first saw it
    # what `tokens` was counted by; another model's encoding gives another count; empty: not known
    encoding: Name = ""
    # of the model, before this reply of its own: only later prompts show them
    look_ups: LookedUp | None = None
    # always made at birth: every request looks at the marks of the whole tail
    mark: Mark = EMPTY_MARK

    def __post_init__(self) -> None:
        item = self.item
        mark = Mark(
            self.seq,
            item.fp,
            self.chain,
            item.role,
            item.calls,
            item.answers,
            self.tokens,
            self.at,
        )
        force_setattr(self, "mark", mark)

    @property
    def framed_tokens(self) -> int:
        """Tokens it costs in a prompt, without its look-ups."""
        return self.tokens + MESSAGE_FRAMING_TOKENS

    @property
    def json_bytes(self) -> int:
        """Bytes of its JSON, with that of its look-ups."""
        look_up_bytes = 0 if self.look_ups is None else self.look_ups.json_bytes
        return len(self.item.raw) + look_up_bytes

    def __repr__(self) -> str:
        return f"<Message {self.seq} {self.item.role} {self.tokens}t {self.item.fp.hex()[:6]}>"


class Part(NamedTuple):
    """The range of one thread that an entry of a shared log covers. Fields as in `Observation`."""

    label: Name  # of the thread: its name under a keyed hash, so that it may be shown
    after: Number
    last: Number
    chain: Digest
    # the newest hints about this thread: a reflection over several threads has none of its own
    task: Hint | None = None
    suggestion: Hint | None = None
    at: PastSeconds = (
        0.0  # unix seconds of the newest message the entry covers, as in `Observation`
    )
    # the id that the entry had among the thread's own notes; 0: of a reflection of several, or not
    # known
    chunk: Number = 0

    @property
    def covers_nothing(self) -> bool:
        """Whether its thread has left the log: the text stays, but covers nothing of the thread."""
        return not self.last


class Observation(Struct, frozen=True, kw_only=True):
    """Notes that cover the live messages with `after < seq <= last`: a chunk while buffered,
    then a log entry.

    `chain` is the transcript's chain at `last`: it identifies exactly what was observed. A `note`
    covers nothing.
    """

    id: Number  # grows per thread, never reused
    after: Number
    last: Number
    chain: Digest
    text: NoteText
    tokens: Tokens  # of the text
    source_tokens: Tokens  # of the messages it covers
    at: PastSeconds  # unix seconds of the newest message it covers; its hints hold as of then
    task: Hint | None = None  # None: as before; empty: nothing is open any more
    suggestion: Hint | None = None
    title: Title | None = None
    kind: Literal["observation", "reflection", "note"] = "observation"
    model: Model = ""  # which model wrote it
    # in a shared log, what it covers thread by thread; `after`, `last`, `chain` say nothing there
    parts: tuple[Part, ...] = ()
    sources: tuple[Number, ...] = ()  # of a reflection: ids of the entries it replaced
    depth: Number = 0  # how often its words have been condensed; 0: as the observer wrote them
    # a person changed the text: id of the entry with the text before. 0: that text is not kept under
    # an id of this log. None: as the model wrote it
    replaces: Number | None = None

    @property
    def is_withdrawn(self) -> bool:
        """Whether it has no text any more: a person took it away, or `retention.max_observations`
        (then `replaces` is None). It keeps its range, because its messages stay covered. No model's
        notes are empty."""
        return not self.text

    @property
    def is_rollback_note(self) -> bool:
        """Whether it only says that messages were taken back; it covers none."""
        return self.kind == "note"

    def __repr__(self) -> str:
        return f"<{self.kind.capitalize()} {self.id} ({self.after}, {self.last}] {self.source_tokens}t→{self.tokens}t>"


class Reflection(Struct, frozen=True, kw_only=True):
    """A shorter text for a stretch of the log, kept beside the log until it is swapped in."""

    generation: Number  # it was made from; another one may not take it
    sources: tuple[Number, ...]  # ids of the entries it replaces: neighbours in the log
    text: NoteText
    tokens: Tokens
    source_tokens: Tokens  # of the entries it replaces
    at: PastSeconds
    task: Hint | None = None
    suggestion: Hint | None = None
    model: Model = ""


class Cell(NamedTuple):
    """A stretch of the client's view beside a stretch of the transcript.

    Sent messages `[sent_from, sent_to)` are where the live messages with `from_seq <= seq <=
    to_seq` do; either side may be empty (`sent_from == sent_to`, or `to_seq < from_seq`).
    memory/transcript/reconcile.py says which kinds there are.
    """

    kind: Name
    sent_from: Number
    sent_to: Number
    from_seq: Number
    to_seq: Number


class View(Struct, frozen=True, kw_only=True):
    """A recorded request. Its digest recognises a retry, its chain the next request that begins
    with it. The field names are those of the stored JSON."""

    count: Number  # messages sent after the instructions
    digest: RequestDigest  # of their raw bytes (wire/apis/split.py): equal bytes need no parsing
    chain: Digest  # of their fingerprints, the client's own view
    seq: Number  # the transcript message its last message stands at; a reply comes right after
    end: Number  # the end of the transcript it saw
    reply: Number = 0  # seq of the recorded reply; 0 while unanswered
    cells: tuple[Cell, ...] = ()
    asked_at: PastSeconds  # unix seconds when the request came
    # whether the recorded reply is the first of several choices: the next request shows the kept one
    has_choices: bool = False


class Failures(Struct, frozen=True):
    """The failures of observing this thread since its last success."""

    count: Number = 0  # in a row
    retry_at: Seconds = 0.0  # unix seconds before which nothing is tried
    suspended: bool = False  # given up until `om-proxy doctor --revive` or a new success
    # of the last failure: `observe om_model 401: check memory.api_key`; holds no text of a server
    # or a person
    cause: Line = ""


class Beginning(NamedTuple):
    """Why and when a generation of a log began."""

    why: GenerationCause
    at: PastSeconds  # unix seconds


class Pin(NamedTuple):
    """A note that a person wrote by hand. It is before the log (memory/lifecycle/pins.py)."""

    id: Number  # never reused
    text: PinText
    tokens: Tokens
    at: PastSeconds  # unix seconds of its newest text
    by: Line  # who wrote that, as in the audit


class ObservationLog(Struct, frozen=True, kw_only=True):
    """The entries that the actor reads in place of the messages they cover, and the reflection that
    will replace some of them. A thread owns its log, or shares its resource's."""

    entries: tuple[Observation, ...] = ()
    generation: Number = 0  # a reflection or a rollback starts the next. Never reused
    next_generation: Number = 1
    began: Beginning | None = None  # of this generation; None: of the first one
    # reflections made of this generation and later ones still fit: changes of other entries began
    # these generations
    reflected_from: Number = 0
    reflection: Reflection | None = None  # pending: made, and not swapped in
    unproductive_tokens: Number = 0  # tokens of the log at which reflecting last achieved nothing
    pins: tuple[Pin, ...] = ()
    pins_version: Number = 0  # grows with every change of the pins

    @property
    def tokens(self) -> int:
        return sum(map(_read_tokens, self.entries))

    @property
    def reflected_tokens(self) -> int:
        """Tokens of the entries that the reflector wrote."""
        if not self.generation:  # a reflection begins a generation
            return 0
        return sum(entry.tokens for entry in self.entries if entry.kind == "reflection")

    def count_with_words(self) -> int:
        """Return the number of entries that have text."""
        return sum(1 for entry in self.entries if entry.text)

    @property
    def state(self) -> tuple[int, int]:
        """Generation and length. They identify the log: within a generation it only grows."""
        return self.generation, len(self.entries)

    def begin_generation(
        self, entries: tuple[Observation, ...], why: GenerationCause, at: float
    ) -> ObservationLog:
        """Start the next generation with these entries, at unix seconds `at`. The pending
        reflection stays: the caller decides about it."""
        return replace(
            self,
            entries=entries,
            generation=self.next_generation,
            next_generation=self.next_generation + 1,
            began=Beginning(why, at),
            reflected_from=self.reflected_from
            if why in ("edit", "limit")
            else self.next_generation,
        )


class Generation(NamedTuple):
    """One generation of a log, as the store keeps it."""

    number: int
    entries: tuple[Observation, ...]


def index_entries(generations: Iterable[Generation]) -> dict[int, Observation]:
    """Return the entries of these generations by id."""
    return {entry.id: entry for _, entries in generations for entry in entries}


EMPTY_LOG = ObservationLog()


class SharedLogRef(Struct, frozen=True, kw_only=True):
    """The place of the log that a memory shares with its resource
    (memory/lifecycle/log_sharing.py)."""

    label: str  # of this thread, in `Part`
    version: int = 0  # of the shared log's row; 0: nothing stored yet
    row_id: int = 0  # of the shared log's row, as `Memory.row_id`
    next_id: int = 1  # of the log's entries: chunks are numbered by the thread
    own: ObservationLog = EMPTY_LOG  # the thread's: empty; it goes on once the thread leaves


class Memory(Struct, frozen=True, kw_only=True):
    """Everything that a thread's next turn needs. It is bounded: a thread of a million messages
    loads as fast as one of a hundred."""

    key: Key
    version: int = 0  # of the stored row; 0: nothing stored yet. Set by the store alone
    # identifies the row: set by the store alone, never reused, so a thread made anew differs; 0:
    # nothing stored yet
    row_id: int = 0
    next_seq: Number = 1
    next_id: Number = 1  # of observations

    coverage: Number = 0  # the log covers every live message up to this seq
    covered_count: Number = 0  # live messages up to coverage
    covered_tokens: Number = 0  # of them, with framing
    recent: tuple[Mark, ...] = ()  # the newest RECENT_MARKS live messages up to coverage
    tail: tuple[Message, ...] = ()  # every live message after coverage

    log: ObservationLog = EMPTY_LOG
    chunks: tuple[Observation, ...] = ()

    # seq up to which messages have no known time: they came together, before the first request's
    # turn
    undated_to: Number = 0
    style: Style = "unknown"
    # the newest seq of the turns before `history` last changed, which counted in its other account
    history_after: Number = 0
    views: tuple[View, ...] = ()  # oldest first, at most MAX_VIEWS
    turns: Number = 0  # completed
    render_date: PastSeconds | None = None  # unix seconds against which relative dates are rendered
    turn_at: PastSeconds | None = None  # unix seconds of the newest turn
    model: Model | None = None  # the actor's, of the newest turn
    timezone: Name | None = None  # IANA name, as a client last named it
    failures: Failures = field(default_factory=Failures)
    due_at: Seconds | None = None  # unix seconds at which background work looks at it; None: never
    # whether that work needs a credential that only a request brings. Set by every commit, as is
    # `due_at`
    needs_caller: bool = False
    title: Title | None = None
    title_pinned: bool = False  # by a person: no model changes it
    offers_tools: bool = False  # whether the client offered tools with the thread's newest turn
    overrides: bytes | None = None  # JSON of this thread's own settings, as the admin API took them

    scope: Scope = "thread"  # whether the log is the thread's own or its resource's
    shared_log_ref: SharedLogRef | None = None  # set while `log` is the resource's
    other_threads_text: NoteText = ""  # what this prompt tells of the resource's other threads
    # generation and length of the shared log that this prompt was last built from
    shown_log_state: tuple[ShownNumber, ShownNumber] = (0, 0)
    shown_pins_version: Number = 0  # of that log
    # prompts show the look-ups of the messages after this seq, as long as they are built from a log
    # of this generation and length (memory/recall/kept_look_ups.py)
    look_ups_after: Number = 0
    look_ups_log_state: tuple[ShownNumber, ShownNumber] = (0, 0)
    ledger: ThreadLedger = EMPTY_LEDGER
    # names of fields whose stored values no memory has, so that they have their defaults. Set by
    # the store alone
    put_aside: tuple[str, ...] = ()

    @property
    def revision(self) -> int:
        """The number that changes with every commit of the thread or of the log it shares. For
        people: a commit compares versions."""
        if self.shared_log_ref is None:
            return self.version
        versions = (self.version, self.shared_log_ref.version)
        # a store counts all its commits with one counter, and waiting ones with another below 0
        return min(versions) if min(versions) < 0 else max(versions)

    @property
    def thread_label(self) -> str:
        """The label of this thread in the parts of a shared log; empty: the log is its own."""
        return self.shared_log_ref.label if self.shared_log_ref else ""

    @property
    def history(self) -> History:
        """How much of the history its client sends, for the ledger."""
        return "partial" if self.style in PARTIAL_STYLES else "full"

    def history_at(self, seq: int) -> History:
        """Return how much of the history the turn of this message sent. So a call about it counts
        the same, whichever turns have come since."""
        if seq > self.history_after:
            return self.history
        return "full" if self.history == "partial" else "partial"

    @property
    def newest_api(self) -> ApiName | None:
        """The API that its newest message came by; None: the log covers every message."""
        return self.tail[-1].item.api if self.tail else None

    @property
    def end(self) -> int:
        """The seq of the newest live message; 0 when empty."""
        return self.tail[-1].seq if self.tail else self.coverage

    @property
    def newest_at(self) -> float:
        """The time of the newest live message; 0 when empty."""
        marks = self.tail or self.recent
        return marks[-1].at if marks else 0.0

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
        return self.recent + MessageList.of(self.tail).marks

    @property
    def pending_tokens(self) -> int:
        """Tokens of the tail."""
        return MessageList.of(self.tail).framed_tokens

    @property
    def chunked_to(self) -> int:
        """seq at which the newest chunk ends; messages after it are not observed yet."""
        return self.chunks[-1].last if self.chunks else self.coverage

    def __repr__(self) -> str:
        return (
            f"<Memory {self.key.thread} v{self.version} g{self.log.generation} "
            f"log {len(self.log.entries)}/{self.log.tokens}t "
            f"coverage {self.coverage} chunks {len(self.chunks)} tail {len(self.tail)}/{self.pending_tokens}t>"
        )


def sum_framed_tokens(messages: Iterable[Message | Mark]) -> int:
    """Tokens the messages cost in a prompt."""
    # not `Message.framed_tokens`, which is slower: every request sums its whole tail
    return sum([m.tokens + MESSAGE_FRAMING_TOKENS for m in messages])


def replace_log(memory: Memory, **changes: Any) -> Memory:
    """Change these fields of the memory's log."""
    return replace(memory, log=replace(memory.log, **changes))
