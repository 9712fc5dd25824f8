"""The seam between memory and the APIs that have it: what an API gives, in neutral types.

Only `apis/<name>/` knows an API's words. Everything above reads a request, a reply or a message by
these types, and reaches the API by `Request.api`, or by `registry.py` for stored messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.apis.split import Split
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Item
from om_proxy.memory.prompt.layout import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript.digests import Digests
from om_proxy.memory.usage import Usage

# A longer reply is relayed, but not remembered.
MAX_REMEMBERED_REPLY_BYTES = 64 << 20


class Unreadable(ValueError):
    """The bytes are no request, or no message, of this API: the proxy forwards them as they
    came."""


class Request(Struct, frozen=True):
    """A request as sent. Messages are raw bytes, copied out of the body: a kept message must not
    keep the body."""

    api: Api
    body: bytes
    frame: bytes  # the body without the known messages
    # `frame` without half characters (apis/lone_surrogates.py); of the same length
    readable: bytes
    model: str | None  # None: absent, not a string, or longer than any model's name
    stream: bool
    offers_tools: bool  # whether the model may call any
    instructions: tuple[bytes, ...]  # raw, in order; never stored
    instruction_roles: tuple[str, ...]  # of the instructions, in order
    messages: Sequence[bytes]  # one for each unit of the transcript; not parsed yet

    def __repr__(self) -> str:
        return (
            f"<Request {self.api.name} {self.model} "
            f"{len(self.instructions)}+{len(self.messages)} messages>"
        )

    def without_content(self) -> Request:
        """Return the request without its bytes, for the log line at its end."""
        return replace(self, body=b"", frame=b"", readable=b"", instructions=(), messages=())


class Reply(Struct, frozen=True):
    """A reply, as far as it was read. `complete`: its end was announced, or its JSON is
    complete."""

    message: bytes | None = None  # the assistant's message in the first choice, as JSON
    complete: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None  # None: the server reports none
    error: bool = False  # the body or an event of the stream reports one
    others: tuple[bytes, ...] = ()  # the messages of the other choices, by index

    def __repr__(self) -> str:
        message = f"{len(self.message)} bytes" if self.message is not None else "nothing"
        return f"<Reply {message} complete={self.complete} finish_reason={self.finish_reason} error={self.error}>"


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


class Api(Protocol):
    """One API with memory. Each API is one value, in `apis/<name>/`, with no state but texts that it
    has written lately."""

    @property
    def name(self) -> str: ...

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        """Split a request into messages. Raise Unreadable.

        `known_split`: the thread's last split. The same body gives the same request, in less time.
        """

    def build_split(self, request: Request, digests: Digests, seed: int) -> Split | None:
        """Build the split that the thread's next request is compared with. `digests`: of the
        messages, `SentHistory.digests`; `seed`: 64 bits that are secret."""

    def rewrite_body(
        self, request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
    ) -> bytes:
        """Return the request's body with the client's instructions, memory's texts, and this tail
        in place of its messages. Every other byte stays. Empty texts leave no trace."""

    def drop_texts(self) -> None:
        """Drop the texts that were kept to write them faster: people may have forgotten them."""

    def has_replies(self, request: Request) -> bool:
        """Return whether the request contains a reply: its client repeats the earlier messages."""

    def read_item(self, raw: bytes, key: bytes) -> Item:
        """Return a message as the memory stores it. `key` is the tenant's, for fingerprints. Raise
        Unreadable."""

    def view_message(self, raw: bytes) -> MessageView | None:
        """Return a view of the message; None if a strict parser refuses it."""

    def asking_text(self, raw: bytes) -> str:
        """Return the text of a message or instruction that asks for something; empty for a message
        that a model or a tool wrote, because it may quote anything."""

    def cut_beginning(self, instructions: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return a copy of the first bytes of the instructions."""

    def read_beginning(self, raw: bytes) -> str:
        """Return the texts in a cut instruction, as far as they go."""

    def create_reply_reader(self, stream: bool) -> ReplyReader:
        """Create a reader. `stream`: whether a stream was asked for; an error may come unstreamed
        all the same."""

    def create_end_finder(self) -> EndFinder: ...
