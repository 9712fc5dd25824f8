"""Look-ups that cannot be carried out, in the words that the model is told."""

from __future__ import annotations

from om_proxy.memory.recall.message_ids import MAX_SHOWN_ID_CHARS
from om_proxy.memory.recall.quoted_message import clean_line

NOT_AN_OBJECT = "recall: the arguments are not a JSON object"
UNKNOWN_MODE = "recall: mode must be search, messages or threads"
NO_QUERY = "recall: search needs a query"
ONLY_THIS_CONVERSATION = "recall: only this conversation can be read"
NO_CURSOR_FOR_PART = "recall: partIndex needs a cursor, one message id such as m12"
LOOKED_UP_ALREADY = "recall: you have looked this up already; see above"
CANNOT_READ_NOW = "recall: earlier messages cannot be read now; answer from the notes"
TOO_MANY_LOOK_UPS = (
    "recall: too many look-ups are under way; ask once more, or answer from the notes"
)
NO_LOOK_UPS_LEFT = "recall: no look-ups are left; answer with what you have"


class LookUpFault(Exception):
    """A look-up that is wrong as it stands. `text`: what the model is told."""

    def __init__(self, text: str, *, is_unknown: bool = False) -> None:
        super().__init__("a look-up that cannot be carried out")  # no word of a caller
        self.text = text
        self.is_unknown = is_unknown  # whether it names something that is not there


def wrong_type(name: str, expected: str) -> LookUpFault:
    """Return the fault of a parameter that is not what is `expected`: `a whole number`."""
    return LookUpFault(f"recall: {name} must be {expected}")


def range_as_cursor(first: str, last: str) -> LookUpFault:
    return LookUpFault(f"recall: {first}-{last} is a range; give one id, {first} or {last}")


def unknown_message(
    message_id: str, bounds: tuple[int, int] | None, *, is_current: bool
) -> LookUpFault:
    """`bounds`: the seqs of the conversation's first and last message; None: it has none."""
    which = "this" if is_current else "that"
    has = f"m{bounds[0]} to m{bounds[1]}" if bounds else "no messages yet"
    return LookUpFault(
        f"recall: there is no message {message_id}; {which} conversation has {has}", is_unknown=True
    )


def unknown_conversation(written: str) -> LookUpFault:
    """The words are the same for a conversation that others have."""
    shown = clean_line(written, MAX_SHOWN_ID_CHARS) or "without an id"
    return LookUpFault(
        f'recall: no conversation {shown}; mode "threads" lists them', is_unknown=True
    )


def ambiguous_label(written: str, labels: list[str]) -> LookUpFault:
    """`labels`: whole ones, of which each begins with what was written."""
    return LookUpFault(
        f"recall: {written} begins several conversations' ids; give one of {', '.join(labels)}",
        is_unknown=True,
    )


def unknown_part(message_id: str, count: int) -> LookUpFault:
    """`count`: of the parts that the message has."""
    has = f"p0 to p{count - 1}" if count > 1 else "p0 only" if count else "no parts"
    return LookUpFault(f"recall: {message_id} has {has}", is_unknown=True)


def offset_beyond_end(message_id: str, part: int, chars: int) -> LookUpFault:
    return LookUpFault(f"recall: p{part} of {message_id} has {chars} characters")
