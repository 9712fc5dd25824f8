"""Messages in the order of their seq, with what every request asks of all of them told once: a tail of thousands grows by two."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from om_proxy.memory.model import Mark, Message


CARRY_OVER_FROM_MESSAGES = 64  # sums of fewer are made anew in no time
CARRIED_SUMS = ("marks", "weight", "text")  # made once; then only of what changes


class Stretch(tuple["Message", ...]):
    """A tuple like any other, equal to one that holds the same; slices of it are plain ones."""

    @classmethod
    def of(cls, messages: tuple[Message, ...]) -> Stretch:
        return messages if isinstance(messages, Stretch) else cls(messages)

    # told when first asked for; functools' own way takes a lock each time
    _marks: tuple[Mark, ...] | None = None
    _weight: int | None = None
    _text: int | None = None
    _encodings: frozenset[str] | None = None

    @property
    def marks(self) -> tuple[Mark, ...]:
        if self._marks is None:
            self._marks = tuple([m.mark for m in self])
        return self._marks

    @property
    def weight(self) -> int:
        """Tokens they cost in a prompt."""
        if self._weight is None:
            self._weight = _weight(self)
        return self._weight

    @property
    def text(self) -> int:
        """Bytes of their JSON."""
        if self._text is None:
            self._text = sum([len(m.item.raw) for m in self])
        return self._text

    @property
    def encodings(self) -> frozenset[str]:
        """By which their tokens were counted."""
        if self._encodings is None:
            self._encodings = frozenset([m.encoding for m in self])
        return self._encodings

    def count_to(self, seq: int) -> int:
        """How many have at most this seq: mostly none or all."""
        if not self or self[0].seq > seq:
            return 0
        return len(self) if self[-1].seq <= seq else bisect_right(self, seq, key=_seq)

    def through(self, seq: int) -> Stretch:
        """Those with at most this seq."""
        count = self.count_to(seq)
        return self if count == len(self) else self._shorter(count)

    def after(self, seq: int) -> tuple[Message, ...]:
        return self[self.count_to(seq) :]

    def between(self, first: int, last: int) -> tuple[Message, ...]:
        """Those with `first <= seq <= last`."""
        return self[self.count_to(first - 1) : self.count_to(last)]

    def weight_between(self, first: int, last: int) -> int:
        """Tokens of those: of all but the others where those are fewer."""
        start, stop = self.count_to(first - 1), self.count_to(last)
        if stop - start == len(self):
            return self.weight
        if 2 * (stop - start) < len(self):
            return _weight(self[start:stop])
        return self.weight - _weight(self[:start]) - _weight(self[stop:])

    def grown(self, fresh: tuple[Message, ...]) -> Stretch:
        """With these at the end."""
        if not fresh:
            return self
        longer = Stretch(self + fresh)
        if len(self) < CARRY_OVER_FROM_MESSAGES:
            return longer
        end = Stretch(fresh)
        longer._tell(self, lambda name, told: told + getattr(end, name))
        if self._encodings is not None:
            longer._encodings = self._encodings | end.encodings
        return longer

    def _shorter(self, count: int) -> Stretch:
        shorter = Stretch(self[:count])
        if len(self) >= CARRY_OVER_FROM_MESSAGES and len(self) < 2 * count:  # else it is told anew
            gone = Stretch(self[count:])
            shorter._tell(self, lambda name, told: _without(told, getattr(gone, name)))
        return shorter

    def _tell(self, other: Stretch, changed: Callable[[str, Any], Any]) -> None:
        """What the other one has been asked for, with what differs between the two."""
        for name in CARRIED_SUMS:
            if (told := vars(other).get("_" + name)) is not None:
                setattr(self, "_" + name, changed(name, told))


def _without(told: Any, gone: Any) -> Any:
    """A sum, or a tuple, without its end."""
    return told - gone if isinstance(told, int) else told[: len(told) - len(gone)]


def _weight(messages: Iterable[Message]) -> int:
    return sum([m.weight for m in messages])


def _seq(message: Message) -> int:
    return message.seq
