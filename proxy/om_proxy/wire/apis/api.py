"""The seam between memory and the APIs that have it: what an API gives, in neutral types.

Only `wire/apis/<name>/` knows an API's words. Everything above reads a request, a reply or a
message by these types, and reaches the API by `Request.api`, or by `registry.py` for stored
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.common.reasons import Reason
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item
from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.recall.offering import ToolUse
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.token_prices import Usage
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.split import Split

# A longer reply is relayed, but not remembered.
MAX_REMEMBERED_REPLY_BYTES = 64 << 20


class Unreadable(ValueError):
    """The bytes are no request, or no message, of this API: the proxy forwards them as they
    came."""


class BrokenPrompt(ValueError):
    """The prompt would break a rule of this API that the client's own request keeps."""


class Kind(NamedTuple):
    """How memory treats a request: as a turn; `raw`, stored while its prompt stays as it is; or
    `off`, not at all."""

    treatment: Literal["turn", "raw", "off"]
    reason: Reason | None = None


TURN = Kind("turn")


class Request(Struct, frozen=True):
    """A request as sent. Messages are raw bytes, copied out of the body: a kept message must not
    keep the body."""

    api: Api
    body: bytes
    frame: bytes  # the body without the known messages
    # `frame` without half characters (wire/apis/json_text.py); of the same length
    readable: bytes
    model: str | None  # None: absent, not a string, or longer than any model's name
    stream: bool
    offers_tools: bool  # whether the model may call any
    instructions: tuple[bytes, ...]  # raw, in order; never stored
    instruction_roles: tuple[str, ...]  # of the instructions, in order
    messages: Sequence[bytes]  # one for each unit of the transcript; not parsed yet
    # the members that say where its words may go, each with its JSON: a call that sends the same
    # words to the same server has them too
    routing: tuple[tuple[str, bytes], ...] = ()
    # the names of members that a server may take, and not together with a tool
    options: frozenset[str] = frozenset()
    # id of the reply that it follows, whose past the server holds
    previous: str | None = None
    # whether that past will hold its instructions: they stand among the messages
    leaves_instructions: bool = False
    # the stored parts of messages that it names in place of showing them, by id; filled once they
    # are looked up
    items: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return (
            f"<Request {self.api.name} {self.model} "
            f"{len(self.instructions)}+{len(self.messages)} messages>"
        )

    def without_content(self) -> Request:
        """Return the request without its bytes, for the log line at its end."""
        return replace(
            self, body=b"", frame=b"", readable=b"", instructions=(), messages=(), items={}
        )


class Reply(Struct, frozen=True):
    """A reply, as far as it was read. `complete`: its end was announced, or its JSON is
    complete."""

    message: bytes | None = None  # the assistant's message in the first choice, as JSON
    complete: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None  # None: the server reports none
    error: bool = False  # the body or an event of the stream reports one
    others: tuple[bytes, ...] = ()  # the messages of the other choices, by index
    look_ups: LookedUp | None = None  # of the model, before the reply that the client saw
    id: str | None = None  # by which a later request may name it
    is_stored: bool = False  # whether the server says that it keeps it

    def __repr__(self) -> str:
        message = f"{len(self.message)} bytes" if self.message is not None else "nothing"
        return f"<Reply {message} complete={self.complete} finish_reason={self.finish_reason} error={self.error}>"


class ToolCall(NamedTuple):
    """A call of the proxy's own tool, as a model made it."""

    id: str
    arguments: str


class RoundEnd(Struct, frozen=True):
    """The result of one round of a reply."""

    calls: tuple[ToolCall, ...] = ()  # of the proxy's tool
    # the assistant's message, with the proxy's calls only; None: there are none
    message: bytes | None = None
    is_shared: bool = False  # whether tools of the client are called too
    # whether the round says anything that the client sees: text, or a call of its own tools
    is_visible: bool = False
    is_finished: bool = True  # False: it ended without saying so, as a broken stream does
    usage: Usage | None = None  # None: the server reports none, or there are no calls


