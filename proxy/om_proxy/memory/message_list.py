"""Hold messages in the order of their seq with cached sums: every request asks for the sums, and a
tail of thousands of messages grows by two."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from om_proxy.memory.model import Mark, Message

read_seq = attrgetter("seq")  # a key of bisect; faster than a function of ours
_read_mark, _read_encoding = attrgetter("mark"), attrgetter("encoding")
_read_tokens, _read_bytes = attrgetter("framed_tokens"), attrgetter("json_bytes")


class MessageList(tuple["Message", ...]):
    """A tuple of messages, equal to any tuple of the same messages. Its slices are plain tuples."""

    @classmethod
    def of(cls, messages: tuple[Message, ...]) -> MessageList:
        return messages if isinstance(messages, MessageList) else cls(messages)

    # computed on first use; functools.cached_property takes a lock each time
    _marks: tuple[Mark, ...] | None = None
    _framed_tokens: int | None = None
    _json_bytes: int | None = None
    _encodings: frozenset[str] | None = None
    _with_look_ups: tuple[Message, ...] | None = None

    @property
    def marks(self) -> tuple[Mark, ...]:
        if self._marks is None:
            self._marks = tuple(map(_read_mark, self))
        return self._marks

    @property
    def framed_tokens(self) -> int:
        """Tokens the messages cost in a prompt."""
        if self._framed_tokens is None:
            self._framed_tokens = _sum_framed_tokens(self)
        return self._framed_tokens

    @property
    def json_bytes(self) -> int:
        """Bytes of the messages' JSON, with that of their look-ups."""
        if self._json_bytes is None:
            self._json_bytes = _sum_bytes(self)
        return self._json_bytes

    @property
    def encodings(self) -> frozenset[str]:
        """The encodings by which the messages' tokens were counted."""
        if self._encodings is None:
            self._encodings = frozenset(map(_read_encoding, self))
        return self._encodings

    @property
    def with_look_ups(self) -> tuple[Message, ...]:
        """The messages for which the model has looked something up: mostly none."""
        if self._with_look_ups is None:
            self._with_look_ups = _find_look_ups(self)
        return self._with_look_ups

    def count_to(self, seq: int) -> int:
        """Return the number of messages with at most this seq: mostly none or all."""
        if not self or self[0].seq > seq:
            return 0
        return len(self) if self[-1].seq <= seq else bisect_right(self, seq, key=read_seq)

    def messages_through(self, seq: int) -> MessageList:
        """Return the messages with at most this seq."""
        count = self.count_to(seq)
        return self if count == len(self) else self._first_messages(count)

    def messages_after(self, seq: int) -> tuple[Message, ...]:
        """Return the messages with a higher seq."""
        count = self.count_to(seq)
        return self[count:] if count else self

    def messages_between(self, first: int, last: int) -> tuple[Message, ...]:
        """Return the messages with `first <= seq <= last`."""
        return self[self.count_to(first - 1) : self.count_to(last)]

    def framed_tokens_between(self, first: int, last: int) -> int:
        """Return the tokens of the messages with `first <= seq <= last`. Sums these messages, or
        all others if those are fewer."""
        start, stop = self.count_to(first - 1), self.count_to(last)
        if stop - start == len(self):
            return self.framed_tokens
        if 2 * (stop - start) < len(self):
            return _sum_framed_tokens(self[start:stop])
        return (
            self.framed_tokens - _sum_framed_tokens(self[:start]) - _sum_framed_tokens(self[stop:])
        )

    def append_messages(self, fresh: tuple[Message, ...]) -> MessageList:
        """Return the list with these messages at the end; its sums grow with it."""
        if not fresh:
            return self
        longer = MessageList(self + fresh)
        if self._marks is not None:
            longer._marks = (*self._marks, *map(_read_mark, fresh))
        if self._framed_tokens is not None:
            longer._framed_tokens = self._framed_tokens + _sum_framed_tokens(fresh)
        if self._json_bytes is not None:
            longer._json_bytes = self._json_bytes + _sum_bytes(fresh)
        if self._encodings is not None:
            longer._encodings = self._encodings.union(map(_read_encoding, fresh))
        # looked for once, however long the list grows
        longer._with_look_ups = self.with_look_ups + _find_look_ups(fresh)
        return longer

    def replace_last(self, messages: Sequence[Message]) -> MessageList:
        """Return the list with these in place of as many at the end, which differ from them in
        their time alone."""
        kept = len(self) - len(messages)
        replaced = MessageList((*self[:kept], *messages))
        if self._marks is not None:
            replaced._marks = (*self._marks[:kept], *map(_read_mark, messages))
        replaced._framed_tokens, replaced._json_bytes = self._framed_tokens, self._json_bytes
        replaced._encodings = self._encodings
        replaced._with_look_ups = self.with_look_ups and _find_look_ups(replaced)
        return replaced

    def _first_messages(self, count: int) -> MessageList:
        shorter = MessageList(self[:count])
        shorter._with_look_ups = self.with_look_ups and tuple(
            [m for m in self.with_look_ups if m.seq < self[count].seq]
        )
        if self._marks is not None:
            shorter._marks = self._marks[:count]
        if self._encodings is not None and len(self._encodings) == 1 and count:
            shorter._encodings = self._encodings
        if len(self) >= 2 * count:
            return shorter  # fewer messages stay than go: they are summed again on first use
        dropped = self[count:]
        if self._framed_tokens is not None:
            shorter._framed_tokens = self._framed_tokens - _sum_framed_tokens(dropped)
        if self._json_bytes is not None:
            shorter._json_bytes = self._json_bytes - _sum_bytes(dropped)
        return shorter


def count_same(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return with how many of the very same messages both begin."""
    return [*map(is_, first, second), False].index(False)


def _sum_framed_tokens(messages: Iterable[Message]) -> int:
    return sum(map(_read_tokens, messages))


def _sum_bytes(messages: Iterable[Message]) -> int:
    return sum(map(_read_bytes, messages))


def _find_look_ups(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple([m for m in messages if m.look_ups is not None])
