"""Say which values the fields of a memory may have, as types.

What a store or an export says is not trusted: a number of tokens is summed up over all threads, a
time is rendered as a date, a number of a message is counted on. msgspec checks the bounds whenever
it decodes or converts; the constructors of our own code do not.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec
from msgspec import Meta

# far above what any message and any thread has: a store adds up those of all threads in 64 bits
MAX_TOKENS = 10**9
MAX_NUMBER = 10**12  # of a message, an entry, a generation: a store counts on in 64 bits
MAX_SUM = 10**15  # tokens or micro-dollars of a thread
MAX_UNIX_SECONDS = 253_370_764_800.0  # the year 9999: no calendar of Python goes on
MAX_LINE_CHARS = 1_000
MAX_TITLE_CHARS = 200
MAX_NAME_CHARS = 100
MAX_PIN_CHARS = 20_000
MAX_HINT_CHARS = 100_000
MAX_NOTES_CHARS = 10_000_000
# no control characters, and no lone surrogates, which the state of a row cannot hold
LINE_PATTERN = "\\A[^\\x00-\\x1f\\x7f\ud800-\udfff]*\\Z"
WITHOUT_SURROGATES = "\\A[^\ud800-\udfff]*\\Z"

Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
# of the log that a prompt shows; -1: none, as of a thread that has just changed its log
ShownNumber = Annotated[int, Meta(ge=-1, le=MAX_NUMBER)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
# an import refuses a larger sum than a thousandth: later turns are added to it
Sum = Annotated[int, Meta(ge=0, le=MAX_SUM, extra={"max_imported": MAX_SUM // 1_000})]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_UNIX_SECONDS)]  # since 1970
# the time of something that has happened: an import refuses one ahead of its clock
PastSeconds = Annotated[float, Meta(ge=0.0, le=MAX_UNIX_SECONDS, extra={"is_past": True})]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
RequestDigest = Annotated[bytes, Meta(min_length=1, max_length=64)]
# a word of ours or of a client's, for lists and logs
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS, pattern=LINE_PATTERN)]
Line = Annotated[str, Meta(max_length=MAX_LINE_CHARS, pattern=LINE_PATTERN)]
# text of clients, models and people, which may hold any character that UTF-8 can hold
Model = Annotated[str, Meta(max_length=MAX_LINE_CHARS, pattern=WITHOUT_SURROGATES)]
Title = Annotated[str, Meta(max_length=MAX_TITLE_CHARS, pattern=WITHOUT_SURROGATES)]
Hint = Annotated[str, Meta(max_length=MAX_HINT_CHARS, pattern=WITHOUT_SURROGATES)]
NoteText = Annotated[str, Meta(max_length=MAX_NOTES_CHARS, pattern=WITHOUT_SURROGATES)]
PinText = Annotated[str, Meta(max_length=MAX_PIN_CHARS, pattern=WITHOUT_SURROGATES)]


def find_bad_fields(value: Any) -> list[str]:
    """Return the names of the fields of a struct whose values are out of their bounds."""
    bad = []
    for name, as_type in _find_bounds(value.__class__):
        try:
            msgspec.convert(getattr(value, name), as_type)
        except msgspec.ValidationError:
            bad.append(name)
    return bad


@cache
def _find_bounds(as_type: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(as_type, include_extras=True)
    return tuple((name, hint) for name, hint in hints.items() if get_origin(hint) is Annotated)
