"""A message as every rule reads it, whichever API it came by.

`wire/apis/<name>/` makes a view of a message's bytes when a rule asks for one; no view is stored. A
rule reads the view and never an API's words. The rules are fingerprints, token counts, the
observer's transcript, and the text about other threads.

A view is of one unit of the transcript: where an API puts several tool results into one message,
each of them is a unit with a view of its own. What an API adds beside speech (ids of its items,
signatures, cache marks) is in the raw bytes and in no view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

from msgspec import Struct

CallKind = Literal["function", "custom", "legacy", "empty"]


class ImageData(Struct, frozen=True):
    """An image of a message; `url` is its address or a `data:` URL, if there is any."""

    url: str | None
    is_low_detail: bool


class SoundData(Struct, frozen=True):
    """A sound of a message."""

    base64_chars: int
    format: str


class FileData(Struct, frozen=True):
    """A file of a message; `data` is a `data:` URL or base64, None for a file known by its id."""

    data: str | None


# the charged content of a part: data or texts; no texts for reasoning
Payload = ImageData | SoundData | FileData | tuple[str, ...]


class Attachment(Struct, frozen=True):
    """The description of a part that is no text."""

    url: str  # an address or a `data:` URL; empty: none
    name: str  # a file's name, an id or a format; empty: none
    type_name: str  # the API's word for its type
    is_image: bool


class ToolCall(Struct, frozen=True):
    """A tool call. Ids and names are as the API has them: mostly texts."""

    kind: CallKind  # `empty`: a function without any member
    id: object
    name: object  # UNSET: none
    arguments: object = None  # as the model wrote them, mostly JSON in a text
    other_input: object = None  # beside arguments


class Part(Protocol):
    """A part of a message's content that is more than a plain text."""

    @property
    def type_name(self) -> str:
        """The API's word for its type."""

    @property
    def text(self) -> str | None:
        """Its text; None for a part that is no text."""

    def payload(self) -> Payload | None:
        """Return its charged content; None if nothing is known of it."""

    def render(self) -> str | Attachment:
        """Return the text that a reader sees, or the description in its place."""


class MessageView(Protocol):
    """One message of any API."""

    @property
    def role(self) -> object: ...

    @property
    def name(self) -> object:
        """The speaker's name; for a tool's result, the tool's."""

    @property
    def answers(self) -> object:
        """The id of the tool call that this is the result of."""

    @property
    def refusal(self) -> object: ...

    @property
    def has_list(self) -> bool:
        """Whether its content is a list of parts. An object in place of a list is shown, but not
        counted; a refusal beside a list is counted, but not shown."""

    def parts(self) -> Sequence[str | Part]:
        """Return its content in order."""

    def write_parts(self, parts: Sequence[Part]) -> Iterator[str]:
        """Yield the JSON of these parts, in few pieces."""

    def calls(self) -> Sequence[ToolCall]:
        """Return its tool calls in order."""

    def compared_content(self) -> tuple[str, list[object]]:
        """Return its texts for fingerprints, a line each, without outer white space; and its other
        parts as JSON values, without nulls and cache marks."""

    def compared_calls(self) -> list[object]:
        """Return its tool calls for fingerprints, as JSON values with parsed arguments."""


# Fingerprint a message: 16 bytes, equal for every spelling of the same message, different for each
# tenant.
#
# Counted: role, text (a string and text parts alike, outer whitespace aside), other content parts,
# refusal, audio id, tool calls (id, name, arguments as JSON), `tool_call_id`, `name`. Ignored:
# `reasoning_content`, annotations, cache marks, nulls, unknown keys. Clients drop and add those
# between one call and the next.


def fingerprint(message: MessageView, key: bytes, write_json: Callable[[object], bytes]) -> bytes:
    """16 bytes; `key` (at most 64 bytes) is the tenant's. Never raises on JSON values, however odd.

    `write_json`: writes equal values as equal bytes, wire/apis/json_text.py.
    """
    text, others = message.compared_content()
    what = [message.role, text, others, message.compared_calls(), message.answers, message.name]
    return hashlib.blake2b(write_json(what), key=key, digest_size=16).digest()