class PlainRound(NamedTuple):
    """A round without calls of the proxy's tool. `is_void`: without them it says nothing."""

    data: bytes
    is_void: bool = False


UsageRule = Literal["sum", "first"]  # the setting `memory.retrieval.usage`


class Splice(Protocol):
    """The rounds of one reply put together, as one reply that shows no trace of the proxy's tool.

    Call `feed` with the bytes of a round, `end_round` at its end, and then either `begin_round` for
    the next one or `finish`."""

    is_reading: bool  # whether events are read; until then the client gets them as they came

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the round. Return those that the client gets now."""

    @property
    def is_round_complete(self) -> bool:
        """Whether the round has said that it is complete, and all that is left of it is held."""

    @property
    def is_end_long(self) -> bool:
        """Whether `end_round` has so much to read that it must not run on the event loop."""

    def read_round_usage(self) -> Usage | None:
        """Return what the round has reported so far."""

    def end_round(self) -> tuple[bytes, RoundEnd]:
        """End the round. Return the bytes that the client gets now, and what the round came to."""

    def begin_round(self) -> None:
        """Begin the next round: the end of the one before is dropped."""

    def finish(self) -> bytes:
        """Return the end of the reply, which is the end of the last round."""


class ReplyReader(Protocol):
    """A reader for a copy of a reply, whose bytes may be cut anywhere."""

    def feed(self, data: bytes) -> None: ...

    def finish(self) -> Reply:
        """Return the reply so far. It may be called at any time."""


class EndFinder(Protocol):
    """A search for the end of a streamed reply, without parsing the stream."""

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the last bytes of the stream begin; 0: they began
        in an earlier chunk. None: the end is not in this chunk."""


# Returns where a stream says more than that a reply begins; None: not in these whole events.
FindFirstWord = Callable[[bytes], int | None]


