"""Recorded conversations: the messages, the model calls, and what reading them left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from om_proxy.common.errors import UsageError

# In the form of chat completions. `created_at` (unix seconds) is always present.
Message = Mapping[str, object]
CallKind = Literal["main", "compaction", "side"]

# keys of `Conversation.notices`
UNREADABLE_LINES = "unreadable lines"
MISSING_TIMES = "times missing"
RAISED_TIMES = "times raised"
MAX_UNREADABLE_SHARE = 0.01  # of all lines; above it, a conversation is partial


class HistoryError(UsageError):
    """A file whose program is unknown, or that its reader cannot read. Says what to do next."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one call, as its provider reported them. Cached and written ones are parts of
    the input."""

    input_tokens: int
    cached_tokens: int
    written_tokens: int
    output_tokens: int
    # of the written ones, those kept for an hour at twice the price of the input
    hour_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a model. Times in unix seconds."""

    sent: Sequence[Message]
    reply: Message | None  # None: it failed, or the file does not hold it
    asked_at: float
    replied_at: float
    model: str  # empty: not recorded
    usage: Usage | None
    kind: CallKind = "main"


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    title: str | None
    program: str
    messages: tuple[Message, ...]
    calls: tuple[Call, ...]
    # how often something was skipped or mended, by what: "skipped: summary", "times raised"
    notices: Mapping[str, int] = field(default_factory=dict)
    lines: int = 0  # that were read, the unreadable ones too

    @property
    def is_partial(self) -> bool:
        """Whether so many lines were unreadable that its figures must stand apart."""
        unreadable = self.notices.get(UNREADABLE_LINES, 0)
        return unreadable > MAX_UNREADABLE_SHARE * max(self.lines, 1)


class Prefix(Sequence[Message]):
    """The first messages of a longer list, which it shares: a long session has thousands of calls,
    and each sent all that came before."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: Sequence[Message], length: int) -> None:
        self._messages = messages
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._messages[n] for n in range(*index.indices(self._length))]
        return self._messages[range(self._length)[index]]