class Api(Protocol):
    """One API with memory. Each API is one value, in `wire/apis/<name>/`, with no state but texts
    that it has written lately."""

    @property
    def name(self) -> ApiName: ...

    @property
    def recall(self) -> RecallApi | None:
        """The half of the API that offers look-ups; None: it has none."""
        return None

    @property
    def references(self) -> ReferenceApi | None:
        """The half of the API that reads references to stored parts; None: it has none."""
        return None

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        """Split a request into messages. Raise Unreadable.

        `known_split`: the thread's last split. The same body gives the same request, in less time.
        """

    def find_sub_agent(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the header's value that names the sub-agent that asks, which has a thread of its
        own; empty for none. `headers`: names in lower case."""

    def classify(self, request: Request, headers: Sequence[tuple[bytes, bytes]]) -> Kind:
        """Return how memory treats the request. `headers`: names in lower case."""

    def write_question(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return a memory model's question in the words of this API. `question`: a chat completion
        request of a system message and a user message."""

    def build_split(self, request: Request, digests: Digests, seed: int) -> Split | None:
        """Build the split that the thread's next request is compared with. `digests`: of the
        messages, `SentHistory.digests`; `seed`: 64 bits that are secret."""

    def rewrite_body(
        self, request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
    ) -> bytes:
        """Return the request's body with the client's instructions, memory's texts, and this tail
        in place of its messages, each with its look-ups. Every other byte stays. Empty texts leave
        no trace. Raise BrokenPrompt."""

    def write_plain_body(self, request: Request, body: bytes) -> bytes | None:
        """Return the prompt `body` with messages of role, text, tool calls and ids alone, in place of
        those that the request does not hold itself. None: nothing would change, as with an API whose
        servers take the same forms, or the body cannot be read."""
        return None

    def has_pictures(self, body: bytes) -> bool:
        """Return whether a message of the request shows a picture, as far as its bytes tell."""

    def has_replies(self, request: Request) -> bool:
        """Return whether the request contains a reply: its client repeats the earlier messages."""

    def read_item(self, raw: bytes, key: bytes) -> Item:
        """Return a message as the memory stores it. `key` is the tenant's, for fingerprints. Raise
        Unreadable."""

    def read_chat_message(self, raw: bytes) -> Mapping[str, Any]:
        """Return the chat message that says the same as a stored one of this API."""

    def view_message(self, raw: bytes) -> MessageView | None:
        """Return a view of the message; None if a strict parser refuses it."""

    def asking_text(self, raw: bytes) -> str:
        """Return the text of a message or instruction that asks for something; empty for a message
        that a model or a tool wrote, because it may quote anything."""

    def create_reply_reader(self, stream: bool) -> ReplyReader:
        """Create a reader. `stream`: whether a stream was asked for; an error may come unstreamed
        all the same."""

    def create_end_finder(self) -> EndFinder: ...

    @property
    def find_first_word(self) -> FindFirstWord | None:
        """The function for the streams of an API that tell failures behind their first events; None:
        this one answers with an error's status instead."""
        return None


def require_recall(request: Request) -> RecallApi:
    """Return the half that offers look-ups, of the API of a request that offers them."""
    recall = request.api.recall
    assert recall is not None  # else `offer_additions` offers none
    return recall


class ReferenceApi(Protocol):
    """What an API needs whose messages may have ids in place of parts of stored ones."""

    def list_references(self, request: Request, start: int = 0) -> Set[str]:
        """Return these ids in the messages from `start` on."""

    def find_items(self, raw: bytes, ids: Set[str]) -> Mapping[str, bytes]:
        """Return the parts of a stored message that have these ids."""

    def put_in_items(self, raw: bytes, items: Mapping[str, bytes]) -> bytes:
        """Return a sent message with these parts in place of their ids."""


class RecallApi(Protocol):
    """What an API needs for the tool that looks up earlier messages
    (docs/contributing/recall.md)."""

    def read_tool_use(self, request: Request) -> ToolUse | None:
        """Return what the request says about tools; None if that cannot be read."""

    def write_tool(self, name: str, *, has_threads: bool) -> bytes:
        """Return the tool as JSON, as `write_round` adds it."""

    def offer_tool(self, request: Request, body: bytes, tool: str, *, has_threads: bool) -> bytes:
        """Return `write_round(body, tool, ())`, and read nothing of what is known of the request.
        `body`: the request's, or the same with other messages."""

    def write_round(
        self,
        body: bytes,
        tool: str | None,
        messages: Sequence[bytes],
        *,
        has_threads: bool,
        may_call: bool = True,
    ) -> bytes:
        """Return the body of a round: `body` with the tool of this name, and with more messages
        after its own. Raise Unreadable.

        `tool`: None for a round without it. `has_threads`: whether the tool reads other
        conversations. `may_call`: False for a round that must not call the tool.
        """

    def write_answer(self, call: ToolCall, text: str) -> bytes:
        """Return the message that answers a call of the proxy's tool."""

    def create_stream_splice(
        self, tool: str, usage_rule: UsageRule, reserve: Callable[[int], bool], use: ToolUse
    ) -> Splice:
        """Create a splice of the rounds of a streamed reply. `reserve`: called for room for so many
        bytes more of a round; if it returns False, the round's beginning is not held. `use`: of the
        request."""

    def create_whole_splice(
        self, tool: str, usage_rule: UsageRule, reserve: Callable[[int], bool], use: ToolUse
    ) -> Splice:
        """Create a splice of the rounds of a reply that is no stream. `feed` returns nothing: the
        reply comes from `finish`. It asks for no room: the whole reply is held already."""

    def write_error_event(self, error: bytes) -> bytes:
        """Return the end of a stream that fails. `error`: the body of an error's response."""

    def may_call_tools(self, body: bytes) -> bool:
        """Return whether a reply that is no stream may call a tool; False is certain."""

    def take_out_calls(
        self, data: bytes, tool: str, use: ToolUse, *, is_stream: bool, is_later: bool
    ) -> PlainRound:
        """Return a whole round, whose splice failed, without calls of the tool. `is_later`: bytes of
        an earlier round went out. Raise ValueError if it cannot be read."""
